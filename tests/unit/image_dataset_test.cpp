// Tests reading the records of images: the values from good files, the error for each kind of damage, and retries after
// transient failures.
#include "data/image_dataset.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "tests/unit/hdf5_edit.h"
#include "tests/unit/image_shards.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::uint8_t>;

// Returns images whose records are no JPEG files. The reader does not decode records, so any bytes will do.
TestImages files_of_bytes(std::int64_t samples) {
  TestImages images = raw_images(samples, 31, 17);
  images.raw = false;
  for (std::size_t i = 0; i < images.records.size(); ++i) images.records[i].resize(1 + 97 * i % 1300);
  return images;
}

class ImageDatasetTest : public WithFolder {
 protected:
  std::string prefix() const { return path("squares-train"); }
  std::string shard(std::int64_t i, std::int64_t shards) const { return shard_path(prefix(), i, shards); }
  void write(const TestImages& images, std::int64_t shards) const {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    write_image_shards(prefix(), images, shards);
  }
  ImageDataset open(ShardFiles::Pread pread = ::pread) const {
    return ImageDataset(read_dataset_index(prefix()), nullptr, pread);
  }

  void expect_all(const ImageDataset& dataset, const TestImages& images) const {
    ASSERT_EQ(dataset.index().total, std::ssize(images.records));
    Bytes bytes;
    for (std::int64_t i = 0; i < dataset.index().total; ++i) {
      const ImageDataset::Record record = dataset.record(i);
      EXPECT_EQ(record.label, i % images.classes);
      EXPECT_EQ(record.sample_id, test_sample_id(i));
      dataset.read(i, bytes);
      EXPECT_EQ(record.bytes, std::ssize(bytes));
      EXPECT_EQ(bytes, images.records[static_cast<std::size_t>(i)]) << i;
    }
  }
};

TEST_F(ImageDatasetTest, RecordsAreWhatWasWrittenWhateverTheShardsAndTheEncoding) {
  for (const std::int64_t shards : {1, 2, 7}) {
    for (const TestImages& images : {files_of_bytes(40), raw_images(40), raw_images(40, 3, 9, 1)}) {
      write(images, shards);
      const DatasetIndex index = read_dataset_index(prefix());
      expect_all(ImageDataset(index), images);
      EXPECT_TRUE(index.is_image());
      EXPECT_EQ(index.image.raw, images.raw);
      EXPECT_EQ(index.image.channels, images.raw ? images.channels : 3);
      EXPECT_EQ(index.image.height, images.raw ? images.height : 0);
      EXPECT_EQ(index.image.class_names[6], "class 6");
      EXPECT_EQ(index.image.class_ids[0], "n0");
      EXPECT_EQ(index.image.mean, (std::vector<double>{0.5, 0.25, 0.125}));
      EXPECT_EQ(index.image.std, (std::vector<double>{0.25, 0.5, 1}));
      std::size_t bytes = 0, largest = 0;
      for (const Bytes& record : images.records) bytes += record.size(), largest = std::max(largest, record.size());
      EXPECT_EQ(index.image_bytes(), static_cast<std::int64_t>(bytes));
      EXPECT_EQ(index.largest_record(), static_cast<std::int64_t>(largest));
    }
  }
}

TEST_F(ImageDatasetTest, TheIndexSurvivesTheWayToTheOtherRanksAndDoesNotGrowWithTheSamples) {
  write(files_of_bytes(40), 3);
  const DatasetIndex index = read_dataset_index(prefix());
  const DatasetIndex again = DatasetIndex::deserialize(index.serialize());
  EXPECT_EQ(again.serialize(), index.serialize());
  expect_all(ImageDataset(again), files_of_bytes(40));
  write(files_of_bytes(400), 3);
  EXPECT_EQ(read_dataset_index(prefix()).serialize().size(), index.serialize().size());
}

TEST_F(ImageDatasetTest, MakeDatasetChoosesTheKind) {
  write(raw_images(4), 1);
  const std::shared_ptr<const Dataset> dataset = make_dataset(read_dataset_index(prefix()));
  EXPECT_NE(dynamic_cast<const ImageDataset*>(dataset.get()), nullptr);
}

