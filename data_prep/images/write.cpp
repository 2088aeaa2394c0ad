// Pass 2 of a conversion: write_shards() of passes.h.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/rounding.h"
#include "base/utf8.h"
#include "data/shard_files.h"
#include "data_prep/common/input_file.h"
#include "data_prep/common/parallel.h"
#include "data_prep/common/ranks.h"
#include "data_prep/images/passes.h"

namespace ringtrain {
namespace {

// Writes strings of fixed length, padded with zero bytes.
void write_strings(h5::File& file, const std::string& name, const std::vector<std::string>& values) {
  const h5::Guard lock;
  std::size_t length = 1;
  bool utf8 = true;
  for (const std::string& value : values) {
    length = std::max(length, value.size());
    utf8 = utf8 && find_invalid_utf8(value) == std::string::npos;
  }
  std::string padded(length * values.size(), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) values[i].copy(padded.data() + i * length, length);
  const h5::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), length);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), utf8 ? H5T_CSET_UTF8 : H5T_CSET_ASCII);  // HDF5 tools show other names as bytes
  const h5::Handle made = file.make_array(name, type.get(), {static_cast<std::int64_t>(values.size())});
  if (!values.empty() && H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()) < 0) {
    file.fail(cat("cannot write data set '", name, "'"));
  }
}

void write_reals(const h5::File& file, const std::string& name, const std::vector<double>& values) {
  const h5::Guard lock;
  const hsize_t count = values.size();
  const h5::Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const h5::Handle made(H5Acreate2(file.id(), name.c_str(), H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                        H5Aclose);
  if (made.get() < 0 || H5Awrite(made.get(), H5T_NATIVE_DOUBLE, values.data()) < 0) {
    file.fail(cat("cannot write attribute '", name, "'"));
  }
}

// Returns whether the writer of an HDF5 file has closed it. HDF5 marks a file that is open for writing in its
// superblock (file format specification, "File Consistency Flags"). A writer that is killed after writing `complete`
// and before closing leaves the mark.
bool was_closed(const std::string& path) {
  std::array<std::uint8_t, 24> superblock{};
  InputFile(path).read(0, superblock);
  const bool old = superblock[8] <= 1;  // version
  return old ? superblock[20] == 0 : superblock[11] == 0;
}

}  // namespace

ImageShardWriter::ImageShardWriter(const SplitDescription& split, const ImageSetDescription& set, std::int64_t shard,
                                   const std::string& path, const ImageColumns& columns)
    : file_(h5::File::create(path)) {
  const auto count = static_cast<std::int64_t>(columns.labels.size());
  write_root_attributes(file_, split, "image", shard, count, static_cast<std::int64_t>(set.classes.ids.size()));
  write_reals(file_, "mean", set.mean);
  write_reals(file_, "std", set.std);
  {
    const h5::Guard lock;
    const h5::Shape shape = set.raw ? h5::Shape{count, set.height, set.width, set.channels}
                                    : h5::Shape{static_cast<std::int64_t>(columns.offsets.back())};
    const h5::Handle images = file_.make_array("images", H5T_STD_U8LE, shape);
    address_ = H5Dget_offset(images.get());
    if (address_ == HADDR_UNDEF) file_.fail("data set 'images' has no place in the file");
  }
  file_.write_attribute("images", "encoding", std::string(set.raw ? "raw" : "jpeg"));
  if (set.raw) file_.write_attribute("images", "layout", std::string("NHWC"));
  if (!set.raw) file_.write<std::uint64_t>("offsets", columns.offsets, {count + 1});
  file_.write<std::int32_t>("labels", columns.labels, {count});
  file_.write<std::int32_t>("shapes", columns.shapes, {count, 3});
  file_.write<std::uint64_t>("sample_ids", columns.sample_ids, {count});
  file_.write<std::uint32_t>("crc32c", columns.crc32c, {count});
  write_strings(file_, "class_names", set.classes.names);
  write_strings(file_, "class_ids", set.classes.ids);
  write_strings(file_, "keys", columns.keys);
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw Error(cat(path, ": cannot open to write: ", std::strerror(errno)));
}

