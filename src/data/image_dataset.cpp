#include "data/image_dataset.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/shared_memory.h"
#include "data/hdf5.h"
#include "data/shard_files.h"
#include "data/shard_header.h"

namespace ringtrain {
namespace {

constexpr const char* damaged = "the file is damaged: copy or convert it again";

}  // namespace

struct ImageDataset::State {
  // The tables of one shard, in memory that other processes may share.
  struct Shard {
    std::span<std::uint64_t> loaded;   // one value; 1: the whole shard is loaded
    std::span<std::uint64_t> offsets;  // offsets of JPEG records; number of records + 1
    std::span<std::uint64_t> sample_ids;
    std::span<std::int32_t> labels;
    std::span<std::int32_t> shapes;   // of JPEG records: height, width, channels of each
    std::span<std::uint32_t> crc32c;  // empty: the file has none
  };
  struct Place {
    std::size_t shard, record;
  };

  State(const DatasetIndex& given, std::shared_ptr<SharedMemory> shared, ShardFiles::Pread pread)
      : index(given),
        files(index.shards, pread),
        memory(shared ? std::move(shared) : std::make_shared<SharedMemory>(bytes_of(index))) {
    MemoryPlaces places(memory->bytes().data());
    for (const DatasetIndex::Shard& entry : index.shards) shards.push_back(place(places, index, entry));
  }

  static Shard place(MemoryPlaces& places, const DatasetIndex& index, const DatasetIndex::Shard& entry) {
    Shard shard{.loaded = places.take<std::uint64_t>(1),
                .offsets = places.take<std::uint64_t>(index.image.raw ? 0 : entry.count + 1),
                .sample_ids = places.take<std::uint64_t>(entry.count),
                .labels = places.take<std::int32_t>(entry.count),
                .shapes = places.take<std::int32_t>(index.image.raw ? 0 : 3 * entry.count),
                .crc32c = places.take<std::uint32_t>(entry.arrays.has_crc32c ? entry.count : 0)};
    places.pad(alignof(std::uint64_t));
    return shard;
  }

  static std::size_t bytes_of(const DatasetIndex& index) {
    MemoryPlaces places(nullptr);
    for (const DatasetIndex::Shard& entry : index.shards) place(places, index, entry);
    return places.bytes();
  }

