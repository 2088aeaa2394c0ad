#include "data_prep/text/text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/utf8.h"
#include "data/dataset.h"
#include "data_prep/tables/name_source.h"
#include "data_prep/text/alphabet.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {
namespace {

std::string read_all(const std::string& path) {
  if (path == "-") return rest_of(std::cin);
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) throw Error(cat(path, ": is a directory, expected a file"));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  std::string text;
  if (const auto size = std::filesystem::file_size(path, failed); !failed) text.reserve(size);
  std::string piece(1 << 20, '\0');
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece, 0, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) throw Error(cat(path, ": cannot read: ", std::strerror(errno)));
  return text;
}

// What was changed in a text, so that one letter is one symbol.
struct TextChanges {
  std::int64_t line_ends = 0, byte_order_marks = 0, end_marks = 0;
  std::int64_t composed = 0;                        // symbols fewer
  std::map<std::uint32_t, std::int64_t> invisible;  // symbols that cannot be seen, and stay; their numbers
};

// Changes the line ends of Windows (CR LF) and of old Macs (CR) to "\n", in place. Returns how many it changed.
std::int64_t unify_line_ends(std::string& text) {
  std::size_t to = 0;
  std::int64_t changed = 0;
  for (std::size_t from = 0; from < text.size(); ++from) {
    const bool is_return = text[from] == '\r';
    changed += is_return;
    if (is_return && from + 1 < text.size() && text[from + 1] == '\n') continue;
    text[to++] = is_return ? '\n' : text[from];
  }
  text.resize(to);
  return changed;
}

// Removes all byte-order marks. Files that were joined have some in the middle.
std::int64_t remove_marks(std::string& text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  std::int64_t removed = 0;
  std::string result;
  std::string_view rest = text;
  for (std::size_t at; (at = rest.find(mark)) != std::string_view::npos; rest.remove_prefix(at + mark.size())) {
    result += rest.substr(0, at);
    ++removed;
  }
  if (removed > 0) text = result.append(rest);
  return removed;
}

// Throws Error that says where the text is not valid UTF-8 and how often.
void check_utf8(const std::string& text, const std::string& name, const std::vector<std::string>& rerun) {
  const std::size_t first = find_invalid_utf8(text);
  if (first == std::string::npos) return;
  std::int64_t invalid = 0, beyond_ascii = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = symbol_length(std::string_view(text).substr(i));
    invalid += length == 0;
    beyond_ascii += length > 1;
    i += std::max<std::size_t>(1, length);
  }
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(first), '\n');
  throw Error(cat(name, ": byte ", first, " (line ", line, ") is not valid UTF-8; so are ", invalid, " in all, and ",
                  beyond_ascii, " symbols beyond ASCII are valid"),
              invalid > beyond_ascii
                  ? cat("use --alphabet bytes, or convert the text from its encoding, such as: ",
                        iconv_command(likely_encoding(text), name, rerun))
                  : cat("repair them, or leave them out: iconv -c -f UTF-8 -t UTF-8; or use --alphabet bytes"));
}

TextChanges make_plain(std::string& text, const std::string& name, const std::vector<std::string>& rerun) {
  check_is_utf8_text(std::string_view(text).substr(0, 1 << 20), name, rerun);
  check_utf8(text, name, rerun);
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos) {
    throw Error(cat(name, ": has ", std::count(text.begin(), text.end(), '\0'), " zero bytes, the first at byte ", zero,
                    ", expected text"),
                "leave them out (tr -d '\\000'), or use --alphabet bytes");
  }
  TextChanges changes;
  if (text.ends_with('\x1A')) {
    text.pop_back();
    changes.end_marks = 1;
  }
  changes.byte_order_marks = remove_marks(text);
  changes.line_ends = unify_line_ends(text);
  std::string plain = composed(text);
  if (plain != text)
    changes.composed = std::max<std::int64_t>(1, static_cast<std::int64_t>(symbol_count(text) - symbol_count(plain)));
  text = std::move(plain);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = symbol_length(std::string_view(text).substr(i));
    if (length > 1) {
      const std::uint32_t code = decode_symbol(std::string_view(text).substr(i, length));
      if (is_invisible(code) || is_control(code) || code == 0xFFFD) ++changes.invisible[code];
    }
    i += length;
  }
  return changes;
}

void print(const TextChanges& changes, std::ostream& log) {
  if (changes.line_ends > 0)
    log << "changed     " << changes.line_ends << " line ends of Windows or old Macs to plain ones\n";
  if (changes.composed > 0)
    log << "changed     letters to Unicode's composed form (NFC); " << changes.composed << " symbols fewer\n";
  if (changes.byte_order_marks + changes.end_marks > 0)
    log << "dropped     " << changes.byte_order_marks << " byte-order mark(s), " << changes.end_marks
        << " end-of-file mark(s)\n";
  for (const auto& [code, count] : changes.invisible) {
    char number[16];
    std::snprintf(number, sizeof number, "U+%04X", static_cast<unsigned>(code));
    log << "note        the text has " << count << " times the symbol " << number
        << (code == 0xFFFD ? ", which stands for a lost letter" : ", which cannot be seen") << "; it is kept\n";
  }
}

