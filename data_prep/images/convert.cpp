#include "data_prep/images/convert.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/table.h"
#include "data/shard_files.h"
#include "data_prep/common/parallel.h"
#include "data_prep/images/passes.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

const std::vector<double> imagenet_mean = {0.485, 0.456, 0.406}, imagenet_std = {0.229, 0.224, 0.225};

void set_mean_and_std(const PixelSums& sums, ImageSetDescription& set) {
  const auto pixels = static_cast<double>(sums.pixels);
  for (std::size_t c = 0; c < 3; ++c) {
    const double mean = static_cast<double>(sums.sum[c]) / pixels;
    const double variance = static_cast<double>(sums.sum_of_squares[c]) / pixels - mean * mean;
    if (!(variance > 1e-6)) {
      throw Error(
          cat("channel ", c, " of the training images has the value ", mean, " everywhere: no deviation to divide by"),
          "leave --statistics out");
    }
    set.mean.push_back(mean / 255);
    set.std.push_back(std::sqrt(variance) / 255);
  }
}

// Sets the size of raw records. Throws Error if the images have several sizes.
void set_raw_size(const Examination& examination, const ImageListing& listing, ImageSetDescription& set) {
  const Examined* first = nullptr;
  std::string first_key;
  for (const SplitIndex split : {train_split, validation_split}) {
    for (std::size_t i = 0; i < examination.items[split].size(); ++i) {
      const Examined& item = examination.items[split][i];
      if (item.broken) continue;
      if (first == nullptr) {
        first = &item;
        first_key = listing.splits[split][i].key;
      }
      if (item.height == first->height && item.width == first->width) continue;
      throw Error(
          cat("--encoding raw: the images have several sizes: ", first_key, " is ", first->width, " x ", first->height,
              " (width x height), ", listing.splits[split][i].key, " ", item.width, " x ", item.height),
          "give --size N (resize and crop to squares), or store JPEG");
    }
  }
  set.height = first->height;
  set.width = first->width;
  set.channels = first->channels;
}

std::string uuid_of(const ImageListing& listing, const Examination& examination, const ImageSetDescription& set,
                    std::uint64_t seed) {
  ContentHash hash;
  hash.add("images 1");
  hash.add(seed);
  hash.add(std::uint64_t{set.raw});
  for (const double value : set.mean) hash.add(std::bit_cast<std::uint64_t>(value));
  for (const double value : set.std) hash.add(std::bit_cast<std::uint64_t>(value));
  for (std::size_t k = 0; k < set.classes.ids.size(); ++k) {
    hash.add(set.classes.ids[k]);
    hash.add(set.classes.names[k]);
  }
  for (const SplitIndex split : {train_split, validation_split}) {
    hash.add(split_names[split]);
    for (std::size_t i = 0; i < examination.items[split].size(); ++i) {
      const Examined& item = examination.items[split][i];
      if (item.broken) {  // a broken image keeps its place in the order
        hash.add(~std::uint64_t{0});
        continue;
      }
      hash.add(listing.splits[split][i].key);
      hash.add(static_cast<std::uint64_t>(listing.splits[split][i].label));
      hash.add((std::uint64_t{item.crc32c} << 32) ^ item.bytes);
    }
  }
  return hash.uuid();
}

// Takes over the finished shards of a killed conversion (--resume) and returns their bytes. Shards that already have
// their final names get temporary names again.
std::int64_t take_over(const std::vector<SplitPlan>& plans, bool force, const OutputFiles& files,
                       ImagesReport& report) {
  std::int64_t bytes = 0;
  for (const SplitPlan& plan : plans) {
    for (std::int64_t shard = 0; shard < plan.description.num_shards; ++shard) {
      const std::string path = shard_path(plan.description.prefix, shard, plan.description.num_shards);
      if (is_finished_shard(path, plan.description, shard)) fs::rename(path, path + ".tmp");
      if (!is_finished_shard(path + ".tmp", plan.description, shard)) continue;
      bytes += static_cast<std::int64_t>(fs::file_size(path + ".tmp"));
      ++report.splits[plan.index].resumed_shards;
    }
  }
  if (const std::vector<std::string> others = files.matching(false); !others.empty() && !force)
    throw Error(cat(others.front(), ": exists already, and belongs to another conversion"),
                "choose another --out, or overwrite it with --force");
  return bytes;
}

// Returns " (list.txt, line 7)" for an image that a list names, or "".
std::string listed_in(const ImageListing& listing, const ImageNote& note) {
  const std::int64_t line = listing.splits[note.split][note.index].line;
  return line == 0 ? "" : cat(" (", listing.lists[note.split], ", line ", line, ")");
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw Error(cat(path, ": cannot write: ", std::strerror(errno)), advice_for_writing(errno, path));
}

