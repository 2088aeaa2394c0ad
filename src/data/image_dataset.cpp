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

// Reads the part of a shard's header that describes its images.
namespace {

constexpr std::int64_t largest_side = 65535;  // in pixels; the limit of JPEG

std::string to_text(const h5::Shape& shape) {
  return cat("[", joined(shape), "]");
}

// Returns the byte address of a data set. Throws Error if its `bytes` bytes are not inside the file.
std::uint64_t place_of(const h5::File& file, const std::string& dataset, hid_t memory_type, std::int64_t bytes,
                       const ShardHeader& header) {
  const std::uint64_t begin = byte_address(file, dataset, memory_type);
  expect_inside(header, dataset, begin, bytes);
  return begin;
}

std::uint64_t place_of_array(const h5::File& file, const std::string& dataset, const std::string& type,
                             hid_t memory_type, const h5::Shape& expected, const ShardHeader& header) {
  expect_type(file, dataset, type);
  if (const h5::Shape shape = file.shape(dataset); shape != expected) {
    bad_shard(file.path(), cat("data set '", dataset, "' has the shape ", to_text(shape), ", expected ",
                               to_text(expected), " (num_samples is ", header.count, ")"));
  }
  auto bytes = static_cast<std::int64_t>(H5Tget_size(memory_type));
  for (const std::int64_t extent : expected) bytes *= extent;
  return place_of(file, dataset, memory_type, bytes, header);
}

std::vector<std::string> read_strings(const h5::File& file, const std::string& dataset) {
  expect_type(file, dataset, "string");
  if (const std::size_t dimensions = file.shape(dataset).size(); dimensions != 1)
    bad_shard(file.path(), cat("data set '", dataset, "' has ", dimensions, " dimensions, expected 1"));
  return file.read_strings(dataset);
}

// Reads values of the three colours. A grey data set has one value, which is used for all three.
std::vector<double> read_colours(const h5::File& file, const std::string& name, std::int64_t channels) {
  std::vector<double> values = file.read_reals("/", name);
  if (values.size() == 1 && channels == 1) values.resize(3, values[0]);
  if (values.size() != 3) {
    bad_shard(file.path(), cat("attribute '", name, "' has ", values.size(), " values, expected 3"));
  }
  const bool is_std = name == "std";
  for (const double value : values) {
    if (!(value >= 0 && value <= 1) || (is_std && value == 0)) {
      bad_shard(file.path(), cat("attribute '", name, "' holds ", value, ", expected values ",
                                 is_std ? "above 0 and up to 1" : "from 0 to 1", " (of pixels / 255)"));
    }
  }
  return values;
}

void read_encoding(const h5::File& file, ShardHeader& header) {
  expect_type(file, "images", "u8");
  const std::string encoding = file.read_string("images", "encoding");
  if (encoding != "jpeg" && encoding != "raw") {
    bad_shard(file.path(), cat("attribute 'encoding' of 'images' is '", encoding, "', expected 'jpeg' or 'raw'"));
  }
  header.image.raw = encoding == "raw";
  const h5::Shape shape = file.shape("images");
  const std::size_t expected = header.image.raw ? 4 : 1;
  if (shape.size() != expected) {
    bad_shard(file.path(), cat("data set 'images' has ", shape.size(), " dimensions, expected ", expected,
                               header.image.raw ? " ([N, H, W, C], encoding raw)" : " (bytes, encoding jpeg)"));
  }
  if (!header.image.raw) {
    header.arrays.image_bytes = shape[0];
    return;
  }
  if (const std::string layout = file.read_string("images", "layout"); layout != "NHWC") {
    bad_shard(file.path(), cat("attribute 'layout' of 'images' is '", layout, "', expected 'NHWC'"));
  }
  if (shape[0] != header.count) {
    bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count, ", but 'images' holds ", shape[0]));
  }
  header.image.height = shape[1];
  header.image.width = shape[2];
  header.image.channels = shape[3];
  if (shape[1] < 1 || shape[1] > largest_side || shape[2] < 1 || shape[2] > largest_side ||
      (shape[3] != 1 && shape[3] != 3)) {
    bad_shard(file.path(), cat("'images' holds images of ", shape[1], " x ", shape[2], " x ", shape[3],
                               ", expected height x width x 1 or 3 channels"));
  }
  header.arrays.image_bytes = header.count * header.image.raw_record_bytes();
}

