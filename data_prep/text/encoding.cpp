#include "data_prep/text/encoding.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view begins, name, hint;
};
constexpr std::string_view save_as_csv = "open it in a spreadsheet program and save it as CSV (UTF-8)";
constexpr std::string_view save_as_text = "write it as UTF-8 text first";
constexpr std::array formats = {
    Format{
        "PK\x03\x04"sv, "a ZIP archive, such as .xlsx, .ods, .docx or .epub",
        "open it in the program that made it, and save it as CSV (UTF-8) or as plain text; if its name ends in .zip: "
        "unzip FILE -d FOLDER"},
    Format{"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, "an old Excel or Word file", save_as_csv},
    Format{"7z\xBC\xAF\x27\x1C"sv, "a 7-Zip archive", "unpack it first"},
    Format{"%PDF-"sv, "a PDF file", "extract its text first: pdftotext"},
    Format{"{\\rtf"sv, "a rich-text file", save_as_text},
    Format{"\x89HDF\r\n\x1A\n"sv, "an HDF5 file", save_as_text},
    Format{"SQLite format 3\0"sv, "an SQLite data base", "write the table as CSV first: sqlite3 -csv -header"},
    Format{"PAR1"sv, "a Parquet file", "write it as CSV first"},
};

// Letters with accents that words of western Europe have inside.
constexpr std::string_view dos_letters = "\x81\x82\x83\x84\x85\x87\x88\x89\x8A\x93\x94\xA0\xA1\xA2\xA3\xA4\xE1"sv;
constexpr std::string_view mac_letters = "\x87\x88\x89\x8A\x8D\x8E\x8F\x90\x96\x97\x99\x9A\x9C\x9F\xA7"sv;

bool is_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0x80;
}

// Two bytes each, of which one is zero in all letters, digits, spaces and line ends of ASCII. Line ends tell such a
// text from UTF-8 that holds a few zero bytes. In Chinese, zeros are rare, but other bytes are control characters.
bool is_utf16(std::string_view text, std::size_t zero_at) {
  constexpr std::size_t many_zeros = 8;
  std::size_t zeros = 0, zeros_elsewhere = 0, line_ends = 0, line_end_bytes = 0, controls = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    controls += text[i] != '\0' && static_cast<unsigned char>(text[i]) < '\t';
    controls += text[i] > '\r' && text[i] < '\x1a';
    if (text[i] == '\0') ++(i % 2 == zero_at ? zeros : zeros_elsewhere);
    if (text[i] != '\n' && text[i] != '\r') continue;
    ++line_end_bytes;
    const std::size_t other = i ^ 1u;
    line_ends += i % 2 != zero_at && other < text.size() && text[other] == '\0';
  }
  if (zeros < 2 || zeros * 200 < text.size() || zeros < 20 * zeros_elsewhere) return false;
  if (zeros >= many_zeros && zeros_elsewhere == 0 && controls > 0) return true;
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

std::string iconv_command(const std::string& encoding, const std::string& file_name,
                          const std::vector<std::string>& rerun, bool has_tabs) {
  if (file_name == standard_input_name)
    return cat("... | iconv -f ", encoding, " -t UTF-8 | ", shell_command(rerun), " -");
  const std::filesystem::path path = file_name;
  std::string ending = path.extension().string();
  if (has_tabs && (ending.empty() || ending == ".txt")) ending = ".tsv";
  const std::string converted = (path.parent_path() / cat(path.stem().string(), "-utf8", ending)).string();
  const std::string convert =
      cat(shell_command({"iconv", "-f", encoding, "-t", "UTF-8", file_name}), " > ", shell_command({converted}));
  if (rerun.empty()) return convert;
  std::vector<std::string> next = rerun;
  next.push_back(converted);
  return cat(convert, " && ", shell_command(next));
}

std::string likely_encoding(std::string_view text) {
  std::int64_t windows = 0, dos = 0, mac = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    // Windows-1252 has quotation marks and dashes where the others have letters, but hardly ever between letters.
    const bool inside = is_letter(text[i - 1]) && i + 1 < text.size() && is_letter(text[i + 1]);
    const bool high = static_cast<unsigned char>(text[i]) >= 0xC0;
    windows += high;
    if (!inside && !high) continue;
    dos += dos_letters.find(text[i]) != std::string_view::npos;
    mac += mac_letters.find(text[i]) != std::string_view::npos;
  }
  if (windows >= std::max(dos, mac)) return "WINDOWS-1252";
  return dos >= mac ? "CP850" : "MACINTOSH";
}

