// What a conversion of images tells the user: the summary, the notes and the warnings of passes.h.
#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <ostream>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/files.h"
#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/images/passes.h"

namespace ringtrain {
namespace {

std::string with_4_decimals(const std::vector<double>& values) {
  return joined(values, ", ", [](double value) { return printed("%.4f", value); });
}

constexpr std::size_t shown_of_a_kind = 10;
constexpr std::string_view notes_title =
    "Notes of ringtrain-data: pictures that were left out, doubtful or encoded again\n";

// Returns a word, padded with blanks to the width of its column.
std::string labelled(const std::string& word) {
  return word + std::string(12 - word.size(), ' ');
}

struct Kind {
  const char* name;
  const std::vector<std::string>& lines;
};

std::array<Kind, 3> kinds_of(const ImagesReport& report) {
  return {Kind{"broken", report.broken}, {"doubtful", report.doubtful}, {"re-encoded", report.converted}};
}

}  // namespace

std::string all_notes(const ImagesReport& report) {
  std::string all;
  const auto kinds = kinds_of(report);
  if (std::ranges::none_of(kinds, [](const Kind& kind) { return kind.lines.size() > shown_of_a_kind; })) return all;
  all = notes_title;
  for (const Kind& kind : kinds)
    for (const std::string& line : kind.lines) all += cat(labelled(kind.name), line, "\n");
  return all;
}

std::string notes_path(const std::string& out) {
  return out + "-notes.txt";
}

void expect_own_notes(const std::string& path) {
  if (!std::filesystem::exists(path)) return;
  if (first_bytes(path, notes_title.size()) != notes_title)
    throw Error(cat(path, ": exists, and ringtrain-data did not write it"), "move it away, or choose another --out");
}

void print_notes(const ImagesReport& report, const std::string& all_of_them, std::ostream& log) {
  for (const Kind& kind : kinds_of(report)) {
    const std::size_t shown = std::min(kind.lines.size(), shown_of_a_kind);
    for (std::size_t i = 0; i < shown; ++i) log << labelled(kind.name) << kind.lines[i] << "\n";
    if (shown < kind.lines.size())
      log << labelled(kind.name) << "... and " << kind.lines.size() - shown << " more: " << all_of_them << "\n";
  }
  log << std::flush;
}

void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing,
                   const std::string& workers, std::ostream& log) {
  std::uint64_t bytes = 0;
  for (const std::size_t split : {train_split, validation_split}) {
    const ImagesReport::Split& part = report.splits[split];
    bytes += part.bytes;
    const std::string label = labelled(split_names[split]);
    if (part.samples == 0) {
      log << label << "none\n";
      continue;
    }
    log << label << with_thousands(part.samples) << " images, " << readable_bytes(part.bytes) << ", " << part.shards
        << " file(s)";
    if (part.resumed_shards > 0) log << ", " << part.resumed_shards << " of them taken over (--resume)";
    log << "\n";
  }
  log << "classes     " << report.classes << ", " << report.smallest_class << " to " << report.largest_class
      << " training images each\n";
  std::uint64_t left_out = 0;
  for (const auto& [reason, each] : listing.left_out) left_out += each.count;
  const std::uint64_t used = listing.splits[0].size() + listing.splits[1].size();
  if (left_out + report.broken.size() > 0)
    log << labelled(listing.unit) << used + left_out << " found = " << used - report.broken.size() << " used + "
        << report.broken.size() << " broken + " << left_out << " left out\n";
  for (const auto& [reason, each] : listing.left_out) log << "left out    " << describe(reason, each) << "\n";
  if (!report.converted.empty())
    log << "re-encoded  " << report.converted.size() << " (PNG, CMYK or turned; see the list above)\n";
  if (!report.doubtful.empty())
    log << "doubtful    " << report.doubtful.size() << " of " << used << " images ("
        << printed("%.1f", 100 * static_cast<double>(report.doubtful.size()) / static_cast<double>(used))
        << " %) decode, but with a warning. Few extraneous bytes are harmless; with many, or with zero bytes, a part "
           "of the picture "
           "is "
           "often wrong. Look at them.\n";
  if (report.turned > 0)
    log << "turned      " << report.turned << " image(s) have an EXIF orientation, "
        << (options.orientation == "apply" ? "and were turned upright and encoded again"
                                           : "which was not applied; --orientation apply turns them upright")
        << "\n";
  if (report.with_alpha > 0)
    log << "alpha       " << report.with_alpha
        << " image(s) have an alpha channel. It is dropped: transparent parts show the colour that is stored there, "
           "which is often black\n";
  if (report.deep > 0)
    log << "16 bits     " << report.deep << " PNG file(s) have 16 bits a channel, of which the upper 8 are kept\n";
  if (report.resized > 0) log << "resized     " << with_thousands(report.resized) << "\n";
  if (!report.broken.empty()) log << "broken      " << report.broken.size() << ", left out (see the list above)\n";
  log << "mean, std   " << with_4_decimals(report.mean) << "; " << with_4_decimals(report.std)
      << (options.statistics ? " (of the training pixels)" : " (ImageNet's)") << "\n"
      << "uuid        " << report.dataset_uuid << "\n";
  for (const std::string& warning : report.warnings) log << "warning     " << printable(warning) << "\n";
  const double seconds = report.examine_seconds + report.write_seconds;
  log << "time        " << printed("%.1f", seconds) << " s: " << printed("%.1f", report.examine_seconds)
      << " examining (check " << options.check << "), " << printed("%.1f", report.write_seconds)
      << " writing and syncing; " << printed("%.1f", static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9))
      << " MB/s, " << workers << "\n"
      << std::flush;
}