void read_arrays(const h5::File& file, ShardHeader& header) {
  ImageArrays& arrays = header.arrays;
  const std::int64_t n = header.count;
  header.byte_offset = place_of(file, "images", H5T_NATIVE_UINT8, arrays.image_bytes, header);
  arrays.labels = place_of_array(file, "labels", "i32", H5T_NATIVE_INT32, {n}, header);
  arrays.shapes = place_of_array(file, "shapes", "i32", H5T_NATIVE_INT32, {n, 3}, header);
  arrays.sample_ids = place_of_array(file, "sample_ids", "u64", H5T_NATIVE_UINT64, {n}, header);
  arrays.has_crc32c = file.has("crc32c");
  if (arrays.has_crc32c) arrays.crc32c = place_of_array(file, "crc32c", "u32", H5T_NATIVE_UINT32, {n}, header);
  if (header.image.raw) {
    arrays.largest_record = n > 0 ? header.image.raw_record_bytes() : 0;
    return;
  }
  arrays.offsets = place_of_array(file, "offsets", "u64", H5T_NATIVE_UINT64, {n + 1}, header);
  const std::vector<std::uint64_t> offsets = file.read<std::uint64_t>("offsets");
  check_image_offsets(file.path(), offsets, arrays.image_bytes);
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    arrays.largest_record = std::max(arrays.largest_record, static_cast<std::int64_t>(offsets[i + 1] - offsets[i]));
  }
}

void read_classes(const h5::File& file, ShardHeader& header) {
  header.image.class_names = read_strings(file, "class_names");
  header.image.class_ids = read_strings(file, "class_ids");
  const std::int64_t classes = file.read_integer("/", "num_classes");
  if (classes < 1 || classes > std::numeric_limits<std::int32_t>::max()) {
    bad_shard(file.path(), cat("attribute 'num_classes' is ", classes, ", expected at least 1"));
  }
  for (const auto& [name, values] :
       {std::pair{"class_names", &header.image.class_names}, std::pair{"class_ids", &header.image.class_ids}}) {
    if (static_cast<std::int64_t>(values->size()) == classes) continue;
    bad_shard(file.path(),
              cat("data set '", name, "' has ", values->size(), " values, but attribute 'num_classes' is ", classes));
  }
}

}  // namespace

void check_image_offsets(const std::string& path, std::span<const std::uint64_t> offsets, std::int64_t image_bytes) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] < offsets[i + 1] && offsets[i + 1] <= static_cast<std::uint64_t>(image_bytes)) continue;
    bad_shard(path, cat("record ", i, ": data set 'offsets' says bytes ", offsets[i], " to ", offsets[i + 1],
                        " of 'images', which has ", image_bytes, "; offsets must ascend"));
  }
}

void read_image_header(const h5::File& file, ShardHeader& header) {
  if (header.count < 0) bad_shard(file.path(), cat("attribute 'num_samples' is ", header.count));
  read_encoding(file, header);
  read_arrays(file, header);
  read_classes(file, header);
  header.image.mean = read_colours(file, "mean", header.image.channels);
  header.image.std = read_colours(file, "std", header.image.channels);
}

void check_image_agrees(const ShardHeader& header, const ShardHeader& first) {
  const auto encoding = [](const ShardHeader& h) { return h.image.raw ? "raw" : "jpeg"; };
  expect_same(header, first, std::string(encoding(header)), std::string(encoding(first)), "encoding");
  expect_same(header, first, header.image.height, first.image.height, "images' height");
  expect_same(header, first, header.image.width, first.image.width, "images' width");
  expect_same(header, first, header.image.channels, first.image.channels, "images' channels");
  expect_same(header, first, header.image.num_classes(), first.image.num_classes(), "num_classes");
  const auto differs = [&](const std::string& what) {
    bad_shard(header.path, cat(what, " differs from that of ", first.path),
              "these files come from two conversions: convert the data again");
  };
  if (header.image.class_names != first.image.class_names) differs("data set 'class_names'");
  if (header.image.class_ids != first.image.class_ids) differs("data set 'class_ids'");
  if (header.image.mean != first.image.mean) differs("attribute 'mean'");
  if (header.image.std != first.image.std) differs("attribute 'std'");
}

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