TEST_F(ImageDatasetTest, MemoryIsTheTablesOfAllShards) {
  write(files_of_bytes(40), 2);
  const std::int64_t per_shard = 8;  // a flag that says whether the shard has been read, with padding
  EXPECT_EQ(dataset_bytes(open().index()), 2 * (per_shard + 8) + 40 * 36);
  write(raw_images(40), 2);
  EXPECT_EQ(dataset_bytes(open().index()), 2 * per_shard + 40 * 16);
}

struct ImageDamage {
  const char* what;
  std::function<void(const std::string& first, const std::string& second)> apply;
  const char* message;
  bool raw = false;
};

template <class T>
void change_value(const std::string& path, const char* dataset, hid_t type, std::size_t at, T value) {
  edit(path, [&](hid_t file) {
    const h5::Handle handle(H5Dopen2(file, dataset, H5P_DEFAULT), H5Dclose);
    const h5::Handle space(H5Dget_space(handle.get()), H5Sclose);
    std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    ASSERT_GE(H5Dread(handle.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    values.at(at) = value;
    ASSERT_GE(H5Dwrite(handle.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  });
}

void set_images_attribute(const std::string& path, const char* name, const std::string& value) {
  edit(path, [&](hid_t file) {
    drop_attribute(file, "images", name);
    const h5::Handle images(H5Dopen2(file, "images", H5P_DEFAULT), H5Dclose);
    const h5::Handle space(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), value.size());
    const h5::Handle attribute(H5Acreate2(images.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose);
    ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.data()), 0);
  });
}

void drop_dataset(const std::string& path, const char* name) {
  edit(path, [&](hid_t file) { ASSERT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0); });
}

// Each shard has 10 records.
const std::vector<ImageDamage> image_damages = {
    {"undamaged", [](auto&, auto&) {}, ""},
    {"undamaged pixels", [](auto&, auto&) {}, "", true},
    {"a missing shard", [](auto&, auto& b) { fs::remove(b); }, "00001-of-00002.h5: shard 1 of 2 is missing"},
    {"a truncated copy", [](auto&, auto& b) { fs::resize_file(b, fs::file_size(b) / 2); },
     "00001-of-00002.h5: cannot open as HDF5: truncated file"},
    {"no images", [](auto& a, auto&) { drop_dataset(a, "images"); }, "00000-of-00002.h5: data set 'images' is missing"},
    {"no labels", [](auto& a, auto&) { drop_dataset(a, "labels"); }, "data set 'labels' is missing"},
    {"no offsets", [](auto& a, auto&) { drop_dataset(a, "offsets"); }, "data set 'offsets' is missing"},
    {"no shapes", [](auto& a, auto&) { drop_dataset(a, "shapes"); }, "data set 'shapes' is missing"},
    {"no ids", [](auto& a, auto&) { drop_dataset(a, "sample_ids"); }, "data set 'sample_ids' is missing"},
    {"no class names", [](auto& a, auto&) { drop_dataset(a, "class_names"); }, "data set 'class_names' is missing"},
    {"images of another type",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "images", H5T_STD_I32LE, {100}); }); },
     "data set 'images' has the wrong type: expected u8, found i32"},
    {"labels of another type",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "labels", H5T_STD_I64LE, {10}); }); },
     "data set 'labels' has the wrong type: expected i32, found i64"},
    {"offsets of another type",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "offsets", H5T_STD_U32LE, {11}); }); },
     "data set 'offsets' has the wrong type: expected u64, found u32"},
    {"class names that are numbers",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "class_names", H5T_STD_U8LE, {7}); }); },
     "data set 'class_names' has the wrong type: expected string, found u8"},
    {"too few ids",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "sample_ids", H5T_STD_U64LE, {9}); }); },
     "data set 'sample_ids' has the shape [9], expected [10] (num_samples is 10)"},
    {"too few checksums",
     [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "crc32c", H5T_STD_U32LE, {1}); }); },
     "data set 'crc32c' has the shape [1], expected [10]"},
    {"flat shapes", [](auto& a, auto&) { edit(a, [](hid_t f) { replace_dataset(f, "shapes", H5T_STD_I32LE, {30}); }); },
     "data set 'shapes' has the shape [30], expected [10, 3]"},
    {"JPEG files that are called raw", [](auto& a, auto&) { set_images_attribute(a, "encoding", "raw"); },
     "data set 'images' has 1 dimensions, expected 4"},
    {"an unknown encoding", [](auto& a, auto&) { set_images_attribute(a, "encoding", "png"); },
     "attribute 'encoding' of 'images' is 'png', expected 'jpeg' or 'raw'"},
    {"no encoding", [](auto& a, auto&) { edit(a, [](hid_t f) { drop_attribute(f, "images", "encoding"); }); },
     "attribute 'encoding' of 'images' is missing"},
    {"another layout", [](auto& a, auto&) { set_images_attribute(a, "layout", "NCHW"); },
     "attribute 'layout' of 'images' is 'NCHW', expected 'NHWC'", true},
    {"a wrong count", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_samples", 5); }); },
     "(num_samples is 5)"},
    {"a wrong count of pixels",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_samples", 5); }); },
     "attribute 'num_samples' is 5, but 'images' holds 10", true},
    {"a wrong total",
     [](auto& a, auto& b) {
       for (auto& p : {a, b}) edit(p, [](hid_t f) { set_attribute(f, "/", "num_samples_total", 21); });
     },
     "attribute 'num_samples_total' is 21, but the shards hold 20"},
    {"a wrong number of classes",
     [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "num_classes", 8); }); },
     "data set 'class_names' has 7 values, but attribute 'num_classes' is 8"},
    {"two means", [](auto& a, auto&) { edit(a, [](hid_t f) {
                                         write_real_attribute(f, "mean", {0.5, 0.5});
                                       }); },
     "attribute 'mean' has 2 values, expected 3"},
    {"a mean of bytes",
     [](auto& a, auto&) { edit(a, [](hid_t f) {
                            write_real_attribute(f, "mean", {123.0, 117.0, 104.0});
                          }); },
     "attribute 'mean' holds 123, expected values from 0 to 1"},
    {"no spread", [](auto& a, auto&) { edit(a, [](hid_t f) {
                                         write_real_attribute(f, "std", {0.5, 0.0, 0.5});
                                       }); },
     "attribute 'std' holds 0, expected values above 0"},
    {"no mean", [](auto& a, auto&) { edit(a, [](hid_t f) { drop_attribute(f, "/", "mean"); }); },
     "attribute 'mean' of '/' is missing"},
    {"a mean of text", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "mean", "0.5"); }); },
     "attribute 'mean' of '/' has the wrong type: expected floating-point numbers, found string x 1"},
    {"another mean in one shard",
     [](auto&, auto& b) { edit(b, [](hid_t f) {
                            write_real_attribute(f, "mean", {0.5, 0.5, 0.5});
                          }); },
     "00001-of-00002.h5: attribute 'mean' differs from that of "},
    {"another uuid", [](auto&, auto& b) { edit(b, [](hid_t f) { set_attribute(f, "dataset_uuid", "0000"); }); },
     "00001-of-00002.h5: attribute 'dataset_uuid' is 0000, but "},
    {"another split", [](auto&, auto& b) { edit(b, [](hid_t f) { set_attribute(f, "split", "validation"); }); },
     "00001-of-00002.h5: attribute 'split' is validation, but "},
    {"other classes",
     [](auto&, auto& b) {
       drop_dataset(b, "class_ids");
       edit(b, [](hid_t f) { write_string_dataset(f, "class_ids", {"a", "b", "c", "d", "e", "f", "g"}); });
     },
     "00001-of-00002.h5: data set 'class_ids' differs from that of "},
    {"an unfinished file", [](auto&, auto& b) { edit(b, [](hid_t f) { set_attribute(f, "/", "complete", 0); }); },
     "00001-of-00002.h5: attribute 'complete' is missing or not 1"},
    {"a later version", [](auto& a, auto&) { edit(a, [](hid_t f) { set_attribute(f, "/", "schema_version", 2, 2); }); },
     "schema version is 2.2; this program reads 1.x"},
    {"offsets that do not ascend",
     [](auto& a, auto&) { change_value<std::uint64_t>(a, "offsets", H5T_NATIVE_UINT64, 4, 2); },
     "00000-of-00002.h5: record 3: data set 'offsets' says bytes "},
    {"offsets beyond the images",
     [](auto&, auto& b) { change_value<std::uint64_t>(b, "offsets", H5T_NATIVE_UINT64, 10, 1 << 30); },
     "00001-of-00002.h5: record 9: data set 'offsets' says bytes "},
    {"a label that is no class",
     [](auto&, auto& b) { change_value<std::int32_t>(b, "labels", H5T_NATIVE_INT32, 6, 7); },
     "00001-of-00002.h5: record 6 has the label 7, but there are 7 classes"},
    {"a negative label", [](auto&, auto& b) { change_value<std::int32_t>(b, "labels", H5T_NATIVE_INT32, 0, -1); },
     "00001-of-00002.h5: record 0 has the label -1"},
    {"a shape of nothing", [](auto& a, auto&) { change_value<std::int32_t>(a, "shapes", H5T_NATIVE_INT32, 7, 0); },
     "00000-of-00002.h5: record 2 has the shape [31, 0, 3] in 'shapes', expected [height, width, 1 or 3]"},
    {"a shape of other pixels", [](auto& a, auto&) { change_value<std::int32_t>(a, "shapes", H5T_NATIVE_INT32, 6, 7); },
     "00000-of-00002.h5: record 2 has the shape [7, 5, 3] in 'shapes', expected [6, 5, 3]", true},
    {"a changed byte", [](auto&, auto& b) { change_byte(b, read_shard_header(b).byte_offset + 3 * 90 + 2, 0); },
     "00001-of-00002.h5: record 3 has a wrong CRC-32C", true},
    {"a changed checksum", [](auto&, auto& b) { change_value<std::uint32_t>(b, "crc32c", H5T_NATIVE_UINT32, 9, 1); },
     "00001-of-00002.h5: record 9 has a wrong CRC-32C"},
};