std::string counted_reasons(const std::vector<ImageNote>& notes) {
  std::map<std::string, std::int64_t> counts;
  for (const ImageNote& note : notes) ++counts[note.reason];
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, sorted.size()); ++i)
    text += cat(i == 0 ? "" : ", ", sorted[i].second, " (", sorted[i].first, ")");
  return sorted.size() > most ? cat(text, ", and ", sorted.size() - most, " other reasons") : text;
}

std::string advice_on(const std::vector<ImageNote>& broken) {
  const auto first_with = [&](std::initializer_list<const char*> words) -> std::string {
    const auto note = std::ranges::find_if(broken, [&](const ImageNote& each) {
      return std::ranges::any_of(words, [&](const char* word) { return each.reason.starts_with(word); });
    });
    return note == broken.end() ? "" : note->text.substr(0, note->text.find(": " + note->reason));
  };
  std::string commands;
  std::string phone = first_with({"is HEIC", "is AVIF"});
  std::string other = first_with({"is GIF", "is BMP", "is WebP", "is TIFF", "is PNM", "is JPEG 2000", "is JPEG XL"});
  std::error_code ignored;
  const bool in_tar = !std::filesystem::exists(phone.empty() ? other : phone, ignored);
  if (in_tar)  // the path that a member has after unpacking
    for (std::string* path : {&phone, &other})
      if (const std::size_t end = path->find(".tar/"); end != std::string::npos) path->erase(0, end + 5);
  if (!phone.empty())
    commands = cat(shell_command({"heif-convert", phone, phone.substr(0, phone.rfind('.')) + ".png"}),
                   " (package libheif-examples)");
  if (!other.empty())
    commands += cat(commands.empty() ? "" : ", ", shell_command({"mogrify", "-format", "png", other}),
                    " (ImageMagick; from version 7 on: magick mogrify)");
  if (!commands.empty())
    return cat(in_tar ? "unpack the tar file; then " : "", "convert other formats to PNG or JPEG: ", commands,
               "; then delete the originals; ");
  if (std::ranges::any_of(broken,
                          [](const ImageNote& note) { return note.reason.find("No such file") != std::string::npos; }))
    return "a list has paths below INPUT; ";
  return "";
}

namespace {

// The classes that have no image in some splits.
struct EmptyClasses {
  std::vector<std::string> splits;
  std::vector<std::size_t> classes;
  std::int64_t broken = 0;  // images of these classes

  std::string where() const {
    return splits.size() == 1 ? cat("the ", splits[0], " split")
                              : cat("the ", splits[0], " and ", splits[1], " splits");
  }
};

// Splits that lack the same classes are one entry.
std::vector<EmptyClasses> empty_classes(const ImageListing& listing, const Examination& examination,
                                        const std::vector<SplitPlan>& plans) {
  std::vector<EmptyClasses> found;
  for (const SplitPlan& plan : plans) {
    std::vector<bool> present(listing.classes.ids.size(), false);
    for (const std::int64_t i : plan.order)
      present[static_cast<std::size_t>(listing.splits[plan.index][static_cast<std::size_t>(i)].label)] = true;
    EmptyClasses empty{{plan.description.split}, {}, 0};
    for (std::size_t k = 0; k < present.size(); ++k)
      if (!present[k]) empty.classes.push_back(k);
    if (empty.classes.empty()) continue;
    empty.broken = std::ranges::count_if(examination.broken, [&](const ImageNote& note) {
      return note.split == plan.index &&
             !present[static_cast<std::size_t>(listing.splits[note.split][note.index].label)];
    });
    if (!found.empty() && found.back().classes == empty.classes) {
      found.back().splits.push_back(plan.description.split);
      found.back().broken += empty.broken;
    } else {
      found.push_back(std::move(empty));
    }
  }
  return found;
}

}  // namespace

