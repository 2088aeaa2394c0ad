// Pass 1 of a conversion: examine_images() of passes.h.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/system_limits.h"
#include "data/row_plan.h"
#include "data_prep/common/parallel.h"
#include "data_prep/common/ranks.h"
#include "data_prep/images/passes.h"

namespace ringtrain {
namespace {

struct Place {
  SplitIndex split;
  std::size_t index;
};

// Returns the images that this rank examines: roughly those that it will write in pass 2. They are in the listing's
// order, so that folders and tar files are read from front to back.
std::vector<Place> places_of_rank(const ImageListing& listing, std::uint64_t seed, const Ranks& ranks) {
  std::vector<Place> places;
  for (const SplitIndex split : {train_split, validation_split}) {
    const std::vector<std::int64_t> order = disk_order(listing.splits[split].size(), split, seed);
    const ShardRange range = shard_range(static_cast<std::int64_t>(order.size()), ranks.size(), ranks.rank());
    std::vector<std::int64_t> mine(order.begin() + range.first, order.begin() + range.last);
    std::sort(mine.begin(), mine.end());
    for (const std::int64_t index : mine) places.push_back({split, static_cast<std::size_t>(index)});
  }
  return places;
}

void add_notes(Packer& packer, const std::vector<ImageNote>& notes) {
  packer.add(std::uint64_t{notes.size()});
  for (const ImageNote& note : notes) {
    packer.add(note.split);
    packer.add(note.index);
    packer.add(note.text);
    packer.add(note.reason);
  }
}

void take_notes(Unpacker& unpacker, std::vector<ImageNote>& notes) {
  for (auto count = unpacker.value<std::uint64_t>(); count > 0; --count) {
    const auto split = unpacker.value<std::uint64_t>(), index = unpacker.value<std::uint64_t>();
    std::string text = unpacker.text();
    notes.push_back({split, index, std::move(text), unpacker.text()});
  }
}

// Sends the findings of every rank to all ranks.
void share(const std::vector<Place>& places, const Ranks& ranks, Examination& result) {
  Packer mine;
  mine.add(std::uint64_t{places.size()});
  for (const Place& place : places) {
    mine.add(std::uint64_t{place.split});
    mine.add(std::uint64_t{place.index});
    mine.add(result.items[place.split][place.index]);
  }
  add_notes(mine, result.broken);
  add_notes(mine, result.converted);
  add_notes(mine, result.doubtful);
  result.broken.clear();
  result.converted.clear();
  result.doubtful.clear();
  for (const std::string& part : ranks.gather(mine.take())) {
    Unpacker unpacker(part);
    for (auto count = unpacker.value<std::uint64_t>(); count > 0; --count) {
      const auto split = unpacker.value<std::uint64_t>(), index = unpacker.value<std::uint64_t>();
      result.items[split][index] = unpacker.value<Examined>();
    }
    take_notes(unpacker, result.broken);
    take_notes(unpacker, result.converted);
    take_notes(unpacker, result.doubtful);
  }
  const auto before = [](const ImageNote& a, const ImageNote& b) {
    return std::pair(a.split, a.index) < std::pair(b.split, b.index);
  };
  std::sort(result.broken.begin(), result.broken.end(), before);
  std::sort(result.converted.begin(), result.converted.end(), before);
  std::sort(result.doubtful.begin(), result.doubtful.end(), before);
  Packer all;
  for (const std::vector<Examined>& items : result.items)
    for (const Examined& item : items) all.add(item);
  std::string bytes = all.take();
  ranks.broadcast(bytes);
  Unpacker unpacker(bytes);
  for (std::vector<Examined>& items : result.items)
    for (Examined& item : items) item = unpacker.value<Examined>();
  ranks.sum(result.sums.sum);
  ranks.sum(result.sums.sum_of_squares);
  ranks.sum({&result.sums.pixels, 1});
}

}  // namespace

std::vector<std::int64_t> disk_order(std::size_t count, SplitIndex split, std::uint64_t seed) {
  std::vector<std::int64_t> order(count);
  if (count == 0) return order;
  const EpochOrder permutation(random_key(seed, RandomPurpose::shards), split, static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) order[i] = permutation(static_cast<std::int64_t>(i));
  return order;
}

Examination examine_images(const ImageOptions& options, const RecordOptions& records, const ImageListing& listing,
                           const ListedImageSource& source, int threads, const Ranks& ranks) {
  Examination result;
  for (const SplitIndex split : {train_split, validation_split}) {
    result.items[split].resize(listing.splits[split].size());
    result.cache[split].resize(listing.splits[split].size());
  }
  const std::vector<Place> places = places_of_rank(listing, options.seed, ranks);
  const bool decode = options.check == "decode";
  std::atomic<std::int64_t> memory_left = static_cast<std::int64_t>(options.memory_gib * (1 << 30));
  std::mutex noting;
  ProgressLine progress("examined", static_cast<std::int64_t>(places.size()), ranks.first());
  parallel_for(static_cast<std::int64_t>(places.size()), threads, [&](std::int64_t i) {
    const Place place = places[static_cast<std::size_t>(i)];
    const ImageItem& item = listing.splits[place.split][place.index];
    Examined& examined = result.items[place.split][place.index];
    PixelSums sums;
    ImageRecord record;
    try {
      const bool count_pixels = options.statistics && place.split == train_split;
      FoundImage found = source.read(item);
      if (found.bytes.empty() && !found.image.pixels.empty()) examined.brightest = std::ranges::max(found.image.pixels);
      record = make_record(std::move(found), records, decode, count_pixels ? &sums : nullptr);
      examined.bytes = record.bytes.size();
      examined.crc32c = crc32c(record.bytes);
      examined.height = static_cast<std::int32_t>(record.height);
      examined.width = static_cast<std::int32_t>(record.width);
      examined.channels = static_cast<std::int32_t>(record.channels);
      examined.resized = record.resized;
      examined.turned = record.turned;
      examined.with_alpha = record.with_alpha;
      examined.deep = record.deep;
      examined.deep_and_dark = record.deep_and_dark;
    } catch (const Error& error) {
      if (!advice_on_limits(error.what()).empty()) throw;  // no picture is at fault
      if (options.broken == "fail" && dynamic_cast<const SourceError*>(&error) != nullptr) throw;  // said once
      examined.broken = true;
      // The reason often begins with the path. The path is not printed twice.
      std::string reason = error.what();
      if (const std::string path = listing.root + item.key + ": "; reason.starts_with(path))
        reason.erase(0, path.size());
      const std::lock_guard<std::mutex> lock(noting);
      result.broken.push_back({place.split, place.index, cat(listing.root, item.key, ": ", reason), reason});
    }
    if (!record.why.empty() || !record.warning.empty() || options.statistics) {
      const std::lock_guard<std::mutex> lock(noting);
      if (!record.why.empty())
        result.converted.push_back({place.split, place.index, cat(listing.root, item.key, ": ", record.why), ""});
      if (!record.warning.empty())
        result.doubtful.push_back({place.split, place.index, cat(listing.root, item.key, ": ", record.warning), ""});
      result.sums.add(sums);
    }
    const auto bytes = static_cast<std::int64_t>(record.bytes.size());
    if (memory_left.fetch_sub(bytes) >= bytes) {
      result.cache[place.split][place.index] = std::move(record.bytes);
    } else {
      memory_left += bytes;
    }
    progress.add(1);
  });
  share(places, ranks, result);
  return result;
}

}  // namespace ringtrain
