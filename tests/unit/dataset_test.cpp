// Tests reading of data sets: the values from good files, and the error for each kind of damage.
#include "data/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "data/hdf5.h"
#include "data/shard_files.h"
#include "data/shard_header.h"
#include "data/text_dataset.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "data_prep/verify.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class DatasetTest : public WithFolder {
 protected:
  std::string shard(int i) const { return shard_path(path("pets-train"), i, 2); }

  // Makes about 34,000 training rows of 9 tokens, which are three blocks per shard.
  void make_names() const {
    std::ofstream out(path("names.txt"));
    for (int i = 0; i < 3000; ++i) {
      std::string name;
      for (int n = i + 1; n > 0; n /= 26) name += static_cast<char>('a' + n % 26);
      out << name << "burtonian\n";
    }
    out.close();
    NamesOptions options;
    options.input.path = path("names.txt");
    options.out = path("pets");
    options.force = true;
    std::ostringstream log;
    convert_names(options, log);
  }

  std::string make_text(std::int64_t shards) const {
    std::string text;
    for (std::int64_t i = 0; i < 200000; ++i) text += static_cast<char>('a' + (i * i / 7 + i) % 26);
    std::ofstream(path("text.txt")) << text;
    TextOptions options;
    options.input = path("text.txt");
    options.out = path("text");
    options.shards = shards;
    options.validation = 0;
    options.force = true;
    std::ostringstream log;
    convert_text(options, log);
    return text;
  }
};

void read_everything(const std::string& prefix) {
  const TextDataset dataset(read_dataset_index(prefix));
  const DatasetIndex& index = dataset.index();
  std::vector<std::uint8_t> all(
      static_cast<std::size_t>(index.total * (index.text.running_text ? 1 : index.text.context_length + 1)));
  dataset.read_text(0, all);
}

struct TextDamage {
  const char* what;
  std::function<void(const std::string& first, const std::string& second)> apply;
  const char* message;
};

