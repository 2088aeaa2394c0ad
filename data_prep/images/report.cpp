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

}  // namespace

void print_notes(const ImagesReport& report, std::ostream& log) {
  for (const std::string& line : report.converted) log << "re-encoded  " << line << "\n";
  for (const std::string& line : report.broken) log << "broken      " << line << "\n";
  log << std::flush;
}

void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing, int ranks,
                   int threads, std::ostream& log) {
  std::uint64_t bytes = 0;
  for (const std::size_t split : {train_split, validation_split}) {
    const ImagesReport::Split& part = report.splits[split];
    bytes += part.bytes;
    const std::string label = cat(split_names[split], std::string(12 - std::string(split_names[split]).size(), ' '));
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
  if (listing.ignored > 0)
    log << "ignored     " << listing.ignored << " other file(s), such as " << listing.ignored_example << "\n";
  if (!report.converted.empty())
    log << "re-encoded  " << report.converted.size() << " PNG or CMYK (see the list above)\n";
  if (report.resized > 0) log << "resized     " << with_thousands(report.resized) << "\n";
  if (!report.broken.empty()) log << "broken      " << report.broken.size() << ", left out (see the list above)\n";
  log << "mean, std   " << joined(report.mean) << "; " << joined(report.std)
      << (options.statistics ? " (of the training pixels)" : " (ImageNet's)") << "\n"
      << "uuid        " << report.dataset_uuid << "\n";
  const double seconds = report.examine_seconds + report.write_seconds;
  log << "time        " << fixed(seconds, 1) << " s: " << fixed(report.examine_seconds, 1) << " examining (check "
      << options.check << "), " << fixed(report.write_seconds, 1) << " writing and syncing; "
      << fixed(static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9), 1) << " MB/s, " << ranks << " rank(s) x "
      << threads << " thread(s)\n"
      << std::flush;
}

}  // namespace ringtrain