void warn_of_empty_classes(const ImageListing& listing, const Examination& examination,
                           const std::vector<SplitPlan>& plans, std::vector<std::string>& warnings) {
  const std::size_t classes = listing.classes.ids.size();
  const bool are_rows = listing.unit == std::string_view("rows");
  if (classes == 1) warnings.push_back("there is only one class, so there is nothing to tell apart");
  for (bool is_said = false; const EmptyClasses& empty : empty_classes(listing, examination, plans)) {
    const bool lacks_0 = empty.classes == std::vector<std::size_t>{0} && empty.splits.size() == plans.size();
    if (lacks_0 && classes > 2 && listing.classes.ids[0] == "0" && listing.first_label == 0) {
      warnings.push_back(cat(
          "class 0 has no pictures in ", empty.where(), ": do the labels count from 1? They must count from 0. ",
          are_rows ? "Give --first-label 1" : "Subtract 1 and convert again", ", or the model has a class too many"));
      continue;
    }
    std::vector<std::string> names;
    for (const std::size_t k : empty.classes) names.push_back(cat("'", listing.classes.ids[k], "'"));
    constexpr std::size_t wrapped = 255;  // -1 as an unsigned byte, which marks pictures of no class
    const bool seems_wrapped = are_rows && !is_said && classes == wrapped + 1 && empty.classes.back() == wrapped - 1;
    is_said = is_said || seems_wrapped;
    warnings.push_back(cat(
        empty.classes.size(), " of ", classes, " classes have no image in ", empty.where(), ": ", first_names(names),
        empty.broken == 0 ? ""
                          : cat("; ", empty.broken, " of theirs are broken: repair or remove them, and convert again"),
        seems_wrapped ? "; label 255 is often -1 in one byte, which means no class: leave out such "
                        "rows before the conversion"
                      : ""));
  }
}

namespace {

void warn_of_dark_pixels(const ImageListing& listing, const Examination& examination,
                         std::vector<std::string>& warnings) {
  constexpr int dark = 15;
  int brightest = -1;
  std::int64_t images = 0, zeros = 0;
  std::string example;
  for (const SplitIndex split : {train_split, validation_split}) {
    for (std::size_t i = 0; i < examination.items[split].size(); ++i) {
      const Examined& item = examination.items[split][i];
      if (item.broken || item.brightest < 0) continue;
      ++images;
      brightest = std::max<int>(brightest, item.brightest);
      if (item.brightest == 0 && zeros++ == 0) example = listing.splits[split][i].key;
    }
  }
  if (zeros > 0) warnings.push_back(cat(zeros, " pictures are all zeros, such as ", example));
  if (brightest == 1)
    warnings.push_back(cat("no pixel of the ", images,
                           " images is above 1, expected 0 to 255: if its values are 0 and 1, multiply them by 255"));
  else if (brightest > 1 && brightest <= dark)
    warnings.push_back(
        cat("no pixel of the ", images, " images is above ", brightest,
            ", expected 0 to 255: the pictures are nearly black. Scale them, with the same number for all "
            "splits: numpy.rint(x * (255 / ",
            brightest, ")).astype('u1')"));
}

}  // namespace

void warn_of_dark_images(const ImageListing& listing, const Examination& examination, ImagesReport& report) {
  warn_of_dark_pixels(listing, examination, report.warnings);
  if (report.deep_and_dark == 0) return;
  report.warnings.push_back(cat(report.deep_and_dark,
                                " PNG file(s) of 16 bits are nearly black: their values are below 4,096 of 65,535. "
                                "Scale them to 0 to 255 and write them with 8 bits"));
}

void warn_of_same_images(const ImageListing& listing, const Examination& examination,
                         std::vector<std::string>& warnings) {
  struct First {
    SplitIndex split;
    std::size_t index;
  };
  std::unordered_map<std::uint64_t, First> firsts;  // by checksum and size
  std::int64_t in_classes = 0, in_splits = 0;
  std::string class_example, split_example;
  for (const SplitIndex split : {train_split, validation_split}) {
    for (std::size_t i = 0; i < examination.items[split].size(); ++i) {
      const Examined& item = examination.items[split][i];
      if (item.broken) continue;
      const auto [found, is_new] = firsts.try_emplace((std::uint64_t{item.crc32c} << 32) ^ item.bytes, First{split, i});
      if (is_new) continue;
      const First first = found->second;
      const ImageItem& a = listing.splits[first.split][first.index];
      const ImageItem& b = listing.splits[split][i];
      const std::string pair = cat(a.key, " and ", b.key);
      if (a.label != b.label && in_classes++ == 0) class_example = pair;
      if (first.split != split && in_splits++ == 0) split_example = pair;
    }
  }
  if (in_classes > 0)
    warnings.push_back(
        cat(in_classes, " image(s) have the same bytes as an image of another class, such as ", class_example));
  if (in_splits > 0)
    warnings.push_back(cat(in_splits, " image(s) of the validation split have the same bytes as a training image, ",
                           "such as ", split_example));
}

}  // namespace ringtrain