ImageShardWriter::~ImageShardWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ImageShardWriter::write(std::uint64_t offset, std::span<const std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(address_ + offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int reason = errno;
      const std::string advice = advice_for_writing(reason, file_.path());
      throw Error(cat(file_.path(), ": cannot write: ", std::strerror(reason)),
                  cat(advice, advice.empty() ? "" : "; ", "--resume keeps the files that are finished"));
    }
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void ImageShardWriter::finish() {
  ::close(descriptor_);
  descriptor_ = -1;
  file_.flush();
  file_.write_attribute("/", "complete", std::int64_t{1});
  file_.flush();
  file_.close();
}

bool is_finished_shard(const std::string& path, const SplitDescription& split, std::int64_t shard) {
  if (!std::filesystem::exists(path)) return false;
  try {
    if (!was_closed(path)) return false;
    const h5::File file = h5::File::open(path);
    const auto same = [&](const std::string& name, const std::string& value) {
      return file.has_attribute("/", name) && file.read_string("/", name) == value;
    };
    return file.has_attribute("/", "complete") && same("dataset_uuid", split.dataset_uuid) &&
           same("split", split.split) && same("license", split.license) && same("source", split.source) &&
           same("dataset_name", split.dataset_name) && file.read_integer("/", "shard_index") == shard &&
           file.read_integer("/", "num_shards") == split.num_shards;
  } catch (const Error&) {  // the file is incomplete
    return false;
  }
}

namespace {

constexpr std::uint64_t automatic_shard_bytes = std::uint64_t{512} << 20;
constexpr std::uint64_t write_bytes = std::uint64_t{4} << 20;  // small records are joined up to this size

ImageColumns columns_of(const SplitPlan& plan, ShardRange range, const ImageListing& listing,
                        const Examination& examination) {
  ImageColumns columns;
  columns.offsets.push_back(0);
  for (std::int64_t position = range.first; position < range.last; ++position) {
    const auto i = static_cast<std::size_t>(plan.order[static_cast<std::size_t>(position)]);
    const Examined& examined = examination.items[plan.index][i];
    const ImageItem& item = listing.splits[plan.index][i];
    columns.offsets.push_back(columns.offsets.back() + examined.bytes);
    columns.labels.push_back(item.label);
    columns.shapes.insert(columns.shapes.end(), {examined.height, examined.width, examined.channels});
    columns.sample_ids.push_back(plan.sample_ids[i]);
    columns.crc32c.push_back(examined.crc32c);
    columns.keys.push_back(item.key);
  }
  return columns;
}

// Divides the records into ranges [first, last) of at most write_bytes. A larger record has a range of its own.
std::vector<ShardRange> runs_of(const std::vector<std::uint64_t>& offsets) {
  std::vector<ShardRange> runs;
  const auto count = static_cast<std::int64_t>(offsets.size()) - 1;
  for (std::int64_t first = 0; first < count;) {
    std::int64_t last = first + 1;
    while (last < count &&
           offsets[static_cast<std::size_t>(last) + 1] - offsets[static_cast<std::size_t>(first)] <= write_bytes)
      ++last;
    runs.push_back({first, last});
    first = last;
  }
  return runs;
}

// Removes a file that was not finished, after an error or a signal.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(std::string path) : path_(std::move(path)) { remove_if_stopped(path_); }
  ~UnfinishedFile() {
    std::error_code ignored;
    if (!is_finished_) std::filesystem::remove(path_, ignored);
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;
  void keep() {
    keep_if_stopped(path_);
    is_finished_ = true;
  }

 private:
  std::string path_;
  bool is_finished_ = false;
};

class RecordReader {
 public:
  RecordReader(const RecordOptions& records, const ImageListing& listing, const ListedImageSource& source,
               SplitIndex split, Examination& examination)
      : records_(records),
        items_(listing.splits[split]),
        root_(listing.root),
        source_(source),
        examined_(examination.items[split]),
        cache_(examination.cache[split]) {}

  std::vector<std::uint8_t> read(std::size_t i) const {
    if (!cache_[i].empty()) return std::move(cache_[i]);
    std::vector<std::uint8_t> bytes;
    std::string reason;
    try {
      bytes = make_record(source_.read(items_[i]), records_, false, nullptr).bytes;
    } catch (const Error& error) {
      reason = cat(" (", error.what(), ")");
    }
    if (bytes.size() != examined_[i].bytes || crc32c(bytes) != examined_[i].crc32c) {
      throw Error(cat(root_, items_[i].key, ": changed during the conversion", reason),
                  "convert again when nobody writes there");
    }
    return bytes;
  }

 private:
  const RecordOptions& records_;
  const std::vector<ImageItem>& items_;
  const std::string& root_;
  const ListedImageSource& source_;
  const std::vector<Examined>& examined_;
  std::vector<std::vector<std::uint8_t>>& cache_;  // a record is moved out of it, since it is read only once
};

}  // namespace

SplitPlan plan_split(SplitIndex split, const ImageOptions& options, const Examination& examination) {
  SplitPlan plan;
  plan.index = split;
  const std::vector<Examined>& items = examination.items[split];
  std::uint64_t bytes = 0, next_id = split == train_split ? 0 : first_validation_id;
  for (const Examined& item : items) {
    plan.sample_ids.push_back(next_id);
    next_id += !item.broken;
    bytes += item.bytes;
  }
  for (const std::int64_t i : disk_order(items.size(), split, options.seed))
    if (!items[static_cast<std::size_t>(i)].broken) plan.order.push_back(i);
  FileOptions files = options;
  const auto automatic = static_cast<std::int64_t>(divide_up(bytes, automatic_shard_bytes));
  if (files.shards <= 0) files.shards = std::clamp<std::int64_t>(automatic, 1, 99999);
  plan.description = describe_split(files, split_names[split], std::ssize(plan.order), "");
  return plan;
}

void write_shards(const SplitPlan& plan, const ImageSetDescription& set, const RecordOptions& records,
                  const ImageListing& listing, const ListedImageSource& source, Examination& examination, int threads,
                  const Ranks& ranks) {
  const SplitDescription& split = plan.description;
  const RecordReader reader(records, listing, source, plan.index, examination);
  const ShardRange mine = shard_range(split.num_shards, ranks.size(), ranks.rank());
  std::int64_t samples = 0;
  for (std::int64_t shard = mine.first; shard < mine.last; ++shard) {
    const ShardRange range = shard_range(split.total, split.num_shards, shard);
    samples += range.last - range.first;
  }
  ProgressLine progress(cat("wrote ", split.split), samples, ranks.first());
  for (std::int64_t shard = mine.first; shard < mine.last; ++shard) {
    const ShardRange range = shard_range(split.total, split.num_shards, shard);
    const std::string path = shard_path(split.prefix, shard, split.num_shards) + ".tmp";
    if (is_finished_shard(path, split, shard)) {
      progress.add(range.last - range.first);
      continue;
    }
    std::filesystem::remove(path);
    UnfinishedFile unfinished(path);
    const ImageColumns columns = columns_of(plan, range, listing, examination);
    ImageShardWriter writer(split, set, shard, path, columns);
    const std::vector<ShardRange> runs = runs_of(columns.offsets);
    parallel_for(static_cast<std::int64_t>(runs.size()), threads, [&](std::int64_t r) {
      const ShardRange run = runs[static_cast<std::size_t>(r)];
      const std::uint64_t begin = columns.offsets[static_cast<std::size_t>(run.first)];
      std::vector<std::uint8_t> buffer;
      buffer.reserve(columns.offsets[static_cast<std::size_t>(run.last)] - begin);
      for (std::int64_t i = run.first; i < run.last; ++i) {
        const std::vector<std::uint8_t> record =
            reader.read(static_cast<std::size_t>(plan.order[static_cast<std::size_t>(range.first + i)]));
        buffer.insert(buffer.end(), record.begin(), record.end());
      }
      writer.write(begin, buffer);
      progress.add(run.last - run.first);
    });
    writer.finish();
    unfinished.keep();
  }
}

}  // namespace ringtrain
