#include "data_prep/images/array_import.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <ostream>

#include "base/error.h"
#include "data_prep/images/array_labels.h"
#include "data_prep/images/array_source.h"

namespace ringtrain {
namespace {

constexpr std::int64_t most_labels = 1 << 20;

void check(const ImportOptions& options) {
  const double share = options.validation.value_or(0);
  if (!(share >= 0 && share < 1)) throw Error(cat("--validation ", share, ": expected at least 0 and less than 1"));
  std::string letters = options.layout;
  std::sort(letters.begin(), letters.end());
  if (!letters.empty() && letters != "CHNW" && letters != "HNW")
    throw Error(cat("--layout ", options.layout, ": expected the letters N, H, W and C in the order of the axes"),
                "N counts the images; grey images may have no C; such as NHWC, NCHW or HWCN");
  if (!options.split.empty() && options.split != "train" && options.split != "validation")
    throw Error(cat("--split ", options.split, ": expected train or validation"));
  if (!options.split.empty() && (share > 0 || options.validation_rows))
    throw Error("--split makes one split; it goes with neither --validation nor --validation-rows");
  if (share > 0 && options.validation_rows) throw Error("--validation and --validation-rows contradict each other");
  if (options.rows && options.validation_rows && options.rows->first < options.validation_rows->end &&
      options.validation_rows->first < options.rows->end)
    throw Error("--rows and --validation-rows overlap", "END is the row after the last one");
}

ImportRows checked_rows(const ImportOptions& options, ImportRows rows, std::int64_t count) {
  if (rows.first < 0 || rows.first >= rows.end || rows.end > count)
    throw Error(cat("rows ", rows.first, ":", rows.end, " are not FIRST:END within the ", count, " rows of '",
                    options.images, "'"));
  return rows;
}

// The rows of one split, and their labels.
struct SplitRows {
  ImportRows rows;
  std::vector<std::int64_t> labels;
};

// Throws Error if a picture or a label of these rows is not in the file.
SplitRows read_split(const ImportOptions& options, ImportRows rows, const ArraySource& source,
                     const ArrayLabels& labels, std::ostream* log) {
  try {
    const std::int64_t filled = source.expect_rows(rows.first, rows.end);
    if (filled > 0 && log != nullptr)
      *log << "warning     " << filled << " of " << rows.end - rows.first << " images in '" << options.images
           << "' have parts that were never written and are the file's own fill value\n";
    return {rows, labels.read(rows.first, rows.end)};
  } catch (const Error& error) {
    const char* advice = "if only some rows are missing, --rows FIRST:END imports rows that are there";
    throw Error(error.what(), error.hint().empty() ? advice : error.hint(), error.where());
  }
}

std::vector<ImageItem> items_of(const ImportOptions& options, const SplitRows& split, std::int64_t classes) {
  std::vector<ImageItem> items;
  std::int64_t outside = 0, example = 0;
  for (std::size_t i = 0; i < split.labels.size(); ++i) {
    const std::int64_t label = split.labels[i], row = split.rows.first + static_cast<std::int64_t>(i);
    if (label < 0 || label >= classes) {
      if (outside++ == 0) example = row;
      continue;
    }
    items.push_back(
        {cat(options.images, "[", row, "]"), static_cast<std::int32_t>(label), -1, static_cast<std::uint64_t>(row), 0});
  }
  if (outside > 0) {
    throw Error(cat(options.input, ": row ", example, " of '", options.labels, "' is ",
                    split.labels[static_cast<std::size_t>(example - split.rows.first)], ", expected 0 to ", classes - 1,
                    outside > 1 ? cat("; ", outside - 1, " other rows are outside, too") : ""),
                "labels count from 0; --rows can leave out images without a class");
  }
  return items;
}

ImageListing list_arrays(const ImportOptions& options, const ArraySource& source, const ArrayLabels& labels,
                         std::ostream* log) {
  const std::int64_t rows = source.rows();
  if (labels.count() != rows) {
    source.expect_rows(0, rows);  // a virtual data set may be shorter because a file is missing
    throw Error(cat(options.input, ": '", options.images, "' has ", rows, " rows, but '", options.labels, "' has ",
                    labels.count()));
  }
  if (rows == 0) throw Error(cat(options.input, ": '", options.images, "' is empty"));
  ImageListing listing;
  listing.root = options.input + ":";
  listing.unit = "rows";
  ImportRows training = options.rows.value_or(ImportRows{0, rows});
  if (!options.rows && options.validation_rows) {  // the rows outside the validation split, which must be one piece
    const ImportRows held = *options.validation_rows;
    if (held.first > 0 && held.end < rows)
      throw Error("--validation-rows leaves two pieces", "give --rows FIRST:END too");
    training = held.first > 0 ? ImportRows{0, held.first} : ImportRows{held.end, rows};
  }
  std::array<SplitRows, 2> splits;
  const SplitIndex first = options.split == "validation" ? validation_split : train_split;
  splits[first] = read_split(options, checked_rows(options, training, rows), source, labels, log);
  if (options.validation_rows) {
    splits[validation_split] =
        read_split(options, checked_rows(options, *options.validation_rows, rows), source, labels, log);
  }
  const std::size_t used = splits[0].labels.size() + splits[1].labels.size();
  if (const auto others = static_cast<std::uint64_t>(rows) - used; others > 0)
    leave_out(listing.left_out, "row(s) outside --rows and --validation-rows", "", others);
  if (!options.class_list.empty()) {
    listing.classes = read_class_list(options.class_list);
  } else {
    std::int64_t highest = 0;
    for (const SplitRows& split : splits)
      for (const std::int64_t label : split.labels) highest = std::max(highest, label);
    if (highest >= most_labels)
      throw Error(cat(options.input, ": '", options.labels, "' holds ", highest, ", which is not a label"),
                  "labels count from 0");
    for (std::int64_t label = 0; label <= highest; ++label)
      listing.classes.add(std::to_string(label), std::to_string(label));
  }
  const auto classes = static_cast<std::int64_t>(listing.classes.ids.size());
  for (const SplitIndex split : {train_split, validation_split})
    listing.splits[split] = items_of(options, splits[split], classes);
  if (options.validation.value_or(0) > 0) hold_out_images(listing, options.seed, *options.validation);
  return listing;
}

}  // namespace

ImagesReport import_arrays(const ImportOptions& given, const Ranks& ranks, std::ostream& log) {
  ImportOptions options = given;
  check(options);
  const ArrayLabels labels(options.input, options.labels);
  const ArraySource source(options.input, options.images, options.layout, labels.count());
  if (options.encoding.empty()) options.encoding = source.encoded() ? "jpeg" : "raw";
  check_image_options(options);
  const std::vector<std::string> splits =
      options.split.empty() ? std::vector<std::string>{"train", "validation"} : std::vector{options.split};
  const std::unique_ptr<OutputFiles> files = make_output_files(options, splits, ranks);
  const ImageListing listing = list_arrays(options, source, labels, ranks.first() ? &log : nullptr);
  RecordOptions records = record_options(options);
  records.grey_pixels = !source.encoded() && source.channels() == 1;
  if (ranks.first())
    log << "import      " << options.input << ", '" << options.images << "': " << source.describe() << "\n";
  return convert_listing(options, records, listing, source, std::filesystem::path(options.input).filename().string(),
                         files.get(), ranks, log);
}

}  // namespace ringtrain