void check_space(const std::string& out, std::uint64_t needed) {
  fs::path folder = fs::path(out).parent_path();
  std::error_code failed;
  const fs::space_info space = fs::space(folder.empty() ? "." : folder, failed);
  if (failed || space.available >= needed) return;
  throw Error(cat(out, ": ", readable_bytes(needed), " are to be written, but the disk has only ",
                  readable_bytes(space.available), " left"),
              "free some space, or choose another --out");
}

}  // namespace

void check_image_options(const ImageOptions& options) {
  const auto expect = [](bool good, const auto&... message) {
    if (!good) throw Error(cat(message...));
  };
  expect(!options.out.empty(), "--out PREFIX is missing");
  expect(options.shards >= 0 && options.shards <= 99999, "--shards ", options.shards, ": expected 1 to 99999");
  expect(options.threads >= 0 && options.threads <= 4096, "--threads ", options.threads, ": expected 1 to 4096");
  expect(options.memory_gib >= 0 && options.memory_gib < 1e6, "--memory ", options.memory_gib,
         ": expected GiB, 0 or more");
  expect(options.short_side >= 0 && options.short_side <= 65500, "--short-side ", options.short_side,
         ": expected 1 to 65500");
  expect(options.size >= 0 && options.size <= 65500, "--size ", options.size, ": expected 1 to 65500");
  expect(options.short_side == 0 || options.size == 0, "--short-side and --size contradict each other");
  expect(options.quality >= 0 && options.quality <= 100, "--quality ", options.quality, ": expected 1 to 100");
  expect(options.encoding == "jpeg" || options.encoding == "raw", "--encoding ", options.encoding,
         ": expected jpeg or raw");
  expect(options.encoding == "jpeg" || options.quality == 0, "--quality is for JPEG; --encoding raw has none");
  expect(options.check == "decode" || options.check == "header", "--check ", options.check,
         ": expected decode or header");
  expect(options.broken == "fail" || options.broken == "skip", "--broken ", options.broken, ": expected fail or skip");
  expect(options.orientation == "keep" || options.orientation == "apply", "--orientation ", options.orientation,
         ": expected keep or apply");
}

RecordOptions record_options(const ImageOptions& options) {
  RecordOptions records;
  records.short_side = options.short_side;
  records.size = options.size;
  if (options.quality > 0) records.quality = static_cast<int>(options.quality);
  records.raw = options.encoding == "raw";
  records.upright = options.orientation == "apply";
  return records;
}

void check_split_options(const ImageOptions& options) {
  const double share = options.validation.value_or(0);
  if (!(share >= 0 && share < 1)) throw Error(cat("--validation ", share, ": expected at least 0 and less than 1"));
  if (!options.split.empty() && std::ranges::count(split_names, options.split) == 0)
    throw Error(cat("--split ", options.split, ": expected train or validation"));
}

std::unique_ptr<OutputFiles> make_output_files(const ImageOptions& options, const Ranks& ranks) {
  if (!ranks.first()) return nullptr;
  expect_own_notes(notes_path(options.out));
  std::vector<std::string> prefixes;
  for (const std::string split : split_names)
    if (options.split.empty() || options.split == split) prefixes.push_back(cat(options.out, "-", split));
  return std::make_unique<OutputFiles>(prefixes, options.force, options.resume);
}

