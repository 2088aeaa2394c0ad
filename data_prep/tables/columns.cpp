#include "data_prep/tables/columns.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {
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

bool is_comment(const std::vector<std::string>& fields, std::size_t width) {
  return !fields.empty() && fields[0].starts_with('#') && (width == 0 || fields.size() < width);
}

std::size_t count_not_empty(const std::vector<std::string>& fields) {
  return static_cast<std::size_t>(std::ranges::count_if(
      fields, [](const std::string& field) { return field.find_first_not_of(" \t") != std::string::npos; }));
}

std::size_t count_filled(const std::vector<std::string>& fields, std::size_t width) {
  std::size_t count = fields.size();
  while (count > width && fields[count - 1].find_first_not_of(' ') == std::string::npos) --count;
  return count;
}

}  // namespace ringtrain
