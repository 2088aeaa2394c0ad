// Tests the verifier's findings in data sets of images, and the import of arrays.
#include <gtest/gtest.h>

#include <numeric>

#include "base/hash.h"
#include "data_prep/images/formats.h"
#include "data_prep/images/import.h"
#include "tests/unit/hdf5_edit.h"
#include "tests/unit/image_folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class ImageVerify : public ImageFolder {
 protected:
  std::string shard(const std::string& split = "train") const {
    return path("out/set-" + split + "-00000-of-00001.h5");
  }
  void convert_again() {
    fs::remove_all(path("out"));
    convert(options());
  }
  // Changes one value of a data set in the converted file.
  template <class T>
  void change(const std::string& dataset, std::size_t at, T value, const std::string& split = "train") const {
    std::uint64_t begin = 0;
    {
      const h5::File file = h5::File::open(shard(split));
      const h5::Guard lock;
      const h5::Handle handle(H5Dopen2(file.id(), dataset.c_str(), H5P_DEFAULT), H5Dclose);
      begin = H5Dget_offset(handle.get());
    }
    std::fstream file(shard(split), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(begin + at * sizeof value));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  }
};

TEST_F(ImageVerify, EveryKindOfFaultIsNamedWithItsRecord) {
  put_classes(5, 2);
  convert(options());
  EXPECT_EQ(faults(), "");
  change<std::uint8_t>("images", 700, 0);
  change<std::int32_t>("labels", 3, 2);
  change<std::int32_t>("shapes", 3 * 4 + 1, 25);
  const std::vector<std::uint64_t> ids = h5::File::open(shard()).read<std::uint64_t>("sample_ids");
  change<std::uint64_t>("sample_ids", 1, ids[0]);
  const std::string found = faults();
  expect_contains(found, "of 'images' has a wrong CRC-32C");
  expect_contains(found, "record 3 has the label 2, but there are 2 classes");
  expect_contains(found,
                  "record 4 of 'images' is 20 x 24 x 3 (height x width x channels), but 'shapes' says 20 x 25 x 3");
  expect_contains(found, cat("sample id ", ids[0], " occurs more than once"));
}

TEST_F(ImageVerify, ARecordThatDoesNotDecodeIsNamedEvenWithARightChecksum) {
  put_classes(3, 0);
  convert(options());
  const h5::File file = h5::File::open(shard());
  const auto offsets = file.read<std::uint64_t>("offsets");
  Bytes images = file.read<std::uint8_t>("images");
  const std::size_t middle = (offsets[1] + offsets[2]) / 2;
  for (std::size_t i = middle; i < offsets[2]; ++i) {
    images[i] = 0;
    change<std::uint8_t>("images", i, 0);
  }
  const std::span<const std::uint8_t> all(images);
  change<std::uint32_t>("crc32c", 1, crc32c(all.subspan(offsets[1], offsets[2] - offsets[1])));
  const std::string found = faults();
  expect_contains(found, "record 1 of 'images' does not decode: libjpeg");
  EXPECT_EQ(found.find("CRC"), std::string::npos);
}

TEST_F(ImageVerify, SplitsAreComparedWithEachOther) {
  put_classes(3, 2);
  put("in/val/bee/copy.jpg", bytes_of_file(path("in/train/ant/1.jpg")));
  convert(options());
  EXPECT_EQ(faults(), "");
  expect_contains(summary(), "warning: 1 image(s) are in both splits");
  change<std::uint64_t>("sample_ids", 0, 0, "validation");
  expect_contains(faults(), "1 sample id(s), such as 0, are also in the training split");
}

TEST_F(ImageVerify, TruncatedFilesAndMissingShardsAreFaults) {
  put_classes(20, 0);
  ImagesOptions two = options();
  two.shards = 2;
  convert(two);
  const std::string second = path("out/set-train-00001-of-00002.h5");
  fs::resize_file(second, fs::file_size(second) - 1000);
  expect_contains(faults(), "set-train-00001-of-00002.h5");
  fs::remove(second);
  expect_contains(faults(), "shard 1 of 2 is missing");
  EXPECT_EQ(faults("out/set-train-00000-of-00002.h5"), "");
}

