// Tests damaged files and files with impossible values. Each must give one Error of the program, not one of a library.
// Wrong values in the records of a run give no error: they count as missing.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/utf8.h"
#include "bench/preflight.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "data/hdf5.h"
#include "data/jpeg.h"
#include "data_prep/images/class_list.h"
#include "data_prep/images/formats.h"
#include "data_prep/images/record.h"
#include "parallel/arrivals_file.h"
#include "run/machine.h"
#include "run/metrics.h"
#include "run/run_record.h"
#include "study/trial_plan.h"
#include "study/trial_record.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/png_file.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class DamagedInput : public WithFolder {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
};

Checkpoint small_checkpoint() {
  Checkpoint checkpoint;
  checkpoint.step = 7;
  checkpoint.texts = {{"experiment", "name: x"}, {"vocabulary", "[\"a\", 195]"}};
  checkpoint.numbers = {{"samples", 12}, {"best_loss", 1.5}};
  checkpoint.arrays = {{"weights/a", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"weights/b", {1}, {7}}};
  return checkpoint;
}

void expect_same(const Checkpoint& found, const Checkpoint& wanted) {
  EXPECT_EQ(found.step, wanted.step);
  EXPECT_EQ(found.texts, wanted.texts);
  EXPECT_EQ(found.numbers, wanted.numbers);
  ASSERT_EQ(found.arrays.size(), wanted.arrays.size());
  for (std::size_t i = 0; i < found.arrays.size(); ++i) {
    EXPECT_EQ(found.arrays[i].shape, wanted.arrays[i].shape);
    EXPECT_EQ(found.arrays[i].values, wanted.arrays[i].values);
  }
}

// In HDF5's older formats, parts of the metadata have no checksum. If such a byte changes, libhdf5 can read through a
// null pointer. Checkpoints use the format of HDF5 1.8, whose metadata has checksums (File::create()).
TEST_F(DamagedInput, NoByteOfACheckpointChangesUnseen) {
  const std::string file = path("c.h5");
  write_checkpoint(file, small_checkpoint());
  std::ifstream in(file, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    if (good[at] == 0 && at % 61 != 0) continue;  // zeros are mostly the space between aligned arrays
    SCOPED_TRACE(at);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (at % 3 == 0 ? 1 : at % 3 == 1 ? 0x80 : 0xff));
    write("bad.h5", bad);
    try {
      expect_same(read_checkpoint(path("bad.h5")), small_checkpoint());
    } catch (const Error&) {
      ++refused;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 500);
}

TEST_F(DamagedInput, AnArrayLargerThanItsFileTakesNoMemory) {
  {
    h5::File file = h5::File::create(path("a.h5"));
    file.write<std::uint8_t>("x", std::vector<std::uint8_t>(8, 1), {8});
    file.close();
  }
  for (const std::vector<hsize_t>& shape : {std::vector<hsize_t>{hsize_t{1} << 45}, {1 << 20, 1 << 25}}) {
    edit(path("a.h5"), [&](hid_t file) { replace_dataset(file, "x", H5T_STD_U8LE, shape); });
    expect_contains(message_of([&] { h5::File::open(path("a.h5")).read<std::uint8_t>("x"); }),
                    "data set 'x' was never written");
  }
  edit(path("a.h5"), [&](hid_t file) {  // a chunk of 1 GiB in 16 bytes
    const hsize_t extent = 1 << 30, start = 0;
    const h5::Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose),
        how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(how.get(), 1, &extent);
    H5Pset_deflate(how.get(), 1);
    H5Ldelete(file, "x", H5P_DEFAULT);
    const h5::Handle made(H5Dcreate2(file, "x", H5T_STD_U8LE, space.get(), H5P_DEFAULT, how.get(), H5P_DEFAULT),
                          H5Dclose);
    ASSERT_GE(H5Dwrite_chunk(made.get(), H5P_DEFAULT, 0, &start, 16, "sixteen bytes..."), 0);
  });
  expect_contains(message_of([&] { h5::File::open(path("a.h5")).read<std::uint8_t>("x"); }),
                  "claims to hold 1073741824 bytes, more than its 16 stored bytes can");
  // A data set with an extent of 0 is empty, however large its other extents are.
  edit(path("a.h5"), [](hid_t file) {
    replace_dataset(file, "x", H5T_STD_U8LE, {hsize_t{1} << 61, 0, hsize_t{1} << 40});
  });
  EXPECT_TRUE(h5::File::open(path("a.h5")).read<std::uint8_t>("x").empty());
}

