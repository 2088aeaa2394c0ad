#include "data/dataset.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/fields.h"
#include "data/image_dataset.h"
#include "data/shard_files.h"
#include "data/shard_header.h"
#include "data/text_dataset.h"

namespace ringtrain {
namespace {

constexpr char index_version = 2;
constexpr const char* index_magic = "RTDX";

// Lists the fields for both directions.
template <class Archive, class Index>
void transfer(Archive& archive, Index& index) {
  archive(index.prefix, index.kind, index.split, index.dataset_name, index.dataset_uuid, index.text.running_text,
          index.total);
  auto& text = index.text;
  archive(text.context_length, text.crc_block_bytes, text.vocabulary, text.pad_id, text.stop_id, text.lowercase);
  auto& image = index.image;
  archive(image.raw, image.height, image.width, image.channels);
  archive(image.class_names, image.class_ids, image.mean, image.std);
  archive.each(index.shards, [&](auto& shard) {
    archive(shard.path, shard.first, shard.count, shard.byte_offset, shard.file_bytes, shard.start_crc32c,
            shard.crc32c);
    auto& arrays = shard.arrays;
    archive(arrays.offsets, arrays.labels, arrays.shapes, arrays.sample_ids, arrays.crc32c, arrays.has_crc32c,
            arrays.image_bytes, arrays.largest_record);
  });
}

}  // namespace

std::string DatasetIndex::serialize() const {
  FieldWriter writer;
  transfer(writer, *this);
  return cat(index_magic, index_version, writer.take());
}

DatasetIndex DatasetIndex::deserialize(const std::string& bytes) {
  const std::size_t start = std::strlen(index_magic);
  if (bytes.size() <= start || bytes.compare(0, start, index_magic) != 0 || bytes[start] != index_version) {
    throw Error("a data set index of another version of the program was received",
                "start the same executable on every rank");
  }
  FieldReader reader(std::string_view(bytes).substr(start + 1), "a data set index");
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

DatasetIndex read_dataset_index(const std::string& prefix) {
  std::vector<ShardHeader> headers;
  for (const std::string& path : find_shards(prefix)) headers.push_back(read_shard_header(path));
  check_shards_agree(headers);
  return make_dataset_index(prefix, headers);
}

std::int64_t dataset_bytes(const DatasetIndex& index) {
  return index.is_image() ? ImageDataset::bytes_of(index) : TextDataset::bytes_of(index);
}

std::shared_ptr<const Dataset> make_dataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory) {
  if (index.is_image()) return std::make_shared<ImageDataset>(std::move(index), std::move(memory));
  return std::make_shared<TextDataset>(std::move(index), std::move(memory));
}

}  // namespace ringtrain