ImagesReport convert_listing(const ImageOptions& options, const RecordOptions& records, const ImageListing& listing,
                             const ListedImageSource& source, const std::string& source_name, OutputFiles* files,
                             const Ranks& ranks, std::ostream& log) {
  ImagesReport report;
  const int threads = options.threads > 0 ? static_cast<int>(options.threads) : ranks.threads();
  const double start = now_seconds();
  Examination examination = examine_images(options, records, listing, source, threads, ranks);
  report.examine_seconds = now_seconds() - start;

  for (const ImageNote& note : examination.broken) report.broken.push_back(note.text + listed_in(listing, note));
  if (ranks.first()) {
    if (!report.broken.empty() && options.broken == "fail") {
      print_notes(report, "--broken skip lists all of them", log);
      throw Error(cat(report.broken.size(), " of ", listing.splits[0].size() + listing.splits[1].size(),
                      " images cannot be used (see the list above); nothing was written: ",
                      counted_reasons(examination.broken)),
                  cat(advice_on(examination.broken), "repair or remove them, or leave them out with --broken skip"));
    }
  }
  for (const ImageNote& note : examination.converted) report.converted.push_back(note.text);
  for (const ImageNote& note : examination.doubtful) report.doubtful.push_back(note.text);
  ranks.barrier();  // the other ranks wait here if rank 0 stops with an error

  ImageSetDescription set;
  set.raw = records.raw;
  set.classes = listing.classes;
  std::vector<SplitPlan> plans;
  for (const SplitIndex split : {train_split, validation_split}) {
    SplitPlan plan = plan_split(split, options, examination);
    if (!plan.order.empty()) plans.push_back(std::move(plan));
  }
  if (plans.empty()) throw Error(cat(listing.root, ": no image is left"));
  if (set.raw) set_raw_size(examination, listing, set);
  if (options.statistics) {
    if (examination.sums.pixels == 0) throw Error("--statistics needs training images");
    set_mean_and_std(examination.sums, set);
  } else {
    set.mean = imagenet_mean;
    set.std = imagenet_std;
  }
  report.classes = static_cast<std::int64_t>(set.classes.ids.size());
  std::vector<std::int64_t> sizes(set.classes.ids.size());
  for (const std::int64_t i : plans.front().order)
    ++sizes[static_cast<std::size_t>(listing.splits[plans.front().index][static_cast<std::size_t>(i)].label)];
  report.smallest_class = *std::min_element(sizes.begin(), sizes.end());
  report.largest_class = *std::max_element(sizes.begin(), sizes.end());
  report.mean = set.mean;
  report.std = set.std;
  report.dataset_uuid = uuid_of(listing, examination, set, options.seed);
  std::uint64_t needed = 0;
  for (SplitPlan& plan : plans) {
    plan.description.dataset_uuid = report.dataset_uuid;
    plan.description.source = source_name;
    ImagesReport::Split& split = report.splits[plan.index];
    split.samples = plan.description.total;
    split.shards = plan.description.num_shards;
    for (const Examined& item : examination.items[plan.index]) {
      split.bytes += item.bytes;
      report.resized += item.resized;
      report.turned += item.turned;
      report.with_alpha += item.with_alpha;
      report.deep += item.deep;
      report.deep_and_dark += item.deep_and_dark;
    }
    needed += split.bytes;
  }
  if (files != nullptr) {
    const auto there = static_cast<std::uint64_t>(options.resume ? take_over(plans, options.force, *files, report) : 0);
    check_space(options.out, needed - std::min(needed, there));
  }
  ranks.barrier();
  for (const SplitPlan& plan : plans) write_shards(plan, set, records, listing, source, examination, threads, ranks);
  ranks.barrier();
  if (files != nullptr) {
    for (const SplitPlan& plan : plans) {
      for (std::int64_t shard = 0; shard < plan.description.num_shards; ++shard)
        files->add(shard_path(plan.description.prefix, shard, plan.description.num_shards));
    }
    const std::string notes = all_notes(report), path = notes_path(options.out);
    if (!notes.empty()) write_text(files->add(path), notes);
    files->commit();
    std::error_code ignored;  // a file of an earlier conversion would speak of pictures that are not there any more
    if (notes.empty()) std::filesystem::remove(path, ignored);
    print_notes(report, path + " lists all of them", log);
  }
  ranks.barrier();
  report.write_seconds = now_seconds() - start - report.examine_seconds;
  if (ranks.first()) {
    report.warnings = listing.warnings;
    if (const std::string advice = advice_on(examination.broken); !advice.empty())
      report.warnings.push_back(advice + "convert again to have these pictures, too");
    warn_of_empty_classes(listing, examination, plans, report.warnings);
    warn_of_same_images(listing, examination, report.warnings);
    warn_of_dark_images(listing, examination, report);
  }
  const int worked = threads_granted(threads);
  std::uint64_t of_all_ranks = static_cast<std::uint64_t>(worked);
  ranks.sum({&of_all_ranks, 1});
  const bool are_equal = of_all_ranks == static_cast<std::uint64_t>(worked) * static_cast<std::uint64_t>(ranks.size());
  const std::string workers = are_equal ? cat(ranks.size(), " rank(s) x ", worked, " thread(s)")
                                        : cat(ranks.size(), " rank(s), ", of_all_ranks, " threads in all");
  if (ranks.first()) print_summary(report, options, listing, workers, log);
  return report;
}

namespace {

void check(const ImagesOptions& options) {
  check_image_options(options);
  check_split_options(options);
  if (!options.split.empty() && (options.validation.value_or(0) > 0 || !options.validation_list.empty()))
    throw Error("--split makes one split; it goes with neither --validation nor --validation-list");
}

std::string name_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

ImagesReport convert_images(const ImagesOptions& options, const Ranks& ranks, std::ostream& log) {
  check(options);
  const std::unique_ptr<OutputFiles> files = make_output_files(options, ranks);
  ImageListing listing;
  const int threads = options.threads > 0 ? static_cast<int>(options.threads) : ranks.threads();
  std::string message;
  if (ranks.first()) {
    listing = list_images(options, threads);
    if (ranks.size() > 1) message = listing.serialize();
  }
  ranks.broadcast(message);
  if (!ranks.first()) listing = ImageListing::deserialize(message);
  const std::unique_ptr<ListedImageSource> source = make_file_source(listing);
  return convert_listing(options, record_options(options), listing, *source, name_of(options.input), files.get(), ranks,
                         log);
}

}  // namespace ringtrain