TEST_F(DamagedInput, WhatWasNeverWrittenIsNotReadAsZeros) {
  h5::File::create(path("a.h5")).close();
  const std::vector<std::uint8_t> ones(1000, 1);
  for (const bool has_first_chunk : {false, true}) {
    edit(path("a.h5"), [&](hid_t file) {
      const hsize_t extent = 100000, chunk = 1000, start = 0;
      const h5::Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose),
          memory(H5Screate_simple(1, &chunk, nullptr), H5Sclose), how(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
      H5Pset_chunk(how.get(), 1, &chunk);
      const h5::Handle made(H5Dcreate2(file, has_first_chunk ? "part" : "none", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                       how.get(), H5P_DEFAULT),
                            H5Dclose);
      if (!has_first_chunk) return;
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &chunk, nullptr);
      H5Dwrite(made.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT, ones.data());
    });
  }
  const h5::File file = h5::File::open(path("a.h5"));
  expect_contains(message_of([&] { file.read<std::uint8_t>("none"); }), "data set 'none' was never written");
  expect_contains(message_of([&] { file.read<std::uint8_t>("part"); }),
                  "data set 'part': rows 1000 to 99999 of 100000 were never written");
  EXPECT_EQ(h5::expect_stored(file, "part", {0, 1000}), 0);
}

TEST(DamagedPictures, SizesThatTheirBytesCannotHoldTakeNoMemory) {
  // The headers say 16,000 x 16,000 pixels. The data after them are those of a picture of 8 x 8 pixels.
  std::vector<std::uint8_t> jpeg = encode_jpeg({8, 8, 3, std::vector<std::uint8_t>(192)}, 90);
  for (std::size_t i = 0; i + 9 < jpeg.size(); ++i)
    if (jpeg[i] == 0xFF && jpeg[i + 1] == 0xC0)
      jpeg[i + 5] = jpeg[i + 7] = 16000 >> 8, jpeg[i + 6] = jpeg[i + 8] = 16000 & 255;
  expect_contains(message_of([&] { decode_jpeg(jpeg); }), "16000 x 16000 pixels, more than its");
  std::vector<std::uint8_t> png = encode_png({8, 8, 3, std::vector<std::uint8_t>(192)});
  std::vector<std::uint8_t> header(png.begin() + 12, png.begin() + 29);
  header[6] = header[10] = 16000 >> 8;
  header[7] = header[11] = 16000 & 255;
  std::uint32_t crc = 0xffffffff;
  for (const std::uint8_t byte : header) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  crc = ~crc;
  std::copy(header.begin(), header.end(), png.begin() + 12);
  for (int i = 0; i < 4; ++i) png[static_cast<std::size_t>(29 + i)] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
  expect_contains(message_of([&] { decode_png(png); }), "more pixels than its bytes can hold");
}

TEST(DamagedPictures, AShortFileOfAnotherKindIsNamed) {
  for (const std::string text : {"RIFF", "RIFF@\x01", "RIFF1234WEB", "II*", "G"}) {
    FoundImage found;
    found.bytes.assign(text.begin(), text.end());
    EXPECT_NE(message_of([&] { make_record(found, {}, true, nullptr); }), "(no error)") << text;
  }
}