TEST_F(ImageVerify, ClassesAndKeysAreLookedAtToo) {
  put_classes(3, 2);
  convert(options());
  change<std::uint8_t>("class_ids", 0, 'x', "validation");
  expect_contains(faults(), "data set 'class_ids' differs from that of ");
  convert_again();
  for (std::size_t at = 0; at < 3; ++at) change<std::uint8_t>("class_ids", 3 + at, std::uint8_t("ant"[at]));
  expect_contains(faults(), "class id 'ant' occurs more than once");
  convert_again();
  edit(shard(), [](hid_t file) { replace_dataset(file, "keys", H5T_STD_I32LE, {6}); });
  expect_contains(faults(), "data set 'keys' is not 6 strings");
}

TEST_F(ImageVerify, WhatIsNoFaultIsAWarning) {
  put_classes(3, 2);
  convert(options());
  edit(shard("validation"), [](hid_t file) { set_attribute(file, "dataset_uuid", "other"); });
  edit(shard("validation"), [](hid_t file) { H5Ldelete(file, "crc32c", H5P_DEFAULT); });
  EXPECT_EQ(faults(), "");
  expect_contains(summary(), "come from two conversions (dataset_uuid)");
  expect_contains(summary(), "has no checksums (crc32c)");
}

class ArrayImport : public ImageFolder {
 protected:
  static constexpr std::int64_t count = 23, height = 6, width = 5;
  // Writes images "hwc" and "group/chw", chunked and compressed images "packed", and "grey" images. Also writes labels
  // "y", three labels "few", and JPEG files "encoded_images".
  std::string make_arrays() {
    std::vector<std::uint8_t> hwc, chw, grey;
    std::vector<std::int64_t> labels;
    for (std::int64_t i = 0; i < count; ++i) {
      const Image image = test_image(height, width, static_cast<std::uint64_t>(i));
      images_.push_back(image.pixels);
      hwc.insert(hwc.end(), image.pixels.begin(), image.pixels.end());
      for (std::size_t c = 0; c < 3; ++c)
        for (std::size_t at = c; at < image.pixels.size(); at += 3) chw.push_back(image.pixels[at]);
      labels.push_back(i * 7 % 4);
    }
    const std::size_t plane = height * width;
    for (std::int64_t i = 0; i < count; ++i)
      grey.insert(grey.end(), chw.begin() + static_cast<std::ptrdiff_t>(3 * plane * static_cast<std::size_t>(i)),
                  chw.begin() + static_cast<std::ptrdiff_t>(3 * plane * static_cast<std::size_t>(i) + plane));
    h5::File file = h5::File::create(path("a.h5"));
    using Span = std::span<const std::uint8_t>;
    file.write("hwc", Span(hwc), {count, height, width, 3});
    file.write("group/chw", Span(chw), {count, 3, height, width});
    file.write("grey", Span(grey), {count, height, width});
    file.write("y", std::span<const std::int64_t>(labels), {count, 1});
    file.write("few", std::span<const std::int64_t>(labels).first(3), {3});
    const h5::Guard lock;
    const hsize_t extent[4] = {count, 3, height, width}, chunk[4] = {4, 3, height, width};
    const h5::Handle space(H5Screate_simple(4, extent, nullptr), H5Sclose),
        creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation.get(), 4, chunk);
    H5Pset_deflate(creation.get(), 1);
    const h5::Handle packed(
        H5Dcreate2(file.id(), "packed", H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose);
    H5Dwrite(packed.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, chw.data());
    write_encoded(file);
    return file.path();
  }
  // Writes one whole file per image as variable-length bytes, as Fuel does.
  static void write_encoded(const h5::File& file) {
    std::vector<Bytes> jpegs;
    std::vector<hvl_t> values;
    for (std::uint64_t i = 0; i < count; ++i) jpegs.push_back(test_jpeg(8 + static_cast<std::int64_t>(i), 9, i));
    for (Bytes& jpeg : jpegs) values.push_back({jpeg.size(), jpeg.data()});
    const hsize_t extent = count;
    const h5::Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose),
        type(H5Tvlen_create(H5T_NATIVE_UINT8), H5Tclose);
    const h5::Handle set(
        H5Dcreate2(file.id(), "encoded_images", type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose);
    H5Dwrite(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
  ImportOptions import_options(const std::string& images, const std::string& out) const {
    ImportOptions result;
    result.input = path("a.h5");
    result.images = images;
    result.labels = "y";
    result.encoding.clear();
    result.out = path(out);
    result.threads = 2;
    return result;
  }
  ImagesReport import(const ImportOptions& given) {
    log_.str("");
    return import_arrays(given, Ranks(Ranks::Alone{}), log_);
  }

  std::vector<Bytes> images_;
};

TEST_F(ArrayImport, EveryLayoutGivesThePixelsAndLabelsOfTheArray) {
  make_arrays();
  for (const std::string name : {"hwc", "group/chw", "packed"}) {
    ImportOptions each = import_options(name, "out/" + fs::path(name).filename().string());
    each.memory_gib = name == "packed" ? 0 : 1;
    import(each);
    EXPECT_EQ(faults(each.out.substr(path("").size())), "");
    const auto records = stored("out/" + fs::path(name).filename().string() + "-train");
    for (std::int64_t i = 0; i < count; ++i) {
      const Stored& record = records.at(cat(name, "[", i, "]"));
      EXPECT_EQ(record.bytes, images_[static_cast<std::size_t>(i)]) << name << " " << i;
      EXPECT_EQ(record.label, i * 7 % 4);
    }
  }
  import(import_options("grey", "out/grey"));
  EXPECT_EQ(read_dataset_index(path("out/grey-train")).image.channels, 1);
  EXPECT_EQ(stored("out/grey-train").at("grey[2]").bytes[1], images_[2][3]);
}

TEST_F(ArrayImport, EncodedImagesKeepTheirBytes) {
  make_arrays();
  import(import_options("encoded_images", "out/set"));
  EXPECT_EQ(faults(), "");
  for (const auto& [key, record] : stored("out/set-train")) {
    const auto row = static_cast<std::uint64_t>(std::stoi(key.substr(key.find('[') + 1)));
    EXPECT_EQ(record.bytes, test_jpeg(8 + static_cast<std::int64_t>(row), 9, row));
  }
}

TEST_F(ArrayImport, RowsChooseTheSplits) {
  make_arrays();
  ImportOptions parts = import_options("hwc", "out/set");
  parts.validation_rows = ImportRows{20, 23};
  const ImagesReport report = import(parts);
  EXPECT_EQ(report.splits[train_split].samples, 20);
  EXPECT_EQ(stored("out/set-validation").count("hwc[21]"), 1u);
  EXPECT_EQ(faults(), "");
}

TEST_F(ArrayImport, ArraysThatAreNoImagesAreRefused) {
  make_arrays();
  const auto error_with = [&](const auto& change) {
    ImportOptions changed = import_options("hwc", "out/set");
    change(changed);
    return message_of([&] { import(changed); });
  };
  expect_contains(error_with([](auto& o) { o.images = "nothing"; }),
                  "has no data set 'nothing' [its data sets: encoded_images values of variable length (23), few i");
  expect_contains(error_with([](auto& o) { o.images = "y"; }), "'y' holds i64, not u8");
  expect_contains(error_with([](auto& o) { o.images = "group"; }), "'group' is not a data set");
  expect_contains(error_with([](auto& o) { o.labels = "few"; }), "'hwc' has 23 rows, but 'few' has 3");
  expect_contains(error_with([](auto& o) { o.labels = "hwc"; }), "expected (N), (N, 1) or (1, N)");
  expect_contains(error_with([](auto& o) { o.labels = ""; }), "--labels KEY is missing");
  expect_contains(error_with([](auto& o) { o.layout = "NCHW"; }), "does not fit --layout NCHW");
  expect_contains(error_with([](auto& o) { o.rows = ImportRows{5, 99}; }), "within the 23 rows");
  expect_contains(error_with([](auto& o) {
                    o.rows = ImportRows{0, 9}, o.validation_rows = ImportRows{8, 9};
                  }),
                  "overlap");
}

}  // namespace
}  // namespace ringtrain
