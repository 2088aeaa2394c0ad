// Writes small data sets of kind "image" according to the schema, for tests of the reader.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "data/hdf5.h"
#include "data/jpeg.h"
#include "data/shard_files.h"
#include "data/shard_header.h"

namespace ringtrain {

struct TestImages {
  bool raw = true;
  std::int64_t height = 6, width = 5, channels = 3;  // size of raw images
  std::vector<std::vector<std::uint8_t>> records;
  std::int64_t classes = 7;
  std::vector<std::int32_t> labels;  // sample i has i mod classes, unless given
  bool with_checksums = true;
};

// Makes raw images whose pixels differ from sample to sample.
inline TestImages raw_images(std::int64_t samples, std::int64_t height = 6, std::int64_t width = 5,
                             std::int64_t channels = 3) {
  TestImages images;
  images.height = height;
  images.width = width;
  images.channels = channels;
  for (std::int64_t i = 0; i < samples; ++i) {
    std::vector<std::uint8_t> record(static_cast<std::size_t>(height * width * channels));
    for (std::size_t j = 0; j < record.size(); ++j)
      record[j] = static_cast<std::uint8_t>(philox(static_cast<std::uint64_t>(i), j, 7).v[0]);
    images.records.push_back(std::move(record));
  }
  return images;
}

inline std::uint64_t test_sample_id(std::int64_t sample) {
  return static_cast<std::uint64_t>(1000 + 3 * sample);
}

inline void write_real_attribute(hid_t file, const char* name, const std::vector<double>& values) {
  if (H5Aexists(file, name) > 0) H5Adelete(file, name);
  const hsize_t extent = values.size();
  const h5::Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const h5::Handle attribute(H5Acreate2(file, name, H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  H5Awrite(attribute.get(), H5T_NATIVE_DOUBLE, values.data());
}

inline void write_string_dataset(hid_t file, const char* name, const std::vector<std::string>& values) {
  std::size_t length = 1;
  for (const std::string& value : values) length = std::max(length, value.size());
  std::string bytes;
  for (const std::string& value : values) bytes += value + std::string(length - value.size(), '\0');
  const h5::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), length);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  const hsize_t extent = values.size();
  const h5::Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const h5::Handle made(H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                        H5Dclose);
  H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
}

// Returns a record's height, width and channels. Some tests have records that are no JPEG files.
inline std::array<std::int64_t, 3> shape_of(const TestImages& images, const std::vector<std::uint8_t>& record) {
  const bool is_jpeg = !images.raw && record.size() > 1 && record[0] == 0xff && record[1] == 0xd8;
  if (!is_jpeg) return {images.height, images.width, images.channels};
  const JpegHeader jpeg = read_jpeg_header(record);
  return {jpeg.height, jpeg.width, jpeg.components};
}

// Writes the samples [first, last) as one file.
inline void write_image_shard(const std::string& path, const TestImages& images, std::size_t first, std::size_t last,
                              std::int64_t shard, std::int64_t shards) {
  const h5::Guard lock;
  h5::File file = h5::File::create(path);
  const auto n = static_cast<std::int64_t>(last - first);
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint64_t> offsets = {0}, ids;
  std::vector<std::int32_t> labels, shapes;
  std::vector<std::uint32_t> checksums;
  for (std::size_t i = first; i < last; ++i) {
    const std::vector<std::uint8_t>& record = images.records[i];
    bytes.insert(bytes.end(), record.begin(), record.end());
    offsets.push_back(bytes.size());
    const auto sample = static_cast<std::int64_t>(i);
    ids.push_back(test_sample_id(sample));
    labels.push_back(images.labels.empty() ? static_cast<std::int32_t>(sample % images.classes) : images.labels[i]);
    for (const std::int64_t side : shape_of(images, record)) shapes.push_back(static_cast<std::int32_t>(side));
    checksums.push_back(crc32c(record));
  }
  using Bytes = std::span<const std::uint8_t>;
  if (images.raw) {
    file.write("images", Bytes(bytes), {n, images.height, images.width, images.channels});
    file.write_attribute("images", "layout", "NHWC");
  } else {
    file.write("images", Bytes(bytes), {static_cast<std::int64_t>(bytes.size())});
    file.write("offsets", std::span<const std::uint64_t>(offsets), {n + 1});
  }
  file.write_attribute("images", "encoding", images.raw ? "raw" : "jpeg");
  file.write("labels", std::span<const std::int32_t>(labels), {n});
  file.write("shapes", std::span<const std::int32_t>(shapes), {n, 3});
  file.write("sample_ids", std::span<const std::uint64_t>(ids), {n});
  if (images.with_checksums) file.write("crc32c", std::span<const std::uint32_t>(checksums), {n});
  std::vector<std::string> names, class_ids;
  for (std::int64_t k = 0; k < images.classes; ++k) {
    names.push_back("class " + std::to_string(k));
    class_ids.push_back("n" + std::to_string(k));
  }
  write_string_dataset(file.id(), "class_names", names);
  write_string_dataset(file.id(), "class_ids", class_ids);
  file.write_attribute("/", "schema", "ringtrain");
  file.write_integers("/", "schema_version", {1, 0});
  for (const auto& [name, value] : {std::pair{"kind", "image"}, {"split", "train"}, {"dataset_name", "squares"}})
    file.write_attribute("/", name, value);
  file.write_attribute("/", "dataset_uuid", "1234");
  file.write_attribute("/", "num_samples", n);
  file.write_attribute("/", "num_samples_total", static_cast<std::int64_t>(images.records.size()));
  file.write_attribute("/", "shard_index", shard);
  file.write_attribute("/", "num_shards", shards);
  file.write_attribute("/", "num_classes", images.classes);
  write_real_attribute(file.id(), "mean", {0.5, 0.25, 0.125});
  write_real_attribute(file.id(), "std", {0.25, 0.5, 1});
  file.write_attribute("/", "complete", std::int64_t{1});
  file.close();
}

// Splits the samples into contiguous shards whose sizes differ by at most one.
inline void write_image_shards(const std::string& prefix, const TestImages& images, std::int64_t shards) {
  const auto count = static_cast<std::int64_t>(images.records.size());
  for (std::int64_t i = 0; i < shards; ++i) {
    write_image_shard(shard_path(prefix, i, shards), images, static_cast<std::size_t>(count * i / shards),
                      static_cast<std::size_t>(count * (i + 1) / shards), i, shards);
  }
}

}  // namespace ringtrain
