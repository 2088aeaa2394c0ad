// Imports images from HDF5 files: import_arrays() of import.h.
#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <ostream>

#include "base/error.h"
#include "base/utf8.h"
#include "data_prep/images/arrays.h"
#include "data_prep/images/import.h"

namespace ringtrain {
namespace {

void check(const ImportOptions& options) {
  check_split_options(options);
  const bool holds_out = options.validation.value_or(0) > 0;
  std::string letters = options.layout;
  std::sort(letters.begin(), letters.end());
  if (!letters.empty() && letters != "CHNW" && letters != "HNW")
    throw Error(cat("--layout ", options.layout, ": expected the letters N, H, W and C in the order of the axes"),
                "N counts the images; grey images may have no C; such as NHWC, NCHW or HWCN");
  if (!options.split.empty() && (holds_out || options.validation_rows))
    throw Error("--split makes one split; it goes with neither --validation nor --validation-rows");
  if (holds_out && options.validation_rows) throw Error("--validation and --validation-rows contradict each other");
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

// The rows of one split, and their labels as they are stored.
struct SplitRows {
  ImportRows rows;
  std::vector<std::int64_t> labels;
};

using Splits = std::array<SplitRows, 2>;

// A label and its row.
struct RowLabel {
  std::int64_t label = 0, row = 0;
};

// Returns the largest label that is at least `least`, or `least`.
RowLabel highest_label(const Splits& splits, std::int64_t least) {
  RowLabel highest{least, 0};
  for (const SplitRows& split : splits)
    for (std::size_t i = 0; i < split.labels.size(); ++i)
      if (split.labels[i] > highest.label) highest = {split.labels[i], split.rows.first + static_cast<std::int64_t>(i)};
  return highest;
}

// Returns whether the labels run from 1 to the number of classes.
bool count_from_1(const Splits& splits, std::int64_t classes) {
  std::int64_t lowest = std::numeric_limits<std::int64_t>::max();
  for (const SplitRows& split : splits)
    for (const std::int64_t label : split.labels) lowest = std::min(lowest, label);
  return lowest == 1 && highest_label(splits, 1).label == classes;
}

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

// Makes a class of every number from 0 to the highest label.
ClassList classes_of(const ImportOptions& options, const Splits& splits) {
  const RowLabel highest = highest_label(splits, options.first_label);
  const auto images = static_cast<std::int64_t>(splits[0].labels.size() + splits[1].labels.size());
  const std::int64_t classes_but_one = highest.label - options.first_label;
  if (const std::int64_t most = most_numbered_classes(images); classes_but_one >= most)
    throw Error(
        cat(options.input, ": row ", highest.row, " of '", options.labels, "' is ", highest.label,
            ", which is not a label: expected less than ", options.first_label + most, " for ", images, " images"),
        "labels count from 0; --class-list names the classes, --rows can leave out rows");
  return numbered_classes(classes_but_one + 1);
}

// Throws Error if a label is outside the classes.
std::vector<ImageItem> items_of(const ImportOptions& options, const SplitRows& split, std::int64_t classes,
                                const Splits& splits) {
  std::vector<ImageItem> items;
  std::int64_t outside = 0;
  RowLabel example;
  for (std::size_t i = 0; i < split.labels.size(); ++i) {
    const RowLabel stored{split.labels[i], split.rows.first + static_cast<std::int64_t>(i)};
    if (stored.label < options.first_label || stored.label - options.first_label >= classes) {
      if (outside++ == 0) example = stored;
      continue;
    }
    items.push_back({cat(options.images, "[", stored.row, "]"),
                     static_cast<std::int32_t>(stored.label - options.first_label), -1,
                     static_cast<std::uint64_t>(stored.row), 0});
  }
  if (outside > 0) {
    throw Error(cat(options.input, ": row ", example.row, " of '", options.labels, "' is ", example.label,
                    ", expected ", options.first_label, " to ", options.first_label + classes - 1,
                    outside > 1 ? cat("; ", outside - 1, " other rows are outside, too") : ""),
                options.first_label == 0 && count_from_1(splits, classes)
                    ? cat("the labels run from 1 to ", classes, ": --first-label 1 subtracts 1 from each")
                : options.first_label > 0 && example.label == 0
                    ? "the labels count from 0: leave out --first-label"
                    : "labels count from 0, or from --first-label; --rows can leave out images without a class");
  }
  return items;
}

// Returns the names of an enumeration type as classes if their values are the labels from the first one on.
ClassList classes_in_file(const ImportOptions& options, const ArrayLabels& labels, std::vector<std::string>& warnings) {
  ClassList classes;
  const std::vector<ArrayLabels::Name> names = labels.names();
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (names[k].label != options.first_label + static_cast<std::int64_t>(k)) {
      warnings.push_back(cat("the file names its labels (", names.front().label, " is ", shown(names.front().name),
                             ", ", names.back().label, " is ", shown(names.back().name), "), but they do not run from ",
                             options.first_label,
                             " without a gap: the classes are called by their numbers; --class-list "
                             "names them"));
      return {};
    }
    classes.add(names[k].name, names[k].name);
  }
  return classes;
}

ImageListing list_arrays(const ImportOptions& options, const ArraySource& source, const ArrayLabels& labels,
                         std::ostream* log) {
  const std::int64_t rows = source.rows();
  if (labels.count() != rows) {
    source.expect_rows(0, rows);  // a virtual data set may be shorter because a file is missing
    throw Error(cat(options.input, ": '", options.images, "' has ", rows, " rows, but '", options.labels, "' has ",
                    labels.count()),
                rows == 0
                    ? "have the pictures been written?"
                    : cat("each image needs one label, in the same order: find the rows without a partner; if they are "
                          "the last ones, cut them off: x[:",
                          std::min(rows, labels.count()), "]"));
  }
  if (rows == 0) throw Error(cat(options.input, ": '", options.images, "' is empty"));
  ImageListing listing;
  listing.root = options.input + ":";
  listing.unit = "rows";
  listing.first_label = options.first_label;
  ImportRows training = options.rows.value_or(ImportRows{0, rows});
  if (!options.rows && options.validation_rows) {  // the rows outside the validation split, which must be one piece
    const ImportRows held = *options.validation_rows;
    if (held.first > 0 && held.end < rows)
      throw Error("--validation-rows leaves two pieces", "give --rows FIRST:END too");
    training = held.first > 0 ? ImportRows{0, held.first} : ImportRows{held.end, rows};
  }
  Splits splits;
  const SplitIndex first = options.split == "validation" ? validation_split : train_split;
  splits[first] = read_split(options, checked_rows(options, training, rows), source, labels, log);
  if (options.validation_rows) {
    splits[validation_split] =
        read_split(options, checked_rows(options, *options.validation_rows, rows), source, labels, log);
  }
  const std::size_t used = splits[0].labels.size() + splits[1].labels.size();
  if (const auto others = static_cast<std::uint64_t>(rows) - used; others > 0)
    leave_out(listing.left_out, "row(s) outside --rows and --validation-rows", "", others);
  if (!options.class_list.empty()) listing.classes = read_class_list(options.class_list);
  if (options.class_list.empty()) listing.classes = classes_in_file(options, labels, listing.warnings);
  if (listing.classes.empty()) listing.classes = classes_of(options, splits);
  if (!options.class_list.empty()) expect_ids_in_order(listing.classes, options.class_list, options.first_label);
  const auto classes = static_cast<std::int64_t>(listing.classes.ids.size());
  for (const SplitIndex split : {train_split, validation_split})
    listing.splits[split] = items_of(options, splits[split], classes, splits);
  if (options.validation.value_or(0) > 0) hold_out_images(listing, options.seed, *options.validation);
  return listing;
}

// Says how the file was understood, so that a user can see what is wrong.
void print_reading(const ImportOptions& options, const ArraySource& source, const ClassList& classes,
                   std::ostream& log) {
  log << "import      " << options.input << ", '" << options.images << "': " << source.describe() << "\n";
  if (const std::string doubt = source.doubt(); !doubt.empty()) log << "note        " << doubt << "\n";
  const bool are_named = classes.ids.front() != std::to_string(0) || classes.names.front() != classes.ids.front();
  if (options.class_list.empty() && !are_named) return;
  constexpr std::size_t most_shown = 3;
  log << "classes     ";
  for (std::size_t k = 0; k < std::min(most_shown, classes.names.size()); ++k)
    log << (k == 0 ? "" : ", ") << k + static_cast<std::size_t>(options.first_label) << " is "
        << shown(classes.names[k]);
  log << (classes.names.size() > most_shown ? ", ...\n" : "\n");
}

}  // namespace

ImagesReport import_arrays(const ImportOptions& given, const Ranks& ranks, std::ostream& log) {
  ImportOptions options = given;
  check(options);
  expect_no_writer(options.input);
  const ArrayLabels labels(options.input, options.labels);
  const ArraySource source(options.input, options.images, options.layout, labels.count());
  if (options.encoding.empty()) options.encoding = source.encoded() ? "jpeg" : "raw";
  check_image_options(options);
  const std::unique_ptr<OutputFiles> files = make_output_files(options, ranks);
  if (files) files->expect_other_than(options.input);
  const ImageListing listing = list_arrays(options, source, labels, ranks.first() ? &log : nullptr);
  RecordOptions records = record_options(options);
  records.grey_pixels = !source.encoded() && source.channels() == 1;
  if (ranks.first()) print_reading(options, source, listing.classes, log);
  return convert_listing(options, records, listing, source, std::filesystem::path(options.input).filename().string(),
                         files.get(), ranks, log);
}

}  // namespace ringtrain