TEST(DamagedClassList, OneLineDoesNotMakeAMillionClasses) {
  ClassList classes;
  expect_contains(message_of([&] {
                    labels_of({{"a.jpg", "1045131", 1}}, "list.txt", classes);
                  }),
                  "the label 1045131 is too large for 1 images, expected less than 10016");
  EXPECT_EQ(labels_of({{"a.jpg", "9999", 1}}, "list.txt", classes), std::vector<std::int32_t>{9999});
  EXPECT_EQ(classes.ids.size(), 10000U);
}

TEST(JsonInput, WholeNumbersFitOrAreNone) {
  EXPECT_EQ(integer_in<int>(Json(7)), 7);
  EXPECT_EQ(integer_in<int>(Json(-7)), -7);
  EXPECT_EQ(integer_in<int>(Json(7.9)), 7);
  EXPECT_EQ(integer_in<int>(Json(std::int64_t{1} << 31)), std::nullopt);
  EXPECT_EQ(integer_in<int>(Json(2147483647.5)), 2147483647);
  EXPECT_EQ(integer_in<int>(Json(2147483648.0)), std::nullopt);
  EXPECT_EQ(integer_in<unsigned char>(Json(256)), std::nullopt);
  EXPECT_EQ(integer_in<unsigned char>(Json(-1)), std::nullopt);
  EXPECT_EQ(integer_in<std::int64_t>(Json(1e300)), std::nullopt);
  EXPECT_EQ(integer_in<std::int64_t>(Json(9223372036854775808.0)), std::nullopt);
  EXPECT_EQ(integer_in<std::int64_t>(Json(-9223372036854775808.0)), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(integer_in<std::int64_t>(Json(std::numeric_limits<std::uint64_t>::max())), std::nullopt);
  EXPECT_EQ(integer_in<std::int64_t>(Json("7")), std::nullopt);
  expect_contains(message_of([] { integer_from<int>(Json("many")); }), "\"many\" is not a whole number of 32 bits");
}

TEST(JsonInput, DepthIsLimited) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_TRUE(parse_json(nested(deepest_json)).is_array());
  EXPECT_TRUE(parse_json(nested(deepest_json + 1)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1000000)).is_discarded());
  EXPECT_TRUE(parse_json("[\"" + std::string(1000, '[') + "\\\"[\", {\"]\": 1}]").is_array());
  EXPECT_TRUE(parse_json("[1,").is_discarded());
}

TEST_F(DamagedInput, FilesOfARunThatSayOtherThings) {
  const std::string folder = path("run");
  fs::create_directory(folder);
  write("run/run.json", R"({"starts": [1]})");
  EXPECT_FALSE(recorded_stop_cost(folder).has_value());
  EXPECT_TRUE(fs::exists(folder + "/run.json.damaged"));
  write("run/run.json", R"({"starts": [{"stop_cost": {"checkpoint_bytes": 1e300}}]})");
  EXPECT_FALSE(recorded_stop_cost(folder).has_value());
  write("run/run.json", R"({"starts": [], "final_step": 1e300, "outcome": "x"})");
  EXPECT_TRUE(measured_runs(path("")).empty());
  EXPECT_EQ(read_outcome(folder).final_step, 0);
  write("run/run.json", R"({"name": 7, "starts": [{}]})");
  record_end(folder, {});
  EXPECT_TRUE(fs::exists(folder + "/run.json"));
  write("run/metrics.jsonl",
        "{\"loss\": 1, \"step\": \"two\"}\n{\"loss\": 1, \"step\": 3}\n{\"loss\": 1, \"step\": 1e300}\n");
  EXPECT_EQ(recorded_steps(folder, 0, 0, 0).last, 3);
  write("run/metrics.jsonl", "{\"validation_loss\": 1, \"step\": [4]}\n");
  EXPECT_EQ(read_outcome(folder).best_step, 0);
  write("run/choices", std::string(100000, '[') + "\n1\n");
  EXPECT_EQ(read_choices(folder).head(), RunChoices().head());
  TrialRecord record;
  write("run/trial.json",
        R"({"state": "finished", "starts": 1e300, "outcome": {"best_step": 1e300, "final_step": "x"}})");
  ASSERT_TRUE(read_trial_record(folder, record));
  EXPECT_EQ(record.starts, 0);
  EXPECT_EQ(record.outcome->best_step, std::nullopt);
}