void check_is_no_markup(std::string_view start, const std::string& file_name) {
  const auto refuse = [&](const char* format, const char* hint) {
    throw Error(cat(file_name, ": is ", format, ", expected names"), hint);
  };
  if (is_markup(start)) refuse("HTML or XML", "open it in a spreadsheet program and save it as CSV (UTF-8)");
  const std::string mark = first_mark(start);
  if (mark.starts_with("begin:vcard")) refuse("a vCard", "write one name a line: the lines FN: have them");
  if (mark.starts_with("{\"") || mark.starts_with("[{") || mark.starts_with("[\"") || mark.starts_with("[["))
    refuse("JSON", "write one name a line, for example with jq -r '.[].name'");
}

void check_is_utf8_text(std::string_view start, const std::string& file_name, const std::vector<std::string>& rerun) {
  const auto refuse = [&](const std::string& encoding, const char* mark) {
    throw Error(cat(file_name, ": is ", encoding, " text", mark, ", expected UTF-8"),
                cat("convert it: ", iconv_command(encoding, file_name, rerun, start.find('\t') != start.npos)));
  };
  if (start.starts_with("\xFF\xFE\0\0"sv) || start.starts_with("\0\0\xFE\xFF"sv)) refuse("UTF-32", "");
  if (start.starts_with("\xFF\xFE"sv) || start.starts_with("\xFE\xFF"sv)) refuse("UTF-16", "");
  for (const Format& format : formats) {
    if (start.starts_with(format.begins))
      throw Error(cat(file_name, ": is ", format.name, ", expected UTF-8 text"), std::string(format.hint));
  }
  if (const ForeignFile file = compressed_file(start))
    throw Error(cat(file_name, ": is ", file.format, ", expected UTF-8 text"), file.advice);
  constexpr const char* no_mark = " without a byte-order mark";
  if (is_utf32(start, 3, 2)) refuse("UTF-32LE", no_mark);
  if (is_utf32(start, 0, 1)) refuse("UTF-32BE", no_mark);
  if (is_utf16(start, 1)) refuse("UTF-16LE", no_mark);
  if (is_utf16(start, 0)) refuse("UTF-16BE", no_mark);
}

namespace {

constexpr std::uint32_t zero_width_non_joiner = 0x200C, zero_width_joiner = 0x200D;

// Joiners shape letters of Arabic and Indic scripts, and emoji. Between other letters they do nothing.
bool is_shaped(std::uint32_t code) {
  return code >= 0x600 && !(code >= 0x1E00 && code < 0x2190);
}

bool is_unusual_space(std::uint32_t code) {
  return code >= 0x80 && utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_ZS;
}

std::vector<std::uint32_t> symbols_of(std::string_view text) {
  std::vector<std::uint32_t> symbols;
  while (!text.empty()) {
    const std::size_t length = symbol_length(text);
    symbols.push_back(decode_symbol(text.substr(0, length)));
    text.remove_prefix(length);
  }
  return symbols;
}

std::string without_invisible(std::string_view text) {
  const std::vector<std::uint32_t> symbols = symbols_of(text);
  std::string result;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const bool joiner = symbols[i] == zero_width_non_joiner || symbols[i] == zero_width_joiner;
    const bool shapes = i > 0 && i + 1 < symbols.size() && is_shaped(symbols[i - 1]) && is_shaped(symbols[i + 1]);
    if (!is_invisible(symbols[i]) && (!joiner || shapes)) result += encode_symbol(symbols[i]);
  }
  return result;
}

std::string with_plain_spaces(std::string_view text) {
  std::string result;
  for (const std::uint32_t code : symbols_of(text)) result += is_unusual_space(code) ? " " : encode_symbol(code);
  return result;
}

}  // namespace

bool is_invisible(std::uint32_t code) {
  return code == 0xAD || code == 0x34F || code == 0x61C || code == 0x180E || code == 0x200B || code == 0x200E ||
         code == 0x200F || (code >= 0x202A && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

std::string plain_form(std::string_view text, FormChanges& changes) {
  changes = {};
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    const std::string_view trimmed = trim(text);
    changes.trimmed = trimmed != text;
    return std::string(trimmed);
  }
  const std::string visible = without_invisible(text);
  const std::string_view trimmed = trim(visible);
  const std::string spaced = with_plain_spaces(trimmed);
  const std::string result = composed(spaced);
  changes = {.composed = result != spaced,
             .invisible = visible != text,
             .spaces = spaced != trimmed,
             .trimmed = trimmed != visible};
  return result;
}

}  // namespace ringtrain
