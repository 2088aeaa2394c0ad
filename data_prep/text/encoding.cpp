#include "data_prep/text/encoding.h"

#include <array>
#include <cstdint>

#include "base/error.h"
#include "base/shell_words.h"

namespace ringtrain {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view begins, name, hint;
};
constexpr std::string_view save_as_csv = "open it in a spreadsheet program and save it as CSV (UTF-8)";
constexpr std::string_view save_as_text = "write it as UTF-8 text first";
constexpr std::array formats = {
    Format{"PK\x03\x04"sv, "a ZIP archive, such as .xlsx, .ods, .docx or .epub",
           "open it in the program that made it, and save it as CSV (UTF-8) or as plain text"},
    Format{"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "an old Excel or Word file", save_as_csv},
    Format{"\x1F\x8B"sv, "compressed (gzip)", "unpack it first: gzip -d"},
    Format{"BZh"sv, "compressed (bzip2)", "unpack it first: bzip2 -d"},
    Format{"\xFD\x37zXZ\0"sv, "compressed (xz)", "unpack it first: xz -d"},
    Format{"\x28\xB5\x2F\xFD"sv, "compressed (zstd)", "unpack it first: zstd -d"},
    Format{"7z\xBC\xAF\x27\x1C"sv, "a 7-Zip archive", "unpack it first"},
    Format{"%PDF-"sv, "a PDF file", "extract its text first: pdftotext"},
    Format{"{\\rtf"sv, "a rich-text file", save_as_text},
    Format{"\x89HDF\r\n\x1A\n"sv, "an HDF5 file", save_as_text},
    Format{"SQLite format 3\0"sv, "an SQLite data base", "write the table as CSV first: sqlite3 -csv -header"},
    Format{"PAR1"sv, "a Parquet file", "write it as CSV first"},
};

[[noreturn]] void refuse(const std::string& file_name, const std::string& encoding, const char* mark) {
  throw Error(cat(file_name, ": is ", encoding, " text", mark, ", expected UTF-8"),
              cat("convert it: ", iconv_command(encoding, file_name)));
}

// Two bytes each, of which one is zero in all letters, digits, spaces and line ends of ASCII. Line ends tell such a
// text from UTF-8 that holds a few zero bytes.
bool is_utf16(std::string_view text, std::size_t zero_at) {
  std::size_t zeros = 0, zeros_elsewhere = 0, line_ends = 0, line_end_bytes = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\0') ++(i % 2 == zero_at ? zeros : zeros_elsewhere);
    if (text[i] != '\n' && text[i] != '\r') continue;
    ++line_end_bytes;
    const std::size_t other = i ^ 1u;
    line_ends += i % 2 != zero_at && other < text.size() && text[other] == '\0';
  }
  if (zeros < 2 || zeros * 200 < text.size() || zeros < 20 * zeros_elsewhere) return false;
  return line_end_bytes > 0 ? 4 * line_ends >= line_end_bytes : 4 * zeros >= text.size();
}

// Four bytes each, of which the highest is always zero and the next one nearly always.
bool is_utf32(std::string_view text, std::size_t highest, std::size_t next) {
  if (text.size() < 8) return false;
  std::size_t next_zeros = 0, empty = 0;
  for (std::size_t i = 0; i + 4 <= text.size(); i += 4) {
    if (text[i + highest] != '\0') return false;
    next_zeros += text[i + next] == '\0';
    empty += text.substr(i, 4) == "\0\0\0\0"sv;
  }
  const std::size_t symbols = text.size() / 4;
  return 10 * next_zeros >= 9 * symbols && 10 * empty <= symbols;
}

}  // namespace

std::string iconv_command(const std::string& encoding, const std::string& file_name) {
  if (file_name == standard_input_name) return cat("... | iconv -f ", encoding, " -t UTF-8 | ...");
  return cat(shell_command({"iconv", "-f", encoding, "-t", "UTF-8", file_name}), " > utf8.txt");
}

void check_is_utf8_text(std::string_view start, const std::string& file_name) {
  if (start.starts_with("\xFF\xFE\0\0"sv) || start.starts_with("\0\0\xFE\xFF"sv)) refuse(file_name, "UTF-32", "");
  if (start.starts_with("\xFF\xFE"sv) || start.starts_with("\xFE\xFF"sv)) refuse(file_name, "UTF-16", "");
  for (const Format& format : formats) {
    if (start.starts_with(format.begins))
      throw Error(cat(file_name, ": is ", format.name, ", expected UTF-8 text"), std::string(format.hint));
  }
  constexpr const char* no_mark = " without a byte-order mark";
  if (is_utf32(start, 3, 2)) refuse(file_name, "UTF-32LE", no_mark);
  if (is_utf32(start, 0, 1)) refuse(file_name, "UTF-32BE", no_mark);
  if (is_utf16(start, 1)) refuse(file_name, "UTF-16LE", no_mark);
  if (is_utf16(start, 0)) refuse(file_name, "UTF-16BE", no_mark);
}

}  // namespace ringtrain