  void check_shapes(std::size_t which) {
    const DatasetIndex::Shard& entry = index.shards[which];
    const ImageFormat& format = index.image;
    std::vector<std::int32_t> shapes(static_cast<std::size_t>(3 * entry.count));
    files.read_array(which, "shapes", entry.arrays.shapes, std::span(shapes));
    if (!format.raw) std::ranges::copy(shapes, shards[which].shapes.begin());
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

  bool is_loaded(std::size_t which) const {
    return std::atomic_ref(shards[which].loaded[0]).load(std::memory_order_acquire) != 0;
  }

  // One thread of one process reads the shard and checks it before other threads and processes see it. If it fails, the
  // next thread tries and finds the same fault.
  void load(std::size_t which) {
    const Shard& shard = shards[which];
    const SharedMemory::Lock lock(*memory, which);
    if (is_loaded(which)) return;
    const DatasetIndex::Shard& entry = index.shards[which];
    const ImageArrays& arrays = entry.arrays;
    files.check(which);
    if (!index.image.raw) {
      files.read_array(which, "offsets", arrays.offsets, shard.offsets);
      check_image_offsets(entry.path, shard.offsets, arrays.image_bytes);
    }
    files.read_array(which, "labels", arrays.labels, shard.labels);
    for (std::size_t i = 0; i < shard.labels.size(); ++i) {
      if (shard.labels[i] >= 0 && shard.labels[i] < index.image.num_classes()) continue;
      throw Error(cat(entry.path, ": record ", i, " has the label ", shard.labels[i], ", but there are ",
                      index.image.num_classes(), " classes"),
                  damaged);
    }
    check_shapes(which);
    files.read_array(which, "sample_ids", arrays.sample_ids, shard.sample_ids);
    if (arrays.has_crc32c) files.read_array(which, "crc32c", arrays.crc32c, shard.crc32c);
    std::atomic_ref(shard.loaded[0]).store(1, std::memory_order_release);
  }

  Place find(std::int64_t sample) const {
    if (sample < 0 || sample >= index.total) {
      throw Error(cat("image ", sample, " was asked for, but ", index.prefix, " has only ", index.total));
    }
    const std::size_t which = index.shard_of(sample);
    return {which, static_cast<std::size_t>(sample - index.shards[which].first)};
  }

  const Shard& loaded(std::size_t which) {
    if (!is_loaded(which)) load(which);
    return shards[which];
  }

  std::int64_t bytes_of(const Shard& shard, std::size_t record) const {
    if (index.image.raw) return index.image.raw_record_bytes();
    return static_cast<std::int64_t>(shard.offsets[record + 1] - shard.offsets[record]);
  }

  void read(const Place& at, const Shard& shard, std::span<std::uint8_t> out) {
    read_image_record(files, index, at.shard, at.record, index.image.raw ? 0 : shard.offsets[at.record], out);
  }

  const DatasetIndex& index;
  ShardFiles files;
  std::shared_ptr<SharedMemory> memory;
  std::vector<Shard> shards;
};

void read_image_record(ShardFiles& files, const DatasetIndex& index, std::size_t shard, std::size_t record,
                       std::uint64_t offset, std::span<std::uint8_t> out) {
  const DatasetIndex::Shard& entry = index.shards[shard];
  const ImageFormat& format = index.image;
  const auto number = static_cast<std::int64_t>(record);
  const std::uint64_t begin = format.raw ? record * static_cast<std::uint64_t>(format.raw_record_bytes()) : offset;
  if (entry.byte_offset != no_byte_offset) {
    files.read(shard, entry.byte_offset + begin, out, "images", number);
  } else if (format.raw) {
    files.read_rows(shard, "images", {1, format.height, format.width, format.channels}, number, out);
  } else {
    files.read_rows(shard, "images", {static_cast<std::int64_t>(out.size())}, static_cast<std::int64_t>(begin), out);
  }
}

ImageDataset::ImageDataset(DatasetIndex index, std::shared_ptr<SharedMemory> memory, ShardFiles::Pread pread)
    : Dataset(std::move(index)), state_(std::make_unique<State>(index_, std::move(memory), pread)) {}
ImageDataset::~ImageDataset() = default;

ImageDataset::Record ImageDataset::record(std::int64_t sample) const {
  const State::Place at = state_->find(sample);
  const State::Shard& shard = state_->loaded(at.shard);
  Record record{shard.labels[at.record], shard.sample_ids[at.record], state_->bytes_of(shard, at.record), {}};
  if (!shard.shapes.empty()) std::ranges::copy(shard.shapes.subspan(3 * at.record, 3), record.shape.begin());
  return record;
}

void ImageDataset::read(std::int64_t sample, std::vector<std::uint8_t>& out) const {
  const State::Place at = state_->find(sample);
  const State::Shard& shard = state_->loaded(at.shard);
  out.resize(static_cast<std::size_t>(state_->bytes_of(shard, at.record)));
  for (int retries_left = read_retries;; --retries_left) {
    state_->read(at, shard, out);
    if (shard.crc32c.empty() || crc32c(out) == shard.crc32c[at.record]) return;
    if (retries_left == 0) break;
    pause_before_retry();  // trying again tells a bad disk from a temporary error
  }
  throw Error(cat(name_of(sample), " has a wrong CRC-32C"),
              cat(damaged, "; bin/ringtrain-data verify ", index_.prefix, " lists all faults"));
}

std::string ImageDataset::name_of(std::int64_t sample) const {
  const State::Place at = state_->find(sample);
  return cat(index_.shards[at.shard].path, ": record ", at.record);
}

std::int64_t ImageDataset::bytes_read() const {
  return state_->files.bytes_read();
}

std::int64_t ImageDataset::bytes_of(const DatasetIndex& index) {
  return static_cast<std::int64_t>(State::bytes_of(index));
}

}  // namespace ringtrain
