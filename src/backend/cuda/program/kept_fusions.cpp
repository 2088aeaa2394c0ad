#include "backend/cuda/program/kept_fusions.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"

namespace ringtrain::cuda {
namespace {

std::string file_of(const std::string& folder) {
  return folder + "/fusions";
}

// Adds the timed lines of a table's text to `lines`, by key, and the lines of ways that lost the device, by key and
// way. A line has key, way, seconds and more, with tabs between them (FusionTable::text).
void add_lasting_lines(const std::string& text, std::map<std::string, std::string>& lines) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t way = line.find('\t'), seconds = line.find('\t', way + 1);
    if (way == std::string::npos || seconds == std::string::npos) continue;
    const double value = std::strtod(line.c_str() + seconds + 1, nullptr);
    if (value != 0) lines[line.substr(0, value > 0 ? way : seconds)] = line;
  }
}

// Returns false when the file cannot be written.
bool add_to_file(const std::string& folder, const FusionTable& table) {
  const std::string before = file_text(file_of(folder));
  std::map<std::string, std::string> lines;
  add_lasting_lines(before, lines);
  add_lasting_lines(table.text(), lines);
  std::string text;
  for (const auto& [key, line] : lines) text += line + '\n';
  return text == before || replace_cache_file(file_of(folder), text);
}

}  // namespace

void load_kept_fusions(const std::string& folder, FusionTable& table) {
  if (folder.empty()) return;
  try {
    table.load_kept(file_text(file_of(folder)));
  } catch (const Error& e) {
    log_warning(file_of(folder), ": ", e.what(), "; fusions are searched again");
  }
}

void keep_fusions(const std::string& folder, FusionTable& table) {
  if (folder.empty()) return;
  auto keep = [folder, warned = false](const FusionTable& found) mutable {
    if (warned || add_to_file(folder, found)) return;
    warned = true;
    log_warning(file_of(folder), " cannot be written: later runs search for fusions anew");
  };
  keep(table);
  table.after_each_site(keep);
}

}  // namespace ringtrain::cuda
