#include "data_prep/tables/layout.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {
namespace {

constexpr std::array candidates = {',', ';', '\t', '|'};
constexpr std::size_t most_lines = 200;
constexpr std::size_t most_bytes = 1 << 20;
constexpr std::int64_t most_title_lines = 10;

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

struct Record {
  std::vector<std::string> fields;
  std::int64_t line = 0;
};

// Reads the records of the sample. Returns nothing if no reader of this format gets through it.
std::vector<Record> records_of(const Sample& sample, CsvFormat format) {
  std::istringstream in(sample.text);
  LineReader lines(in, "", longest_table_line);
  CsvReader reader(lines, format);
  std::vector<Record> records;
  try {
    for (std::vector<std::string> fields; reader.next(fields);) {
      if (!is_blank_or_comment(fields, records.empty() ? 0 : records[0].fields.size()))
        records.push_back({fields, reader.line()});
    }
  } catch (const Error&) {  // the last field of a part of a table may go on after it
    if (sample.is_all) records.clear();
  }
  return records;
}

// Returns the number of fields that are not empty.
std::size_t count_not_empty(const std::vector<std::string>& fields) {
  return static_cast<std::size_t>(std::ranges::count_if(
      fields, [](const std::string& field) { return field.find_first_not_of(" \t") != std::string::npos; }));
}

// Returns the place of the header in the records: 0, or a later one if the first record is a title.
std::size_t header_of(const std::vector<Record>& records, const TableQuestion& question) {
  const std::vector<std::string>& first = records[0].fields;
  const auto is_wide = [](const Record& record) { return count_not_empty(record.fields) > 1; };
  if (!question.has_header || question.header_is_known || count_not_empty(first) != 1 ||
      count_not_empty({first[0]}) == 0 || is_column_name(first[0], question.column))
    return 0;
  const auto header = std::ranges::find_if(records, is_wide);
  if (header == records.end() || header->line - records[0].line >= most_title_lines) return 0;
  if (2 * std::count_if(header, records.end(), is_wide) <= records.end() - header) return 0;
  return static_cast<std::size_t>(header - records.begin());
}

// Returns nothing if the sample is no table with this separator.
std::optional<Fit> fit_of(char separator, const Sample& sample, const TableQuestion& question,
                          const std::string& others) {
  const std::vector<Record> all = records_of(sample, {separator, question.quotes});
  if (all.empty()) return std::nullopt;
  std::vector<std::vector<std::string>> records;
  for (std::size_t i = header_of(all, question); i < all.size(); ++i) records.push_back(all[i].fields);
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

bool is_number(const std::string& field) {
  return !field.empty() && field.find_first_not_of(" 0123456789.-+") == std::string::npos;
}

// Returns whether the last field is a code, such as F and M: few values stand in many records.
bool ends_in_codes(const std::vector<Record>& records) {
  constexpr std::ptrdiff_t repeats = 8;
  std::set<std::string> values;
  for (const Record& record : records)
    if (record.fields.size() > 1) values.insert(record.fields.back());
  return !values.empty() && repeats * std::ssize(values) <= std::ssize(records);
}

// Returns whether commas separate the fields of a table, and not only "last name, first name": most records have three
// fields or more, or a number or nothing in their last field, or a code.
bool are_records(const std::vector<Record>& records) {
  const auto several = std::ranges::count_if(records, [](const Record& r) { return r.fields.size() > 2; });
  const auto numbered = std::ranges::count_if(records, [](const Record& r) {
    return r.fields.size() > 1 && (r.fields.back().empty() || is_number(r.fields.back()));
  });
  return 2 * std::max(several, numbered) > std::ssize(records) || ends_in_codes(records);
}

// Throws Error if most lines have two or more blanks within them, as columns of a fixed width have.
void check_no_fixed_columns(const LineReader& source, const Sample& sample) {
  std::istringstream in(sample.text);
  std::ptrdiff_t lines = 0, wide = 0;
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find_first_not_of(" \r"), last = line.find_last_not_of(" \r");
    if (first == std::string::npos) continue;
    ++lines;
    if (line.substr(first, last - first).find("  ") != std::string::npos) ++wide;
  }
  if (lines > 1 && 2 * wide > lines)
    throw Error(cat(source.file_name(), ": its lines look like columns of a fixed width"),
                "write the column of the names to a file of its own (cut -c), or use --separator none if each line is "
                "one name");
}

// Returns whether most records have the same number of fields.
bool is_even(const std::map<std::size_t, std::size_t>& widths, std::size_t records) {
  return std::ranges::any_of(widths, [&](const auto& each) { return each.first > 1 && 2 * each.second > records; });
}

// Throws Error if nearly all lines after the header are split evenly by a separator that the header lacks.
void check_header_is_split(const LineReader& lines, const Sample& sample, const TableQuestion& question,
                           const std::string& separators) {
  for (const char separator : separators) {
    const std::vector<Record> records = records_of(sample, {separator, question.quotes});
    if (records.size() < 2 || records[1].fields.size() < 2) continue;
    const std::size_t width = records[1].fields.size();
    const auto even = std::count_if(records.begin() + 1, records.end(),
                                    [&](const Record& record) { return record.fields.size() == width; });
    if (10 * even >= 9 * (std::ssize(records) - 1))
      throw Error(cat(lines.file_name(), ": the header has one field, but ", even, " of ", records.size() - 1,
                      " lines after it have ", width, " fields separated by ", separator_name(separator)),
                  "name all columns in the header, or use --separator none if each line is one value");
  }
}

// Throws Error if the header and nearly all lines hold a symbol equally often that separates the fields of some tables.
void check_no_rare_separator(const LineReader& lines, const Sample& sample, const TableQuestion& question) {
  for (const char separator : {':', '^', '~'}) {
    const std::vector<Record> records = records_of(sample, {separator, question.quotes});
    if (records.size() < 3 || records[0].fields.size() < 2) continue;
    const std::size_t width = records[0].fields.size();
    const auto even = std::ranges::count_if(records, [&](const Record& r) { return r.fields.size() == width; });
    if (10 * even >= 9 * std::ssize(records))
      throw Error(cat(lines.file_name(), ": its fields may be separated by ", separator_name(separator)),
                  cat("say so with --separator '", separator, "', or use --separator none if each line is one value"));
  }
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
  if (fits.empty()) {
    const char usual = question.tabs_first ? '\t' : ',';
    std::erase(present, usual);
    if (question.has_header) check_header_is_split(lines, sample, question, present);
    check_no_rare_separator(lines, sample, question);
    check_no_fixed_columns(lines, sample);
    return usual;
  }
  prefer(fits, [](const Fit& fit) { return fit.match > 0; });
  prefer(fits, [](const Fit& fit) { return fit.is_even; });
  prefer(fits, [](const Fit& fit) { return fit.is_whole; });
  prefer(fits, [](const Fit& fit) { return fit.match == 2; });
  if (question.tabs_first) prefer(fits, [](const Fit& fit) { return fit.separator == '\t'; });
  if (fits.size() == 1) return fits[0].separator;
  const std::string names = joined(fits, " or ", [](const Fit& fit) { return separator_name(fit.separator); });
  throw Error(cat(lines.file_name(), ": its fields may be separated by ", names),
              "say which with --separator (a character, or tab)");
}

std::int64_t header_below_title(LineReader& lines, char separator, const TableQuestion& question) {
  const std::vector<Record> records = records_of(first_lines(lines), {separator, question.quotes});
  const std::size_t header = records.empty() ? 0 : header_of(records, question);
  return header == 0 ? 0 : lines.number() + records[header].line;
}

void refuse_table(const std::string& file_name, char separator) {
  throw Error(cat(file_name, ": its lines look like records of a table that are separated by ",
                  separator_name(separator), ", expected one name a line"),
              "name the column with --column (a number, with --no-header, if the first line is a record), or use "
              "--separator none if each line is one name");
}

void check_is_no_table(LineReader& lines) {
  const Sample sample = first_lines(lines);
  for (const char candidate : candidates) {
    std::vector<Record> records = records_of(sample, {candidate, true});
    if (records.empty()) records = records_of(sample, {candidate, false});  // its quotation marks are letters
    std::map<std::size_t, std::size_t> widths;                              // number of records by their fields
    bool has_name = false;
    for (const Record& record : records) {
      ++widths[record.fields.size()];
      has_name = has_name ||
                 std::ranges::any_of(record.fields, [](const std::string& field) { return is_column_name(field, ""); });
    }
    const std::size_t several = records.size() - widths[1];
    if (records.size() < 2 || 2 * several <= records.size()) continue;
    if (candidate == ',' && !((has_name || are_records(records)) && is_even(widths, records.size())))
      continue;  // "last name, first name"
    refuse_table(lines.file_name(), candidate);
  }
  check_no_fixed_columns(lines, sample);
}

namespace {

// Returns the form in which headers are compared.
std::string header_key(const std::string& header) {
  if (find_invalid_utf8(header) != std::string::npos) return ascii_lower(header);
  FormChanges changes;
  std::string plain = plain_form(header, changes), key;
  if (plain.size() > 1 && plain.front() == plain.back() && (plain.front() == '"' || plain.front() == '\''))
    plain = plain_form(plain.substr(1, plain.size() - 2), changes);
  for (const char c : plain) {
    const bool space = c == ' ' || c == '\n' || c == '\t';
    if (!space || !key.ends_with(' ')) key += space ? ' ' : c;
  }
  return lower_case(key);
}

// Returns the header for a message.
std::string label(std::string header) {
  if (find_invalid_utf8(header) != std::string::npos) {
    std::replace_if(
        header.begin(), header.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  return shown(header);
}

}  // namespace

ColumnMatch match_column(const std::vector<std::string>& first_record, const std::string& asked, bool has_header) {
  const auto matches = [&](auto&& test) {
    ColumnMatch match;
    for (std::size_t i = 0; i < first_record.size(); ++i) {
      if (test(first_record[i])) match.columns.push_back(i);
    }
    match.quality = match.columns.empty() ? 0 : 2;
    return match;
  };
  std::size_t number = 0;
  const bool is_number = read_number(asked, number) && number >= 1;
  ColumnMatch found;
  if (has_header && !asked.empty()) {
    found = matches([&](const std::string& header) { return header == asked; });
    if (found.columns.empty())
      found = matches([key = header_key(asked)](const std::string& header) { return header_key(header) == key; });
  } else if (has_header) {
    found = matches([](const std::string& header) { return header_key(header) == "name"; });
    if (found.columns.empty()) {
      found = matches([](const std::string& h) { return header_key(h).find("name") != std::string::npos; });
      found.quality = std::min(found.quality, 1);
    }
  } else if (asked.empty() && first_record.size() == 1) {
    return {{0}, 2};
  }
  if (found.columns.empty() && is_number && number <= first_record.size()) return {{number - 1}, 2};
  return found;
}

std::size_t choose_column(const std::vector<std::string>& first_record, const std::string& asked,
                          const std::string& file_name, bool has_header) {
  const ColumnMatch found = match_column(first_record, asked, has_header);
  if (found.columns.size() == 1) return found.columns[0];
  if (!has_header) {
    throw Error(cat(file_name, ": has ", first_record.size(), " columns and no header, expected the number of one"),
                cat("choose one with --column 1 to ", first_record.size()));
  }
  std::string columns;
  constexpr std::size_t most_shown = 20;
  for (std::size_t i = 0; i < std::min(first_record.size(), most_shown); ++i)
    columns += cat(i == 0 ? "" : ", ", label(first_record[i]));
  if (first_record.size() > most_shown) columns += cat(", ... (", first_record.size(), " in all)");
  const bool none = found.columns.empty();
  if (!asked.empty()) {
    throw Error(
        cat(file_name, ": ", none ? "no column" : "several columns", " '", asked, "'; the columns are ", columns),
        none ? "the first line must be the header (--no-header: it is a record); --separator sets the separator"
             : "choose one by its number, such as --column 2");
  }
  if (none)
    throw Error(cat(file_name, ": no column is called 'name'; the columns are ", columns),
                "choose one with --column NAME or its number; if this is no header, add --no-header");
  const std::string possible = joined(found.columns, ", ", [&](std::size_t column) {
    return cat(label(first_record[column]), " (number ", column + 1, ")");
  });
  throw Error(cat(file_name, ": more than one column ", found.quality == 2 ? "is called 'name': " : "contains 'name': ",
                  possible, "; the columns are ", columns),
              cat("choose one by its number, such as --column ", found.columns[0] + 1));
}

bool is_column_name(const std::string& header, const std::string& asked) {
  return header_key(header) == header_key(asked.empty() ? "name" : asked);
}

bool is_blank(const std::vector<std::string>& fields) {
  return fields.size() == 1 && fields[0].find_first_not_of(" \t") == std::string::npos;
}

bool is_blank_or_comment(const std::vector<std::string>& fields, std::size_t width) {
  const bool is_short = width == 0 || fields.size() < width;
  return is_blank(fields) || (is_short && !fields.empty() && fields[0].starts_with('#'));
}

std::size_t count_filled(const std::vector<std::string>& fields, std::size_t width) {
  std::size_t count = fields.size();
  while (count > width && fields[count - 1].find_first_not_of(' ') == std::string::npos) --count;
  return count;
}

}  // namespace ringtrain
