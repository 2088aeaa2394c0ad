// Reads and writes the tables that were recorded for several kinds of GPU, src/backend/cuda/device/recorded/*.csv. The
// first column of a row names the GPUs for which the rest of the row holds. Empty columns after it repeat those of the
// row above. The comment `# GPU: PREFIX` says with which columns each row of this GPU begins, here without its final
// comma.
#pragma once

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringtrain::cuda {

inline constexpr const char* recorded_folder = "src/backend/cuda/device/recorded";

struct RecordedTable {
  std::map<std::string, std::string> prefixes;           // of each GPU
  std::map<std::string, std::vector<std::string>> rows;  // the GPUs of each row, in their order
};

// The length of the whole columns, with their commas, with which both rows begin.
inline std::size_t common_columns(const std::string& one, const std::string& other) {
  std::size_t common = 0;
  for (std::size_t i = 0; i < std::min(one.size(), other.size()) && one[i] == other[i]; ++i)
    if (one[i] == ',') common = i + 1;
  return common;
}

// Returns an empty table if there is no file.
inline RecordedTable read_recorded(const std::string& path) {
  RecordedTable table;
  std::ifstream in(path);
  std::string above;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("# ")) {
      const std::size_t colon = line.find(": ");
      if (colon == std::string::npos) throw Error(cat(path, ": '", line, "', expected '# GPU: PREFIX'"));
      table.prefixes[line.substr(2, colon - 2)] = line.substr(colon + 2);
      continue;
    }
    const std::size_t comma = line.find(',');
    if (comma == std::string::npos) throw Error(cat(path, ": '", line, "' has no comma"));
    std::istringstream gpus(line.substr(0, comma));
    std::string row = line.substr(comma + 1);
    std::size_t repeated = 0;
    for (; row.starts_with(','); row.erase(0, 1)) repeated = above.find(',', repeated) + 1;
    row.insert(0, above, 0, repeated);
    for (std::string gpu; gpus >> gpu;)
      if (gpu != "gpus") table.rows[row].push_back(gpu);
    above = row;
  }
  return table;
}

// The rows of a GPU with its prefix, sorted. There are none if nothing is recorded.
inline std::vector<std::string> recorded_rows(const std::string& path, const std::string& gpu) {
  const RecordedTable table = read_recorded(path);
  const auto prefix = table.prefixes.find(gpu);
  std::vector<std::string> rows;
  for (const auto& [row, gpus] : table.rows)
    if (std::ranges::count(gpus, gpu) != 0)
      rows.push_back(prefix == table.prefixes.end() ? row : cat(prefix->second, ",", row));
  std::ranges::sort(rows);
  return rows;
}

// Replaces the rows of a GPU. Rows that do not begin with `prefix` are left out. `header` is the line of the columns'
// names, of which the first one is "gpus". Throws Error if the file cannot be written.
inline void record_rows(const std::string& path, const std::string& header, const std::string& gpu,
                        const std::string& prefix, const std::vector<std::string>& rows) {
  RecordedTable table = read_recorded(path);
  for (auto& [row, gpus] : table.rows) std::erase(gpus, gpu);
  table.prefixes.erase(gpu);
  if (!prefix.empty()) table.prefixes[gpu] = prefix;
  const std::string begin = prefix.empty() ? "" : prefix + ",";
  for (const std::string& row : rows) {
    if (!row.starts_with(begin)) continue;
    std::vector<std::string>& gpus = table.rows[row.substr(begin.size())];
    if (std::ranges::count(gpus, gpu) == 0) gpus.push_back(gpu);
    std::ranges::sort(gpus);
  }
  std::ofstream out(path);
  for (const auto& [name, text] : table.prefixes) out << "# " << name << ": " << text << "\n";
  out << header << "\n";
  std::string above;
  for (const auto& [row, gpus] : table.rows) {
    if (gpus.empty()) continue;
    for (std::size_t i = 0; i < gpus.size(); ++i) out << (i == 0 ? "" : " ") << gpus[i];
    const std::size_t repeated = common_columns(row, above);
    out << ",";
    for (const char c : row.substr(0, repeated))
      if (c == ',') out << c;
    out << row.substr(repeated) << "\n";
    above = row;
  }
  if (!out.flush()) throw Error(cat("cannot write ", path));
}

}  // namespace ringtrain::cuda
