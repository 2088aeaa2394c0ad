#include "data_prep/images/write.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "data/shard_header.h"
#include "data_prep/common/parallel.h"
#include "data_prep/common/stop_cleanup.h"

namespace ringtrain {
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
  SplitDescription& description = plan.description;
  description.split = split_names[split];
  description.prefix = cat(options.out, "-", description.split);
  description.dataset_name = std::filesystem::path(options.out).filename().string();
  description.license = options.license;
  description.seed = options.seed;
  description.total = static_cast<std::int64_t>(plan.order.size());
  const auto automatic = static_cast<std::int64_t>((bytes + automatic_shard_bytes - 1) / automatic_shard_bytes);
  description.num_shards =
      std::min(options.shards > 0 ? options.shards : std::clamp<std::int64_t>(automatic, 1, 99999), description.total);
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
