#include "data/image_dataset.h"

#include <atomic>
#include <mutex>

#include "base/crc32c.h"
#include "base/error.h"
#include "data/hdf5.h"
#include "data/shard_header.h"

namespace ringtrain {
namespace {

constexpr const char* damaged = "the file is damaged: copy or convert it again";

}  // namespace

struct ImageDataset::State {
  struct Shard {
    std::vector<std::uint64_t> offsets;  // of records that are JPEG files, one more than there are
    std::vector<std::int32_t> labels;
    std::vector<std::uint64_t> sample_ids;
    std::vector<std::uint32_t> crc32c;  // empty: the file has none
    std::atomic<bool> loaded = false;
    std::mutex loading;
  };
  struct Place {
    std::size_t shard, record;
  };

  State(DatasetIndex given, ShardFiles::Pread pread)
      : index(std::move(given)), files(index.shards, pread), shards(index.shards.size()) {}

  template <class T>
  std::vector<T> read_array(std::size_t which, const char* name, std::uint64_t address, std::int64_t count) {
    const std::string& path = index.shards[which].path;
    std::vector<T> values;
    if (address == no_byte_offset) {
      values = h5::File::open(path).read<T>(name);
    } else {
      values.resize(static_cast<std::size_t>(count));
      files.read(which, address, {reinterpret_cast<std::uint8_t*>(values.data()), values.size() * sizeof(T)}, name);
    }
    if (static_cast<std::int64_t>(values.size()) != count) {
      throw Error(cat(path, ": data set '", name, "' has ", values.size(), " values, expected ", count),
                  "the file was changed during the run");
    }
    return values;
  }

  void check_shapes(std::size_t which) {
    const DatasetIndex::Shard& entry = index.shards[which];
    const ImageFormat& format = index.image;
    const auto shapes = read_array<std::int32_t>(which, "shapes", entry.arrays.shapes, 3 * entry.count);
    for (std::size_t i = 0; 3 * i < shapes.size(); ++i) {
      const std::int32_t height = shapes[3 * i], width = shapes[3 * i + 1], channels = shapes[3 * i + 2];
      const bool good = format.raw ? height == format.height && width == format.width && channels == format.channels
                                   : height > 0 && width > 0 && (channels == 1 || channels == 3);
      if (good) continue;
      throw Error(cat(entry.path, ": record ", i, " has the shape [", height, ", ", width, ", ", channels,
                      "] in 'shapes', expected ",
                      format.raw ? cat("[", format.height, ", ", format.width, ", ", format.channels, "]")
                                 : std::string("[height, width, 1 or 3]")),
                  damaged);
    }
  }

  void load(std::size_t which) {
    Shard& shard = shards[which];
    const std::lock_guard<std::mutex> lock(shard.loading);
    if (shard.loaded.load(std::memory_order_acquire)) return;
    const DatasetIndex::Shard& entry = index.shards[which];
    const ImageArrays& arrays = entry.arrays;
    files.check(which);
    if (!index.image.raw) {
      shard.offsets = read_array<std::uint64_t>(which, "offsets", arrays.offsets, entry.count + 1);
      check_image_offsets(entry.path, shard.offsets, arrays.image_bytes);
    }
    shard.labels = read_array<std::int32_t>(which, "labels", arrays.labels, entry.count);
    for (std::size_t i = 0; i < shard.labels.size(); ++i) {
      if (shard.labels[i] >= 0 && shard.labels[i] < index.image.num_classes()) continue;
      throw Error(cat(entry.path, ": record ", i, " has the label ", shard.labels[i], ", but there are ",
                      index.image.num_classes(), " classes"),
                  damaged);
    }
    check_shapes(which);
    shard.sample_ids = read_array<std::uint64_t>(which, "sample_ids", arrays.sample_ids, entry.count);
    if (arrays.has_crc32c) shard.crc32c = read_array<std::uint32_t>(which, "crc32c", arrays.crc32c, entry.count);
    shard.loaded.store(true, std::memory_order_release);
  }

