#include "data_prep/images/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
namespace {

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string joined(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += (text.empty() ? "" : ", ") + fixed(value, 4);
  return text;
}

constexpr std::size_t shown_of_a_kind = 10;

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
  for (const Kind& kind : kinds)
    for (const std::string& line : kind.lines) all += cat(labelled(kind.name), line, "\n");
  return all;
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
    log << label << with_thousands(part.samples) << " images, " << readable_bytes(static_cast<double>(part.bytes))
        << ", " << part.shards << " file(s)";
    if (part.resumed_shards > 0) log << ", " << part.resumed_shards << " of them taken over (--resume)";
    log << "\n";
  }
  log << "classes     " << report.classes << ", " << report.smallest_class << " to " << report.largest_class
      << " images each\n";
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
        << fixed(100 * static_cast<double>(report.doubtful.size()) / static_cast<double>(used), 1)
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
  if (report.resized > 0) log << "resized     " << with_thousands(report.resized) << "\n";
  if (!report.broken.empty()) log << "broken      " << report.broken.size() << ", left out (see the list above)\n";
  log << "mean, std   " << joined(report.mean) << "; " << joined(report.std)
      << (options.statistics ? " (of the training pixels)" : " (ImageNet's)") << "\n"
      << "uuid        " << report.dataset_uuid << "\n";
  for (const std::string& warning : report.warnings) log << "warning     " << warning << "\n";
  const double seconds = report.examine_seconds + report.write_seconds;
  log << "time        " << fixed(seconds, 1) << " s: " << fixed(report.examine_seconds, 1) << " examining (check "
      << options.check << "), " << fixed(report.write_seconds, 1) << " writing and syncing; "
      << fixed(static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9), 1) << " MB/s, " << workers << "\n"
      << std::flush;
}

}  // namespace ringtrain