const std::vector<TextDamage> text_damages = {
    {"a missing shard", [](auto&, auto& b) { fs::remove(b); }, "00001-of-00002.h5: shard 1 of 2 is missing"},
    {"a truncated copy", [](auto&, auto& b) { fs::resize_file(b, fs::file_size(b) / 2); },
     "00001-of-00002.h5: cannot open as HDF5: truncated file"},
    {"an empty file", [](auto& a, auto&) { fs::resize_file(a, 0); }, "00000-of-00002.h5: is empty (0 bytes)"},
    {"a wrong magic number", [](auto& a, auto&) { change_byte(a, 0, 'x'); }, "00000-of-00002.h5: is not an HDF5 file"},
    {"a directory",
     [](auto& a, auto&) {
       fs::remove(a);
       fs::create_directory(a);
     },
     "is a directory, not an HDF5 file"},
    {"a dangling link",
     [](auto& a, auto&) {
       fs::remove(a);
       fs::create_symlink("nowhere", a);
     },
     "cannot open: No such file or directory"},
    {"no schema", [](auto& a, auto&) { edit(a, [](hid_t f) { drop_attribute(f, "/", "schema"); }); },
     "is an HDF5 file without the attribute 'schema', so it is not a data set of ringtrain: convert it with "
     "bin/ringtrain-data import"},
    {"another schema", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "schema", "fuel"); }); },
     "attribute 'schema' is 'fuel', expected 'ringtrain'"},
    {"a later major version",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "schema_version", 2, 2); }); },
     "schema version is 2.2; this program reads 1.x"},
    {"an unfinished file", [](auto&, auto& b) { edit(b, [](hid_t f) { drop_attribute(f, "/", "complete"); }); },
     "00001-of-00002.h5: attribute 'complete' is missing or not 1: the conversion did not finish"},
    {"another kind", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "kind", "video"); }); },
     "attribute 'kind' is 'video', expected 'text' or 'image'"},
    {"images without images", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "kind", "image"); }); },
     "data set 'images' is missing"},
    {"a missing attribute",
     [](auto& a, auto&) { edit(a, [](hid_t f) { drop_attribute(f, "/", "num_samples_total"); }); },
     "attribute 'num_samples_total' of '/' is missing"},
    {"an attribute of the wrong type",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "num_shards", "two"); }); },
     "attribute 'num_shards' of '/' has the wrong type: expected integers, found string"},
    {"another uuid", [](auto&, auto& b) { edit(b, [](hid_t f) { set_attribute(f, "dataset_uuid", "0000"); }); },
     "00001-of-00002.h5: attribute 'dataset_uuid' is 0000, but "},
    {"a wrong shard index", [](auto&, auto& b) { edit(b, [](hid_t f) { set_attribute(f, "/", "shard_index", 0); }); },
     "attribute 'shard_index' is 0, but the file's name says 1"},
    {"a wrong number of shards",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_shards", 3); }); },
     "attribute 'num_shards' is 3, but 2 file(s) were found"},
    {"totals that are off",
     [](auto& a, auto& b) {
       for (auto& p : {a, b}) edit(p, [](hid_t f) { set_attribute(f, "/", "num_samples_total", 5); });
     },
     "attribute 'num_samples_total' is 5, but the shards hold "},
    {"a wrong count", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_samples", 5); }); },
     "attribute 'num_samples' is 5, but 'tokens' holds "},
    {"no tokens", [](auto& a, auto&) { edit(a, [](hid_t f) { H5Ldelete(f, "tokens", H5P_DEFAULT); }); },
     "data set 'tokens' is missing"},
    {"tokens of another type",
     [](auto& a, auto&) { edit(a, [](hid_t f) {
                            replace_dataset(f, "tokens", H5T_STD_I32LE, {4, 9});
                          }); },
     "data set 'tokens' has the wrong type: expected u8, found i32"},
    {"tokens of another rank",
     [](auto& a, auto&) { edit(a, [](hid_t f) {
                            replace_dataset(f, "tokens", H5T_STD_U8LE, {4, 9, 2});
                          }); },
     "data set 'tokens' has 3 dimensions"},
    {"a wrong context",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "tokens", "context_length", 7); }); },
     "'tokens' has rows of 9 symbols, but context_length is 7"},
    {"no vocabulary", [](auto& a, auto&) { edit(a, [](hid_t f) { drop_attribute(f, "tokens", "vocab"); }); },
     "attribute 'vocab' of 'tokens' is missing"},
    {"a blank that is no symbol",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "tokens", "pad_id", 99); }); },
     "attribute 'pad_id' is 99, but there are 31 symbols"},
    {"too few checksums",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "crc32c", H5T_STD_U32LE, {1}); }); },
     "data set 'crc32c' has 1 values, expected "},
    {"checksums of another type",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "crc32c", H5T_STD_U64LE, {1}); }); },
     "data set 'crc32c' has the wrong type: expected u32, found u64"},
    {"a changed byte", [](auto&, auto& b) { change_byte(b, read_shard_header(b).byte_offset + 70000, 30); },
     "00001-of-00002.h5: block 1 of 'tokens' (records 7281 to "},
    {"shards of another conversion",
     [](auto& a, auto&) { fs::copy_file(a, fs::path(a).parent_path() / "pets-train-00000-of-00003.h5"); },
     "shards of two conversions lie side by side"},
    {"no damage", [](auto&, auto&) {}, ""},
};