TEST_F(DamagedInput, ArrivalsAreNumbersThatFitTogether) {
  const std::string header = "step,update,worker,version,staleness,samples\n";
  EXPECT_EQ(read_arrivals(write("a.csv", header + "1,1,0,0,0,8\n2,2,1,0,1,16\n"), 1).size(), 1U);
  EXPECT_EQ(read_arrivals(write("a.csv", "step,update,worker,version,staleness\n1,1,0,0,0\n"), 0)[0].samples, 0);
  for (const std::string line :
       {"1,1,0,0", "1,1,0,0,0", "1,1,0,0,1,8", "1,1,0,0,0,8,0", "x,1,0,0,0,8", "-1,1,0,-2,0,8", "1 ,1,0,0,0,8",
        "1,1,0,0,0,-8", "99999999999999999999,1,0,0,0,8", "9223372036854775807,1,0,-9223372036854775808,-1,8"})
    expect_contains(message_of([&] { read_arrivals(write("a.csv", header + line + "\n"), 0); }), "line 2 is '");
  expect_contains(message_of([&] { read_arrivals(write("a.csv", header + "x\n"), 0, "parallel.replay: a.csv"); }),
                  "parallel.replay: a.csv, line 2 is 'x'");
  const std::string message = message_of([&] { read_arrivals(write("a.csv", std::string(5000, 'x') + "\n"), 0); });
  EXPECT_LT(message.size(), 500U) << message;
}

TEST(DamagedCheckpointTexts, AreNamed) {
  Checkpoint checkpoint = small_checkpoint();
  EXPECT_EQ(vocabulary_of(checkpoint), (std::vector<std::string>{"a", "\xc3"}));
  for (const char* bad : {"[256]", "[null]", "{}", "nothing", "[[1]]"}) {
    checkpoint.texts["vocabulary"] = bad;
    expect_contains(message_of([&] { vocabulary_of(checkpoint); }), "vocabulary is not a list of symbols");
  }
  checkpoint.texts.erase("vocabulary");
  expect_contains(message_of([&] { vocabulary_of(checkpoint); }), "without a text 'vocabulary'");
  expect_contains(message_of([&] { progress_of(checkpoint); }), "without a number 'epoch'");
  checkpoint.numbers["samples"] = 1e300;
  expect_contains(message_of([&] { progress_of(checkpoint); }), "samples is 1e+300, expected an integer");
}

TEST(DamagedPreflight, NumbersThatDoNotFitAreNamed) {
  const std::string begin = R"({"version": "1", "hosts": [], "ranks": )", end = R"(, "ranks_per_node": 1})";
  EXPECT_EQ(parse_preflight(begin + "3" + end, "p.json").ranks, 3);
  for (const char* bad : {"1e300", "4294967297", "\"x\"", "null"})
    expect_contains(message_of([&] { parse_preflight(begin + bad + end, "p.json"); }), "not a whole number of 32 bits");
  // Predictions divide by counts and add them.
  expect_contains(message_of([&] { parse_preflight(begin + "0" + end, "p.json"); }),
                  "p.json: \"ranks\" is 0, expected at least 1");
  expect_contains(message_of([&] { parse_preflight(begin + "2147483647" + end, "p.json"); }),
                  "\"ranks\" is 2147483647, expected at least 1 and at most 1000000000");
}

TEST(Utf8, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(printable("a\xe9 \xc3"), "a\\xe9 \\xc3");
  EXPECT_EQ(printable("a\x1b[31m\tb\n\x7f" + std::string(1, '\0') + "\xc3\xa9"), "a\\x1b[31m\tb\n\\x7f\\x00\xc3\xa9");
}

}  // namespace
}  // namespace ringtrain