  Place find(std::int64_t sample) const {
    if (sample < 0 || sample >= index.total) {
      throw Error(cat("image ", sample, " asked for; ", index.prefix, " has ", index.total));
    }
    const std::size_t which = index.shard_of(sample);
    return {which, static_cast<std::size_t>(sample - index.shards[which].first)};
  }

  const Shard& loaded(std::size_t which) {
    if (!shards[which].loaded.load(std::memory_order_acquire)) load(which);
    return shards[which];
  }

  std::int64_t bytes_of(const Shard& shard, std::size_t record) const {
    if (index.image.raw) return index.image.raw_record_bytes();
    return static_cast<std::int64_t>(shard.offsets[record + 1] - shard.offsets[record]);
  }

  void read(const Place& at, const Shard& shard, std::span<std::uint8_t> out) {
    const DatasetIndex::Shard& entry = index.shards[at.shard];
    const ImageFormat& format = index.image;
    const auto record = static_cast<std::int64_t>(at.record);
    const std::uint64_t begin =
        format.raw ? at.record * static_cast<std::uint64_t>(format.raw_record_bytes()) : shard.offsets[at.record];
    if (entry.byte_offset != no_byte_offset) {
      files.read(at.shard, entry.byte_offset + begin, out, "images", record);
    } else if (format.raw) {
      files.read_block(at.shard, "images", {record, 0, 0, 0}, {1, format.height, format.width, format.channels}, out);
    } else {
      files.read_block(at.shard, "images", {static_cast<std::int64_t>(begin)}, {static_cast<std::int64_t>(out.size())},
                       out);
    }
  }

  DatasetIndex index;
  ShardFiles files;
  std::vector<Shard> shards;
};

ImageDataset::ImageDataset(DatasetIndex index, ShardFiles::Pread pread)
    : state_(std::make_unique<State>(std::move(index), pread)) {}
ImageDataset::~ImageDataset() = default;

const DatasetIndex& ImageDataset::index() const {
  return state_->index;
}

ImageDataset::Record ImageDataset::record(std::int64_t sample) const {
  const State::Place at = state_->find(sample);
  const State::Shard& shard = state_->loaded(at.shard);
  return {shard.labels[at.record], shard.sample_ids[at.record], state_->bytes_of(shard, at.record)};
}

void ImageDataset::read(std::int64_t sample, std::vector<std::uint8_t>& out) const {
  const State::Place at = state_->find(sample);
  const State::Shard& shard = state_->loaded(at.shard);
  out.resize(static_cast<std::size_t>(state_->bytes_of(shard, at.record)));
  for (int retries_left = read_retries;; --retries_left) {
    state_->read(at, shard, out);
    if (shard.crc32c.empty() || crc32c(out) == shard.crc32c[at.record]) return;
    if (retries_left == 0) break;
    pause_before_retry();  // a second look tells a bad disk from a bad moment
  }
  throw Error(cat(name_of(sample), " has a wrong CRC-32C"),
              cat(damaged, "; bin/ringtrain-data verify ", state_->index.prefix, " lists all faults"));
}

std::string ImageDataset::name_of(std::int64_t sample) const {
  const State::Place at = state_->find(sample);
  return cat(state_->index.shards[at.shard].path, ": record ", at.record);
}

std::int64_t ImageDataset::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const DatasetIndex::Shard& entry : state_->index.shards) {
    std::int64_t per_sample = sizeof(std::int32_t) + sizeof(std::uint64_t);
    if (entry.arrays.has_crc32c) per_sample += sizeof(std::uint32_t);
    bytes += per_sample * entry.count + static_cast<std::int64_t>(sizeof(State::Shard));
    if (!state_->index.image.raw) bytes += static_cast<std::int64_t>(sizeof(std::uint64_t)) * (entry.count + 1);
  }
  return bytes;
}

}  // namespace ringtrain
