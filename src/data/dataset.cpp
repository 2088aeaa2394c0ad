#include "data/dataset.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/image_dataset.h"

namespace ringtrain {
namespace {

constexpr std::uint8_t index_version = 2;
constexpr const char* index_magic = "RTDX";

// Lists the fields for both directions, so that reading and writing always agree.
template <class Archive, class Index>
void transfer(Archive& archive, Index& index) {
  archive(index.prefix), archive(index.kind), archive(index.split), archive(index.dataset_name);
  archive(index.dataset_uuid), archive(index.text.running_text), archive(index.total),
      archive(index.text.context_length);
  archive(index.text.crc_block_bytes), archive(index.text.vocabulary), archive(index.text.pad_id),
      archive(index.text.stop_id);
  archive(index.text.lowercase);
  archive(index.image.raw), archive(index.image.height), archive(index.image.width), archive(index.image.channels);
  archive(index.image.class_names), archive(index.image.class_ids), archive(index.image.mean), archive(index.image.std);
  archive.each(index.shards, [&](auto& shard) {
    archive(shard.path), archive(shard.first), archive(shard.count), archive(shard.byte_offset);
    archive(shard.file_bytes), archive(shard.start_crc32c), archive(shard.crc32c);
    auto& arrays = shard.arrays;
    archive(arrays.offsets), archive(arrays.labels), archive(arrays.shapes), archive(arrays.sample_ids);
    archive(arrays.crc32c), archive(arrays.has_crc32c), archive(arrays.image_bytes), archive(arrays.largest_record);
  });
}

class IndexWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void operator()(const std::string& text) {
    (*this)(std::uint64_t{text.size()});
    bytes += text;
  }
  template <class T>
  void operator()(const std::vector<T>& values) {
    each(values, [&](const T& value) { (*this)(value); });
  }
  template <class T, class Action>
  void each(const std::vector<T>& values, const Action& action) {
    (*this)(std::uint64_t{values.size()});
    for (const T& value : values) action(value);
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) { std::memcpy(&value, take(sizeof value), sizeof value); }
  void operator()(std::string& text) {
    const std::size_t size = length();
    text.assign(take(size), size);
  }
  template <class T>
  void operator()(std::vector<T>& values) {
    each(values, [&](T& value) { (*this)(value); });
  }
  template <class T, class Action>
  void each(std::vector<T>& values, const Action& action) {
    values.resize(length());
    for (T& value : values) action(value);
  }
  bool at_end() const { return position_ == bytes_.size(); }

 private:
  std::size_t length() {
    std::uint64_t size = 0;
    (*this)(size);
    if (size > bytes_.size() - position_) throw Error("a data set index was received incomplete");
    return size;
  }
  const char* take(std::size_t size) {
    if (size > bytes_.size() - position_) throw Error("a data set index was received incomplete");
    position_ += size;
    return bytes_.data() + position_ - size;
  }
  const std::string& bytes_;
  std::size_t position_ = 0;
};

}  // namespace

std::string DatasetIndex::serialize() const {
  IndexWriter writer;
  writer.bytes = index_magic;
  writer(index_version);
  transfer(writer, *this);
  return std::move(writer.bytes);
}

DatasetIndex DatasetIndex::deserialize(const std::string& bytes) {
  const std::size_t start = std::strlen(index_magic);
  if (bytes.size() <= start || bytes.compare(0, start, index_magic) != 0 ||
      static_cast<std::uint8_t>(bytes[start]) != index_version) {
    throw Error("a data set index of another version of the program was received",
                "start the same executable on every rank");
  }
  const std::string fields = bytes.substr(start + 1);
  Reader reader(fields);
  DatasetIndex index;
  transfer(reader, index);
  if (!reader.at_end()) throw Error("a data set index was received with bytes left over");
  return index;
}

std::size_t DatasetIndex::shard_of(std::int64_t position) const {
  const auto after = std::upper_bound(shards.begin(), shards.end(), position,
                                      [](std::int64_t p, const Shard& shard) { return p < shard.first; });
  return static_cast<std::size_t>(after - shards.begin()) - 1;
}

std::int64_t DatasetIndex::largest_record() const {
  std::int64_t bytes = 0;
  for (const Shard& shard : shards) bytes = std::max(bytes, shard.arrays.largest_record);
  return bytes;
}

std::int64_t DatasetIndex::image_bytes() const {
  std::int64_t bytes = 0;
  for (const Shard& shard : shards) bytes += shard.arrays.image_bytes;
  return bytes;
}

std::int64_t dataset_bytes(const DatasetIndex& index) {
  return index.is_image() ? ImageDataset::bytes_of(index) : TextDataset::bytes_of(index);
}

std::shared_ptr<const Dataset> make_dataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory) {
  if (index.is_image()) return std::make_shared<ImageDataset>(std::move(index), std::move(memory));
  return std::make_shared<TextDataset>(std::move(index), std::move(memory));
}

}  // namespace ringtrain