Alphabet alphabet_of(const std::string& text, const std::string& kind, const std::string& path) {
  const bool bytes = kind == "bytes";
  std::map<std::uint32_t, std::string> symbols;  // by code point or byte value
  std::array<bool, 128> seen{};
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < seen.size() && seen[lead]) {
      ++i;
      continue;
    }
    if (lead < seen.size()) seen[lead] = true;
    const std::size_t length = bytes ? 1 : symbol_length(std::string_view(text).substr(i));
    const std::string symbol = text.substr(i, length);
    symbols.emplace(bytes ? lead : decode_symbol(symbol), symbol);
    i += length;
  }
  if (std::ssize(symbols) > largest_vocabulary) {
    throw Error(cat(path, ": the text has ", symbols.size(), bytes ? " different bytes" : " different symbols",
                    "; at most ", largest_vocabulary, " fit"),
                bytes ? "is this text? Compressed or binary files cannot be used"
                      : "use --alphabet bytes, or replace the rare symbols");
  }
  std::vector<std::string> vocabulary;
  for (auto& [code, symbol] : symbols) vocabulary.push_back(std::move(symbol));
  return {kind, vocabulary, 0, bytes};
}

void write_split(const SplitDescription& split, std::span<const std::uint8_t> ids, OutputFiles& files) {
  for (std::int64_t shard = 0; shard < split.num_shards; ++shard) {
    ShardWriter writer(split, shard, files);
    const ShardRange range = writer.range();
    writer.append(
        ids.subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.last - range.first)), {}, {});
    writer.finish();
  }
}

void check(const TextOptions& options) {
  const double share = options.validation.value_or(0.05);
  if (options.out.empty()) throw Error("--out PREFIX is missing");
  if (options.shards < 1 || options.shards > 99999)
    throw Error(cat("--shards ", options.shards, ": expected 1 to 99999"));
  if (!(share >= 0 && share < 1)) throw Error(cat("--validation ", share, ": expected at least 0 and less than 1"));
  if (options.alphabet != "auto" && options.alphabet != "bytes") {
    throw Error(cat("--alphabet ", options.alphabet, ": expected auto or bytes"));
  }
}

}  // namespace

TextReport convert_text(const TextOptions& options, std::ostream& log) {
  check(options);
  OutputFiles files({options.out + "-train", options.out + "-validation"}, options.force);
  std::string text = read_all(options.input);
  TextChanges changes;
  if (options.alphabet == "auto")
    changes = make_plain(text, shown_path(options.input), {"bin/ringtrain-data", "text", "--out", options.out});
  const Alphabet alphabet = alphabet_of(text, options.alphabet, options.input);
  std::vector<std::uint8_t> ids;
  ids.reserve(text.size());
  alphabet.encode(text, ids);
  const auto characters = static_cast<std::int64_t>(ids.size());
  if (characters < 2) {
    throw Error(cat(options.input, ": has ", characters, " character(s); at least 2 are needed to predict one"));
  }
  const double share = options.validation.value_or(0.05);
  auto held_out = static_cast<std::int64_t>(share * static_cast<double>(characters));
  if (held_out < 2 || characters - held_out < 2) {
    if (options.validation && share > 0) {
      throw Error(cat(options.input, ": ", characters, " characters are too few for --validation ", share),
                  "use --validation 0, or more text");
    }
    held_out = 0;
  }
  TextReport report{characters - held_out, held_out, static_cast<std::int64_t>(alphabet.vocabulary().size()), ""};
  ContentHash hash;
  hash.add(cat("text 1 ", options.alphabet));
  hash.add(options.seed);
  hash.add(static_cast<std::uint64_t>(held_out));
  hash.add(text);
  report.dataset_uuid = hash.uuid();
  for (const bool validation : {false, true}) {
    const std::int64_t total = validation ? held_out : characters - held_out;
    if (total == 0) continue;
    SplitDescription split = describe_split(options, validation ? "validation" : "train", total, options.input);
    split.dataset_uuid = report.dataset_uuid;
    split.vocabulary = alphabet.vocabulary();
    write_split(split,
                std::span(ids).subspan(static_cast<std::size_t>(validation ? characters - held_out : 0),
                                       static_cast<std::size_t>(split.total)),
                files);
  }
  files.commit();
  log << "text        " << options.input << "\n"
      << "alphabet    " << options.alphabet << ", " << report.vocabulary << " symbols\n"
      << "train       " << report.train_characters << " characters\n"
      << "validation  " << held_out << " characters"
      << (held_out == 0 && !options.validation ? " (text too short)" : "") << "\n";
  print(changes, log);
  return report;
}

}  // namespace ringtrain