TEST_F(ImageDatasetTest, EveryKindOfDamageIsNamed) {
  for (const ImageDamage& damage : image_damages) {
    write(damage.raw ? raw_images(20) : files_of_bytes(20), 2);
    damage.apply(shard(0, 2), shard(1, 2));
    const std::string message = message_of([&] {
      const ImageDataset dataset = open();
      Bytes bytes;
      for (std::int64_t i = 0; i < dataset.index().total; ++i) dataset.read(i, bytes);
    });
    if (*damage.message == 0) {
      EXPECT_EQ(message, "(no error)");
    } else {
      expect_contains(message, damage.message);
      EXPECT_EQ(message.find("[]"), std::string::npos) << damage.what << " has no hint: " << message;
    }
  }
}

TEST_F(ImageDatasetTest, FilesWithoutChecksumsAreRead) {
  TestImages images = files_of_bytes(20);
  images.with_checksums = false;
  write(images, 2);
  expect_all(open(), images);
  EXPECT_EQ(DatasetIndex::deserialize(open().index().serialize()).shards[0].arrays.has_crc32c, false);
}

// Stores the same values compressed, in chunks of `chunk`, as h5py users may do. The attributes stay.
void store_in_chunks(const std::string& path, const char* name, const std::vector<hsize_t>& chunk) {
  edit(path, [&](hid_t file) {
    const h5::Handle old(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
    const h5::Handle type(H5Dget_type(old.get()), H5Tclose), space(H5Dget_space(old.get()), H5Sclose);
    std::vector<char> values(H5Tget_size(type.get()) *
                             static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    ASSERT_GE(H5Dread(old.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    const h5::Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
    H5Pset_deflate(properties.get(), 1);
    const h5::Handle made(
        H5Dcreate2(file, "chunked", type.get(), space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT), H5Dclose);
    ASSERT_GE(H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    const auto copy = [](hid_t from, const char* attribute, const H5A_info_t*, void* to) -> herr_t {
      const h5::Handle in(H5Aopen(from, attribute, H5P_DEFAULT), H5Aclose), kind(H5Aget_type(in.get()), H5Tclose),
          extent(H5Aget_space(in.get()), H5Sclose);
      const h5::Handle out(
          H5Acreate2(*static_cast<hid_t*>(to), attribute, kind.get(), extent.get(), H5P_DEFAULT, H5P_DEFAULT),
          H5Aclose);
      std::vector<char> bytes(static_cast<std::size_t>(H5Aget_storage_size(in.get())));
      return H5Aread(in.get(), kind.get(), bytes.data()) < 0 ? -1 : H5Awrite(out.get(), kind.get(), bytes.data());
    };
    hid_t target = made.get();
    ASSERT_GE(H5Aiterate2(old.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, copy, &target), 0);
    H5Ldelete(file, name, H5P_DEFAULT);
    H5Lmove(file, "chunked", file, name, H5P_DEFAULT, H5P_DEFAULT);
  });
}

TEST_F(ImageDatasetTest, ChunkedAndFilteredArraysAreReadThroughHdf5) {
  for (const TestImages& images : {files_of_bytes(20), raw_images(20)}) {
    write(images, 2);
    const std::string file = shard(1, 2);
    store_in_chunks(file, "images", images.raw ? std::vector<hsize_t>{3, 4, 5, 2} : std::vector<hsize_t>{500});
    for (const char* name : {"labels", "sample_ids", "crc32c"}) store_in_chunks(file, name, {4});
    store_in_chunks(file, "shapes", {4, 2});
    if (!images.raw) store_in_chunks(file, "offsets", {4});
    EXPECT_EQ(read_shard_header(file).byte_offset, no_byte_offset);
    EXPECT_EQ(read_shard_header(file).arrays.labels, no_byte_offset);
    expect_all(open(), images);
  }
}

TEST_F(ImageDatasetTest, ManyThreadsReadTheSameRecords) {
  const TestImages images = files_of_bytes(60);
  write(images, 7);
  const ImageDataset dataset = open();
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Bytes bytes;
      for (std::int64_t i = 0; i < 600; ++i) {
        const std::int64_t sample = (i * 7 + t * 11) % 60;
        dataset.read(sample, bytes);
        wrong += bytes != images.records[static_cast<std::size_t>(sample)];
        wrong += dataset.record(sample).sample_id != test_sample_id(sample);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(ImageDatasetTest, AFileThatChangedSinceItsHeaderWasReadIsNamed) {
  write(raw_images(20), 2);
  const ImageDataset dataset = open();
  fs::resize_file(shard(0, 2), fs::file_size(shard(0, 2)) - 1);
  expect_contains(message_of([&] { dataset.record(0); }), "when rank 0 read its header");
  fs::remove(shard(1, 2));
  expect_contains(message_of([&] { dataset.record(19); }), "00001-of-00002.h5: cannot open: No such file");
  expect_contains(message_of([&] { dataset.record(20); }), "image 20 was asked for");
}

TEST_F(ImageDatasetTest, AnotherShardOfTheSameSetAndSizeIsNotTakenForTheFirst) {
  write(raw_images(20), 2);
  const ImageDataset dataset = open();
  ASSERT_EQ(fs::file_size(shard(0, 2)), fs::file_size(shard(1, 2)));
  fs::copy_file(shard(1, 2), shard(0, 2), fs::copy_options::overwrite_existing);
  expect_contains(message_of([&] { dataset.record(0); }),
                  "00000-of-00002.h5: is not the file whose header rank 0 has read");
  EXPECT_EQ(dataset.record(10).sample_id, test_sample_id(10));
}

std::int64_t open_files_in(const fs::path& folder) {
  std::int64_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    count += fs::read_symlink(entry.path(), gone).parent_path() == folder;
  }
  return count;
}

TEST_F(ImageDatasetTest, FilesAreOpenedWhenFirstNeededAndOnlySoManyStayOpen) {
  const TestImages images = raw_images(80);
  write(images, 40);
  const DatasetIndex index = read_dataset_index(prefix());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const ImageDataset dataset(index);
    EXPECT_EQ(open_files_in(folder_), 0);
    dataset.record(0);
    EXPECT_EQ(open_files_in(folder_), 1);
    for (int pass = 0; pass < 2; ++pass) {
      expect_all(dataset, images);
      EXPECT_EQ(open_files_in(folder_), 16);  // a quarter of the limit
    }
  }
  EXPECT_EQ(open_files_in(folder_), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// These functions replace pread. At times they fail, read fewer bytes than asked for, or change a bit.
std::atomic<int> bad_moments = 0;

ssize_t fails_at_times(int descriptor, void* out, std::size_t size, off_t offset) {
  if (bad_moments > 0) {
    --bad_moments;
    errno = EIO;
    return -1;
  }
  return ::pread(descriptor, out, size, offset);
}
ssize_t ends_at_times(int descriptor, void* out, std::size_t size, off_t offset) {
  return bad_moments-- > 0 ? 0 : ::pread(descriptor, out, size, offset);
}
ssize_t in_small_pieces(int descriptor, void* out, std::size_t size, off_t offset) {
  return ::pread(descriptor, out, std::min<std::size_t>(size, 13), offset);
}
ssize_t changes_a_bit_at_times(int descriptor, void* out, std::size_t size, off_t offset) {
  const ssize_t got = ::pread(descriptor, out, size, offset);
  if (bad_moments-- > 0) static_cast<std::uint8_t*>(out)[size - 1] ^= 4;
  return got;
}

TEST_F(ImageDatasetTest, ReadsThatFailForAMomentAreTriedAgain) {
  const TestImages images = files_of_bytes(20);
  write(images, 2);
  for (const ShardFiles::Pread pread : {fails_at_times, ends_at_times, in_small_pieces, changes_a_bit_at_times}) {
    const ImageDataset dataset = open(pread);
    bad_moments = 0;
    dataset.record(0);
    bad_moments = 2;
    Bytes bytes;
    dataset.read(7, bytes);
    EXPECT_EQ(bytes, images.records[7]);
    EXPECT_LE(bad_moments, pread == in_small_pieces ? 2 : 0);
    bad_moments = 0;
    expect_all(dataset, images);
  }
}

int stale_descriptor = -1;
ssize_t goes_stale(int descriptor, void* out, std::size_t size, off_t offset) {
  if (descriptor != stale_descriptor) return ::pread(descriptor, out, size, offset);
  errno = ESTALE;
  return -1;
}

TEST_F(ImageDatasetTest, AFileWhoseHandleWentStaleIsOpenedAnew) {
  const TestImages images = files_of_bytes(20);
  write(images, 1);
  const ImageDataset dataset = open(goes_stale);
  dataset.record(0);
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) == shard(0, 1)) stale_descriptor = std::stoi(entry.path().filename());
  }
  ASSERT_GE(stale_descriptor, 0);
  Bytes bytes;
  dataset.read(3, bytes);
  EXPECT_EQ(bytes, images.records[3]);
  stale_descriptor = -1;
}

TEST_F(ImageDatasetTest, ReadsThatKeepFailingNameFileAndRecord) {
  write(files_of_bytes(20), 2);
  const auto message = [&](ShardFiles::Pread pread, std::int64_t sample) {
    const ImageDataset dataset = open(pread);
    bad_moments = 0;
    dataset.record(sample);
    bad_moments = 1000;
    Bytes bytes;
    return message_of([&] { dataset.read(sample, bytes); });
  };
  expect_contains(message(fails_at_times, 13), "00001-of-00002.h5: record 3: 'images': cannot read at byte ");
  expect_contains(message(fails_at_times, 13), "Input/output error [tried 4 times: ");
  expect_contains(message(ends_at_times, 2), "00000-of-00002.h5: record 2: 'images' ends at byte ");
  expect_contains(message(changes_a_bit_at_times, 19), "00001-of-00002.h5: record 9 has a wrong CRC-32C");
  const ImageDataset dataset = open(fails_at_times);
  expect_contains(message_of([&] { dataset.record(0); }), "00000-of-00002.h5: 'offsets': cannot read at byte ");
  bad_moments = 0;
  EXPECT_EQ(dataset.record(1).label, 1);  // the file server came back
}

}  // namespace
}  // namespace ringtrain