TEST_F(DatasetTest, EveryKindOfDamageIsNamed) {
  for (const TextDamage& damage : text_damages) {
    make_names();
    damage.apply(shard(0), shard(1));
    const std::string message = message_of([&] { read_everything(path("pets-train")); });
    if (*damage.message == 0) {
      EXPECT_EQ(message, "(no error)");  // the undamaged files check the table itself
    } else {
      expect_contains(message, damage.message);
      EXPECT_EQ(message.find("[]"), std::string::npos) << damage.what << " has no hint: " << message;
      EXPECT_FALSE(verify_dataset(path("pets")).faults.empty()) << damage.what;
    }
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
}

TEST_F(DatasetTest, AnIdOutsideTheVocabularyIsNamed) {
  make_names();
  const std::string file = shard(0);
  change_byte(file, read_shard_header(file).byte_offset + 20, 200);
  expect_contains(message_of([&] { read_everything(path("pets-train")); }), "block 0 of 'tokens'");
  edit(file, [](hid_t f) { H5Ldelete(f, "crc32c", H5P_DEFAULT); });  // without checksums only the range check is left
  expect_contains(message_of([&] { read_everything(path("pets-train")); }),
                  "record 2 of 'tokens' holds the id 200, but the vocabulary has 31 symbols");
}

TEST_F(DatasetTest, NoDataSetSaysWhichCommandMakesIt) {
  expect_contains(message_of([&] { read_dataset_index(path("pets-train")); }),
                  "[make it: bin/ringtrain-data KIND INPUT --out " + path("pets") + ",");
  std::ofstream(path("pets-train-00000-of-00002.h5.tmp")) << "x";
  expect_contains(message_of([&] { read_dataset_index(path("pets-train")); }), "only an unfinished conversion (*.tmp)");
  expect_contains(message_of([&] { read_dataset_index(path("none/pets-train")); }), "cannot list the folder");
  make_names();
  expect_contains(message_of([&] { read_dataset_index(shard(1)); }), "give the prefix of all shards, not one file");
}

TEST_F(DatasetTest, TheIndexSurvivesTheWayToTheOtherRanks) {
  make_names();
  const DatasetIndex index = read_dataset_index(path("pets-train"));
  const DatasetIndex again = DatasetIndex::deserialize(index.serialize());
  EXPECT_EQ(again.serialize(), index.serialize());
  EXPECT_EQ(again.text.vocabulary, index.text.vocabulary);
  EXPECT_EQ(again.shards[1].crc32c, index.shards[1].crc32c);
  EXPECT_EQ(again.shards[1].first, index.shards[0].count);
  EXPECT_EQ(again.total, index.total);
  EXPECT_EQ(again.text.pad_id, 0);
  EXPECT_EQ(again.text.stop_id, 1);
  EXPECT_TRUE(again.text.lowercase);
  std::string other = index.serialize();
  ++other[4];
  expect_contains(message_of([&] { DatasetIndex::deserialize(other); }), "of another version of the program");
  for (const std::size_t cut : {std::size_t{0}, std::size_t{3}, std::size_t{40}, other.size() - 1}) {
    EXPECT_THROW(DatasetIndex::deserialize(index.serialize().substr(0, cut)), Error);
  }
}

TEST_F(DatasetTest, TextIsReadAcrossBlocksAndShards) {
  const std::string text = make_text(3);
  const TextDataset dataset(read_dataset_index(path("text-train")));
  ASSERT_EQ(dataset.index().total, 200000);
  for (const std::int64_t first : {0, 65530, 66660, 130000, 199990}) {
    std::vector<std::uint8_t> ids(static_cast<std::size_t>(std::min<std::int64_t>(70000, 200000 - first)));
    dataset.read_text(first, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(dataset.index().text.vocabulary[ids[i]][0], text[static_cast<std::size_t>(first) + i])
          << first + static_cast<std::int64_t>(i);
    }
  }
  std::vector<std::uint8_t> ids(2);
  expect_contains(message_of([&] { dataset.read_text(199999, ids); }), "has only 200000");
  EXPECT_GE(dataset_bytes(dataset.index()), 200000);
  EXPECT_LT(dataset_bytes(dataset.index()), 210000);
}

TEST_F(DatasetTest, ChunkedAndFilteredTokensAreReadThroughHdf5) {
  make_names();
  std::vector<std::uint8_t> expected;
  {
    const TextDataset dataset(
        read_dataset_index(shard_path(path("pets-train"), 0, 2).substr(0, path("pets-train").size())));
    expected.resize(static_cast<std::size_t>(dataset.index().total * 9));
    dataset.read_text(0, expected);
  }
  const std::int64_t rows = read_shard_header(shard(0)).count;
  edit(shard(0), [&](hid_t file) {
    const h5::Handle old(H5Dopen2(file, "tokens", H5P_DEFAULT), H5Dclose);
    const h5::Handle space(H5Dget_space(old.get()), H5Sclose), properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t chunk[2] = {1000, 9};
    H5Pset_chunk(properties.get(), 2, chunk);
    H5Pset_deflate(properties.get(), 1);
    const h5::Handle made(
        H5Dcreate2(file, "chunked", H5T_STD_U8LE, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose);
    ASSERT_GE(H5Dwrite(made.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, expected.data()), 0);
    const auto copy = [](hid_t from, const char* name, const H5A_info_t*, void* to) -> herr_t {
      const h5::Handle in(H5Aopen(from, name, H5P_DEFAULT), H5Aclose), type(H5Aget_type(in.get()), H5Tclose),
          extent(H5Aget_space(in.get()), H5Sclose);
      const h5::Handle out(
          H5Acreate2(*static_cast<hid_t*>(to), name, type.get(), extent.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
      std::vector<char> bytes(static_cast<std::size_t>(H5Aget_storage_size(in.get())));
      return H5Aread(in.get(), type.get(), bytes.data()) < 0 ? -1 : H5Awrite(out.get(), type.get(), bytes.data());
    };
    hid_t target = made.get();
    ASSERT_GE(H5Aiterate2(old.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, copy, &target), 0);
    H5Ldelete(file, "tokens", H5P_DEFAULT);
    H5Lmove(file, "chunked", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_EQ(read_shard_header(shard(0)).byte_offset, no_byte_offset);
  const TextDataset dataset(read_dataset_index(path("pets-train")));
  std::vector<std::uint8_t> all(expected.size());
  dataset.read_text(0, all);
  EXPECT_EQ(all, expected);
  std::vector<std::uint8_t> row(9);
  dataset.read_row(rows - 1, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + (rows - 1) * 9));
}

TEST_F(DatasetTest, ManyThreadsReadTheSameBytes) {
  const std::string text = make_text(2);
  const TextDataset dataset(read_dataset_index(path("text-train")));
  std::vector<std::thread> threads;
  std::vector<std::int64_t> wrong(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::uint8_t> ids(100);
      for (std::int64_t first = 0; first + 100 <= 200000; first += 37) {
        dataset.read_text(first, ids);
        for (std::size_t i = 0; i < 100; ++i)
          wrong[t] += dataset.index().text.vocabulary[ids[i]][0] != text[static_cast<std::size_t>(first) + i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<std::int64_t>(4, 0));
}

TEST_F(DatasetTest, AFileThatChangedSinceItsHeaderWasReadIsNamed) {
  make_names();
  const DatasetIndex index = read_dataset_index(path("pets-train"));
  fs::resize_file(shard(0), fs::file_size(shard(0)) - 1);
  const TextDataset dataset(index);
  std::vector<std::uint8_t> row(9);
  expect_contains(message_of([&] { dataset.read_row(0, row); }), "when rank 0 read its header");
  fs::remove(shard(1));
  expect_contains(message_of([&] { dataset.read_row(index.total - 1, row); }),
                  "00001-of-00002.h5: cannot open: No such file");
}

TEST_F(DatasetTest, TheVerifierFindsWhatChecksumsCannot) {
  // No checksum finds these faults: the checksums of the tokens are deleted, and sample_ids have none.
  const auto faults_after = [&](std::size_t row, std::size_t column, std::uint8_t id) {
    make_names();
    const ShardHeader header = read_shard_header(shard(0));
    change_byte(shard(0), header.byte_offset + row * 9 + column, id);
    edit(shard(0), [](hid_t f) { H5Ldelete(f, "crc32c", H5P_DEFAULT); });
    std::string all;
    for (const std::string& fault : verify_dataset(path("pets")).faults) all += fault + "\n";
    return all;
  };
  make_names();
  EXPECT_TRUE(verify_dataset(path("pets")).faults.empty());
  EXPECT_TRUE(verify_dataset(shard(1)).faults.empty());
  const std::vector<std::uint8_t> tokens = h5::File::open(shard(0)).read<std::uint8_t>("tokens");
  std::size_t full = 0, short_row = 0;
  while (tokens[full * 9] == 0 || tokens[full * 9 + 8] == 1) ++full;
  while (tokens[short_row * 9 + 6] != 0) ++short_row;
  expect_contains(faults_after(full, 4, 0), cat("record ", full, " ('"));
  expect_contains(faults_after(full, 4, 0), "has a blank that is not on the left");
  expect_contains(faults_after(full, 4, 1), "has a stop symbol before its end");
  expect_contains(faults_after(full, 4, 28), "is not a prefix of its name '");
  expect_contains(faults_after(short_row, 7, 28), "is not a prefix of its name '");
  make_names();
  edit(shard(0), [](hid_t f) {
    const h5::Handle ids(H5Dopen2(f, "sample_ids", H5P_DEFAULT), H5Dclose);
    const h5::Handle space(H5Dget_space(ids.get()), H5Sclose), one(H5Screate(H5S_SCALAR), H5Sclose);
    std::vector<std::uint64_t> all(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dread(ids.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data());
    all[0] = all[1];
    ASSERT_GE(H5Dwrite(ids.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  });
  const std::vector<std::string> faults = verify_dataset(path("pets")).faults;
  ASSERT_EQ(faults.size(), 1u);
  expect_contains(faults[0], "occurs more than once");
}

}  // namespace
}  // namespace ringtrain
