// Reads names from a CSV file or from lines, as they are and as a data set stores them.
#include "data_prep/tables/csv.h"

#include <sstream>

#include "data_prep/text/names.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

std::vector<std::vector<std::string>> records_of(const std::string& text) {
  std::istringstream in(text);
  LineReader lines(in, "names.csv", longest_table_line);
  CsvReader reader(lines, {});
  std::vector<std::vector<std::string>> records;
  for (std::vector<std::string> fields; reader.next(fields);) records.push_back(fields);
  return records;
}

std::string quoted(const std::vector<std::vector<std::string>>& records) {
  std::string text;
  for (const std::vector<std::string>& record : records) {
    for (std::size_t i = 0; i < record.size(); ++i) {
      text += i == 0 ? "\"" : ",\"";
      for (const char c : record[i]) text += c == '"' ? std::string("\"\"") : std::string(1, c);
      text += '"';
    }
    text += '\n';
  }
  return text;
}

void read(std::string_view input) {
  const std::string text(input);
  error_of([&] {
    const auto records = records_of(text);
    expect(records_of(quoted(records)) == records, "quoted records read back the same");
  });
  for (const char* name : {"names.csv", "names.txt"}) {
    NamesOptions options;
    options.input.path = write_input(name, input);
    options.keep_case = input.size() % 2 == 1;
    options.alphabet = input.size() % 3 == 0 ? "auto" : "";
    error_of([&] {
      const CleanNames clean = read_clean_names(options);
      std::uint64_t dropped = 0;
      for (const auto& [reason, part] : clean.dropped) dropped += part.count;
      expect(clean.names.size() > 0 && clean.kept + dropped == clean.read, "every row is kept or dropped for a reason");
    });
  }
}

const Registered registered("csv", read);

}  // namespace
}  // namespace ringtrain::fuzz
