// A fixture that makes small images and converts them.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "data/hdf5.h"
#include "data/image_dataset.h"
#include "data/jpeg.h"
#include "data_prep/images/convert.h"
#include "data_prep/verify.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {

using Bytes = std::vector<std::uint8_t>;

// Returns an image of smooth colours with some noise. Its pixels depend only on the arguments.
inline Image test_image(std::int64_t height, std::int64_t width, std::uint64_t seed, std::int64_t channels = 3) {
  Image image{height, width, channels, {}};
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t c = 0; c < channels; ++c) {
        const auto at = static_cast<std::uint64_t>((y * width + x) * channels + c);
        const auto slope = static_cast<std::uint64_t>(2 * y + 3 * x + 50 * c) + 17 * seed;
        image.pixels.push_back(static_cast<std::uint8_t>((slope + philox(seed, at, 3).v[0] % 24) % 256));
      }
  return image;
}

inline Bytes test_jpeg(std::int64_t height, std::int64_t width, std::uint64_t seed) {
  return encode_jpeg(test_image(height, width, seed), 90);
}

inline Bytes bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class ImageFolder : public WithFolder {
 protected:
  struct Stored {
    Bytes bytes;
    std::int32_t label = 0;
    std::uint64_t sample_id = 0;
    bool operator==(const Stored&) const = default;
  };

  std::string put(const std::string& name, const Bytes& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }
  std::string put_text(const std::string& name, const std::string& text) const {
    return put(name, Bytes(text.begin(), text.end()));
  }
  // Writes in/train/{ant,bee}/*.jpg and in/val/... with `train` and `validation` images of each class.
  void put_classes(int train, int validation) const {
    std::uint64_t seed = 0;
    for (const std::string name : {"ant", "bee"}) {
      for (int i = 0; i < train; ++i) put(cat("in/train/", name, "/", i, ".jpg"), test_jpeg(20, 24, ++seed));
      for (int i = 0; i < validation; ++i) put(cat("in/val/", name, "/", i, ".jpg"), test_jpeg(16, 30, ++seed));
    }
  }
  ImagesOptions options(const std::string& out = "out/set") const {
    ImagesOptions result;
    result.input = path("in");
    result.out = path(out);
    result.threads = 2;
    return result;
  }
  ImagesReport convert(const ImagesOptions& given) {
    log_.str("");
    return convert_images(given, Ranks(Ranks::Alone{}), log_);
  }
  std::string error_of(const ImagesOptions& given) {
    return message_of([&] { convert(given); });
  }
  // Returns the images by key. The reader that training uses reads them.
  std::map<std::string, Stored> stored(const std::string& prefix) const {
    std::map<std::string, Stored> result;
    const ImageDataset dataset(read_dataset_index(path(prefix)));
    std::int64_t sample = 0;
    for (const std::string& key : keys(prefix)) {
      Stored& each = result[key];
      dataset.read(sample, each.bytes);
      each.label = dataset.record(sample).label;
      each.sample_id = dataset.record(sample++).sample_id;
    }
    return result;
  }
  // Returns the keys in the order on disk.
  std::vector<std::string> keys(const std::string& prefix) const {
    std::vector<std::string> result;
    for (const DatasetIndex::Shard& shard : read_dataset_index(path(prefix)).shards) {
      const h5::File file = h5::File::open(shard.path);
      const h5::Guard lock;
      const h5::Handle keys(H5Dopen2(file.id(), "keys", H5P_DEFAULT), H5Dclose);
      const h5::Handle type(H5Dget_type(keys.get()), H5Tclose);
      const std::size_t length = H5Tget_size(type.get());
      std::string text(static_cast<std::size_t>(shard.count) * length, '\0');
      H5Dread(keys.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data());
      for (std::size_t at = 0; at < text.size(); at += length) result.emplace_back(text.substr(at, length).c_str());
    }
    return result;
  }
  // Returns the bytes of every file in a folder, by file name. The folder holds no folders.
  std::map<std::string, Bytes> files(const std::string& folder) const {
    std::map<std::string, Bytes> result;
    for (const auto& entry : std::filesystem::directory_iterator(path(folder)))
      result[entry.path().filename().string()] = bytes_of_file(entry.path().string());
    return result;
  }
  std::string faults(const std::string& prefix = "out/set") const {
    std::string text;
    for (const std::string& fault : verify_dataset(path(prefix)).faults) text += fault + "\n";
    return text;
  }
  std::string summary(const std::string& prefix = "out/set") const {
    std::string text;
    for (const std::string& line : verify_dataset(path(prefix)).summary) text += line + "\n";
    return text;
  }

  std::ostringstream log_;
};

}  // namespace ringtrain
