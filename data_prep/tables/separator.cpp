#include "data_prep/tables/separator.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "data_prep/tables/columns.h"

namespace ringtrain {
namespace {

constexpr std::array candidates = {',', ';', '\t', '|'};
constexpr std::size_t most_lines = 200;
constexpr std::size_t most_bytes = 1 << 20;

// What the first lines say about one candidate.
struct Fit {
  char separator = ',';
  std::size_t width = 0;  // fields of the first record
  bool is_even = true;    // nearly all records have so many fields
  int match = 0;          // 2: the column has the name that is looked for; 1: it may be the one; 0: there is none
  bool is_whole = true;   // the column's fields hold no other separator of this table
};

struct Sample {
  std::string text;
  bool is_all = false;  // no line follows
};

Sample first_lines(LineReader& lines) {
  Sample sample;
  for (std::size_t i = 0; i < most_lines && sample.text.size() < most_bytes; ++i) {
    const LineReader::Line* line = lines.peek(i);
    sample.is_all = line == nullptr;
    if (line == nullptr) break;
    sample.text += line->text;
    sample.text += '\n';
  }
  return sample;
}

// Returns nothing if no reader of this format gets through the sample.
std::optional<Fit> fit_of(char separator, const Sample& sample, const TableQuestion& question,
                          const std::string& others) {
  std::istringstream in(sample.text);
  LineReader lines(in, "", longest_table_line);
  CsvReader reader(lines, {separator, question.quotes});
  std::vector<std::vector<std::string>> records;
  try {
    for (std::vector<std::string> fields; reader.next(fields);) {
      if (!is_blank_or_comment(fields, records.empty() ? 0 : records[0].size())) records.push_back(fields);
    }
  } catch (const Error&) {  // the last field of a part of a table may go on after it
    if (sample.is_all || records.empty()) return std::nullopt;
  }
  if (records.empty()) return std::nullopt;
  Fit fit{.separator = separator, .width = records[0].size()};
  const auto even = std::count_if(records.begin(), records.end(),
                                  [&](const auto& fields) { return count_filled(fields, fit.width) == fit.width; });
  fit.is_even = 10 * even >= 9 * std::ssize(records);
  const ColumnMatch match = match_column(records[0], question.column, question.has_header);
  fit.match = match.quality;
  for (const auto& fields : records) {
    if (!match.columns.empty() && match.columns[0] < fields.size() &&
        fields[match.columns[0]].find_first_of(others) != std::string::npos)
      fit.is_whole = false;
  }
  return fit;
}

// Leaves out what `is_worse` says, unless nothing else is left.
template <class Test>
void prefer(std::vector<Fit>& fits, Test&& is_good) {
  if (std::any_of(fits.begin(), fits.end(), is_good))
    std::erase_if(fits, [&](const Fit& fit) { return !is_good(fit); });
}

}  // namespace

char separator_of(const std::string& word) {
  if (word == "comma") return ',';
  if (word == "semicolon") return ';';
  if (word == "tab" || word == "\\t") return '\t';
  if (word == "pipe") return '|';
  if (word == "space") return ' ';
  if (word == "none") return '\n';
  const bool usable = word.size() == 1 && word[0] != '"' && word[0] != '\n' && word[0] != '\r' && word[0] != '\0' &&
                      static_cast<unsigned char>(word[0]) < 0x80;
  if (!usable) {
    throw Error(
        cat("--separator '", word, "': expected one character of ASCII, or comma, semicolon, tab, pipe, space, none"));
  }
  return word[0];
}

std::string separator_name(char separator) {
  if (separator == '\t') return "tabs";
  if (separator == '\n') return "nothing";
  return static_cast<unsigned char>(separator) < 0x20 ? cat("the character ", int{separator})
                                                      : cat("'", std::string(1, separator), "'");
}

bool is_separator_line(const std::string& line, char& separator) {
  std::string text = line;
  if (text.size() > 1 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  if (text.size() < 5 || text[3] != '=' || ascii_lower(text.substr(0, 3)) != "sep") return false;
  const std::string_view rest = std::string_view(text).substr(4);
  if (rest != "\\t" && !std::all_of(rest.begin(), rest.end(), [&](char c) { return c == rest[0]; })) return false;
  separator = rest == "\\t" ? '\t' : rest[0];
  return true;
}

char guess_separator(LineReader& lines, const TableQuestion& question) {
  const Sample sample = first_lines(lines);
  std::string present;
  for (const char candidate : candidates) {
    if (sample.text.find(candidate) != std::string::npos) present += candidate;
  }
  std::vector<Fit> fits;
  for (const char candidate : present) {
    std::string others = present;
    std::erase(others, candidate);
    const std::optional<Fit> fit = fit_of(candidate, sample, question, others);
    if (fit && fit->width > 1) fits.push_back(*fit);
  }
  if (fits.empty()) return question.tabs_first ? '\t' : ',';
  if (question.tabs_first) prefer(fits, [](const Fit& fit) { return fit.separator == '\t'; });
  prefer(fits, [](const Fit& fit) { return fit.match > 0; });
  prefer(fits, [](const Fit& fit) { return fit.is_even; });
  prefer(fits, [](const Fit& fit) { return fit.is_whole; });
  prefer(fits, [](const Fit& fit) { return fit.match == 2; });
  if (fits.size() == 1) return fits[0].separator;
  std::string names;
  for (const Fit& fit : fits) names += cat(names.empty() ? "" : " or ", separator_name(fit.separator));
  throw Error(cat(lines.file_name(), ": its fields may be separated by ", names),
              "say which with --separator (a character, or tab)");
}

void check_is_no_table(LineReader& lines) {
  const Sample sample = first_lines(lines);
  for (const char candidate : candidates) {
    std::istringstream in(sample.text);
    std::int64_t all = 0, even = 0, first = 0;
    bool has_name = false;
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      const auto count = std::count(line.begin(), line.end(), candidate);
      if (all++ == 0) {
        first = count;
        std::istringstream cells(line);
        for (std::string cell; std::getline(cells, cell, candidate);)
          has_name = has_name || match_column({cell}, "", true).quality == 2;
      }
      even += count == first;
    }
    if (first == 0 || all < 2 || 10 * even < 9 * all) continue;
    if (candidate == ',' && !has_name) continue;  // "last name, first name" may be one name
    throw Error(cat(lines.file_name(), ": its lines look like records of a table that are separated by ",
                    separator_name(candidate), ", expected one name a line"),
                "name the column with --column, or use --separator none if each line is one name");
  }
}

}  // namespace ringtrain
