// The rules for cleaning: which names are kept, in which form, and why the others are dropped.
#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "data/dataset.h"
#include "data_prep/tables/layout.h"
#include "data_prep/text/encoding.h"
#include "data_prep/text/names.h"

namespace ringtrain {
namespace {

constexpr std::size_t examples_kept = 3;
constexpr std::size_t most_other_bytes = 1 << 16;
constexpr double share_for_study31 = 0.95;

std::string shortened(std::string_view name) {
  std::string text;
  for (const char c : cut_to(name, 40)) {  // control characters and broken bytes must not reach the terminal
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  if (find_invalid_utf8(text) != std::string::npos) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  return name.size() > 40 ? text + "..." : text;
}

void drop(CleanNames& result, const std::string& reason, std::uint64_t count, std::string_view example) {
  Dropped& dropped = result.dropped[reason];
  dropped.count += count;
  if (!example.empty() && dropped.examples.size() < examples_kept)
    dropped.examples.push_back("'" + shortened(example) + "'");
}

// Returns whether a symbol of the name is one of those that `test` asks for.
template <class Test>
bool has_symbol(std::string_view name, Test&& test) {
  while (!name.empty()) {
    const std::size_t length = symbol_length(name);
    if (test(decode_symbol(name.substr(0, length)))) return true;
    name.remove_prefix(length);
  }
  return false;
}

bool is_beyond_ascii(std::uint32_t code) {
  return code >= 0x80;
}

bool is_replacement(std::uint32_t code) {
  return code == 0xFFFD;  // what programs write for bytes that they cannot read
}

// What Excel writes for a cell whose formula has no value, in any language (#VALUE!, #NAME?), or that is too narrow
// (####).
bool is_spreadsheet_error(std::string_view name) {
  if (name.size() < 2 || name[0] != '#') return false;
  return name == "#NV" || name == "#N/A" || name.back() == '!' || name.back() == '?' ||
         name.find_first_not_of('#') == std::string_view::npos;
}

// Returns the words of a command that reads another file with the same options.
std::vector<std::string> words_that_read_again(const NamesOptions& options) {
  const NameSource& input = options.input;
  std::vector<std::string> words = {"bin/ringtrain-data", "names"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--column", input.column);
  add("--separator", input.separator);
  if (!input.has_header) words.emplace_back("--no-header");
  if (!input.has_quotes) words.emplace_back("--no-quotes");
  add("--header-line", input.header_line > 0 ? std::to_string(input.header_line) : "");
  add("--alphabet", options.alphabet);
  add("--out", options.out);
  if (options.force) words.emplace_back("--force");
  return words;
}

// Every alphabet requires that a name is valid UTF-8, not empty, not too long, and without control characters. Names
// are counted in their plain form.
NameTable read_raw_names(const NamesOptions& options, CleanNames& result) {
  NameTable raw;
  std::uint64_t invalid = 0, beyond_ascii = 0, with_tabs = 0;
  std::string other_bytes;  // names that are not UTF-8, to find out their encoding
  const auto use = [&](std::string_view text) {
    ++result.read;
    if (find_invalid_utf8(text) != std::string_view::npos) {
      ++invalid;
      if (other_bytes.size() < most_other_bytes) other_bytes += cat(text, "\n");
      return drop(result, "not valid UTF-8", 1, text);
    }
    beyond_ascii += has_symbol(text, is_beyond_ascii);
    FormChanges changes;
    const std::string name = plain_form(text, changes);
    if (name.empty()) return drop(result, "empty", 1, {});
    if (has_symbol(name, is_control)) {
      with_tabs += name.find('\t') != std::string::npos;
      return drop(result, "control character", 1, name);
    }
    if (is_spreadsheet_error(name)) return drop(result, "error value of a spreadsheet", 1, name);
    if (has_symbol(name, is_replacement)) return drop(result, "symbol U+FFFD, a letter that was lost before", 1, name);
    if (symbol_count(name) > static_cast<std::size_t>(options.longest)) {
      return drop(result, cat("longer than ", options.longest, " symbols"), 1, name);
    }
    result.composed += changes.composed;
    result.without_invisible += changes.invisible;
    result.with_plain_spaces += changes.spaces;
    result.trimmed += changes.trimmed;
    raw.add(name);
  };
  const auto drop_row = [&](const std::string& reason, std::int64_t line) {
    ++result.read;
    Dropped& dropped = result.dropped[reason];
    if (dropped.count++ < examples_kept) dropped.examples.push_back(cat("line ", line));
  };
  NameSource input = options.input;
  input.rerun = words_that_read_again(options);
  result.source = for_each_name(input, {use, drop_row});
  const std::string file_name = shown_path(input.path);
  if (result.source.column.empty() && input.separator.empty() && 2 * with_tabs > result.read)
    refuse_table(file_name, '\t');
  const std::string convert = cat("convert it from its encoding. This is a guess, so look at the result: ",
                                  iconv_command(likely_encoding(other_bytes), file_name, input.rerun));
  if (invalid > 1 && invalid > beyond_ascii) {
    throw Error(cat(file_name, ": ", invalid, " names, such as ", result.dropped["not valid UTF-8"].examples[0],
                    ", are not valid UTF-8, and only ", beyond_ascii, " names with symbols beyond ASCII are"),
                convert);
  }
  constexpr std::uint64_t few = 10;  // percent
  if (invalid > 1 && 100 * invalid > few * result.read)
    throw Error(cat(file_name, ": ", invalid, " names, such as ", result.dropped["not valid UTF-8"].examples[0],
                    ", are not valid UTF-8, but ", beyond_ascii, " other names with symbols beyond ASCII are: the ",
                    "file seems to mix two encodings"),
                "convert each part to UTF-8 before they are joined");
  if (invalid > 0)
    result.advice = beyond_ascii > 0 ? "Other names are valid UTF-8, so only these lines have another encoding."
                                     : cat("If the file has another encoding, ", convert);
  return raw;
}

bool most_fit_study31(const NameTable& raw) {
  std::uint64_t fitting = 0, all = 0;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    all += raw.count(i);
    if (fits_study31(raw.name(i))) fitting += raw.count(i);
  }
  return static_cast<double>(fitting) >= share_for_study31 * static_cast<double>(all);
}

// Returns the alphabet of all symbols of the names. If they do not fit, it has the most frequent ones (drop_rare), or
// Error is thrown.
Alphabet alphabet_of(const NameTable& names, bool drop_rare) {
  std::map<std::uint32_t, std::uint64_t> symbols;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names.name(i);
    for (std::size_t at = 0; at < name.size();) {
      const std::size_t length = symbol_length(name.substr(at));
      symbols[decode_symbol(name.substr(at, length))] += names.count(i);
      at += length;
    }
  }
  const std::size_t room = largest_vocabulary - 2;
  if (symbols.size() > room) {
    if (!drop_rare) {
      throw Error(cat("the names have ", symbols.size(), " different symbols; at most ", room, " fit"),
                  cat("use --drop-rare, which keeps the ", room,
                      " most frequent symbols and the names written in them, ", "or give names of one script"));
    }
    std::vector<std::pair<std::uint64_t, std::uint32_t>> by_count;
    for (const auto& [code, count] : symbols) by_count.emplace_back(count, code);
    std::sort(by_count.begin(), by_count.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    for (std::size_t i = room; i < by_count.size(); ++i) symbols.erase(by_count[i].second);
  }
  return Alphabet::of_names(symbols);
}

}  // namespace

CleanNames read_clean_names(const NamesOptions& options) {
  CleanNames result;
  const NameTable raw = read_raw_names(options, result);
  const bool study31 = options.alphabet == "study31" ||
                       (options.alphabet.empty() && !options.keep_case && raw.size() > 0 && most_fit_study31(raw));
  if (study31 && options.keep_case)
    throw Error("--keep-case was given, but the alphabet study31 has no capital letters",
                "use --alphabet auto, or leave out --keep-case");
  result.lowercase = !options.keep_case;
  NameTable cased;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (study31 && !fits_study31(raw.name(i))) {
      drop(result, "symbol outside the alphabet", raw.count(i), raw.name(i));
    } else {
      cased.add(result.lowercase ? composed(lower_case(raw.name(i))) : std::string(raw.name(i)), raw.count(i));
    }
  }
  result.alphabet = study31 ? Alphabet::study31() : alphabet_of(cased, options.drop_rare);
  const NameTable sorted = cased.sorted();
  std::vector<std::uint8_t> ids;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    ids.clear();
    if (!result.alphabet.encode(sorted.name(i), ids)) {
      drop(result, "rare symbol", sorted.count(i), sorted.name(i));
      continue;
    }
    result.names.add(sorted.name(i), sorted.count(i));
    result.kept += sorted.count(i);
  }
  if (result.kept == 0) {
    const std::string reasons =
        joined(result.dropped, ", ", [](const auto& dropped) { return cat(dropped.second.count, " ", dropped.first); });
    throw Error(cat(options.input.path, ": no names are left (", result.read, " read",
                    reasons.empty() ? "" : "; dropped: ", reasons, ")"),
                study31 ? "use --alphabet auto for other languages" : "is this the right file and column?");
  }
  return result;
}

}  // namespace ringtrain
