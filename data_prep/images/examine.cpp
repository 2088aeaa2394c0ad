// Pass 1 of a conversion: examine_images() of passes.h.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>

#include "base/error.h"
#include "base/fields.h"
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

// Lists the fields for both directions.
template <class Archive, class Notes>
void transfer_notes(Archive& archive, Notes& notes) {
  archive.each(notes, [&](auto& note) { archive(note.split, note.index, note.text, note.reason); });
}

// Sends the findings of every rank to all ranks.
void share(const std::vector<Place>& places, const Ranks& ranks, Examination& result) {
  const auto kinds_of_notes = {&result.broken, &result.converted, &result.doubtful};
  FieldWriter mine;
  mine.each(places, [&](const Place& place) { mine(place, result.items[place.split][place.index]); });
  for (std::vector<ImageNote>* notes : kinds_of_notes) {
    transfer_notes(mine, *notes);
    notes->clear();
  }
  for (const std::string& part : ranks.gather(mine.take())) {
    FieldReader reader(part, "an examination");
    std::vector<Place> its_places;
    reader.each(its_places, [&](Place& place) {
      reader(place);
      reader(result.items[place.split][place.index]);
    });
    for (std::vector<ImageNote>* notes : kinds_of_notes) {
      std::vector<ImageNote> its_notes;
      transfer_notes(reader, its_notes);
      std::ranges::move(its_notes, std::back_inserter(*notes));
    }
  }
  for (std::vector<ImageNote>* notes : kinds_of_notes)
    std::ranges::sort(*notes, {}, [](const ImageNote& note) { return std::pair(note.split, note.index); });
  FieldWriter all;
  all(result.items[train_split], result.items[validation_split]);
  std::string bytes = all.take();
  ranks.broadcast(bytes);
  FieldReader(bytes, "an examination")(result.items[train_split], result.items[validation_split]);
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
