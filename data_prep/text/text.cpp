#include "data_prep/text/text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data_prep/common/shard_writer.h"
#include "data_prep/text/alphabet.h"

namespace ringtrain {
namespace {

std::string read_all(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
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

// Changes Windows line ends (CR LF) to "\n", in place. Returns the number of line ends that it changed.
std::int64_t unify_line_ends(std::string& text) {
  std::size_t to = 0;
  for (std::size_t from = 0; from < text.size(); ++from) {
    if (text[from] == '\r' && from + 1 < text.size() && text[from + 1] == '\n') continue;
    text[to++] = text[from];
  }
  const auto removed = static_cast<std::int64_t>(text.size() - to);
  text.resize(to);
  return removed;
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
    if (length == 0) {
      throw Error(cat(path, ": byte ", i, " is not valid UTF-8"),
                  "convert the text to UTF-8 (iconv), or use --alphabet bytes");
    }
    const std::string symbol = text.substr(i, length);
    symbols.emplace(bytes ? lead : decode_symbol(symbol), symbol);
    i += length;
  }
  if (symbols.size() > largest_alphabet) {
    throw Error(cat(path, ": the text has ", symbols.size(), bytes ? " different bytes" : " different symbols",
                    "; at most ", largest_alphabet, " fit"),
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
  std::int64_t line_ends = 0;
  if (options.alphabet == "auto") {
    check_not_utf16(text, options.input);
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    line_ends = unify_line_ends(text);
  }
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
    SplitDescription split;
    split.total = validation ? held_out : characters - held_out;
    if (split.total == 0) continue;
    split.split = validation ? "validation" : "train";
    split.prefix = cat(options.out, "-", split.split);
    split.dataset_name = std::filesystem::path(options.out).filename().string();
    split.dataset_uuid = report.dataset_uuid;
    split.source = std::filesystem::path(options.input).filename().string();
    split.license = options.license;
    split.seed = options.seed;
    split.num_shards = std::min(options.shards, split.total);
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
  if (line_ends > 0) log << "changed     " << line_ends << " Windows line ends to plain ones\n";
  return report;
}

}  // namespace ringtrain
