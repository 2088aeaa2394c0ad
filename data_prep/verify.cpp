#include "data_prep/verify.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/system_limits.h"
#include "base/utf8.h"
#include "data/hdf5.h"
#include "data/shard_files.h"
#include "data/shard_header.h"

namespace ringtrain {
namespace {

struct KnownNames {
  std::vector<std::vector<std::uint8_t>> ids;  // ids of each name, with the stop; by name_index
  std::vector<std::uint64_t> rows;             // number of rows of each name in this split
};

struct SplitFacts {
  std::vector<ShardHeader> headers;
  KnownNames names;
  ImageSplitFacts images;
};

void check_blocks(const ShardHeader& header, const std::vector<std::uint8_t>& tokens, Verification& result) {
  FaultList checksums(result, header.path), ids(result, header.path);
  const auto block_bytes = static_cast<std::size_t>(header.text.crc_block_bytes);
  const std::span<const std::uint8_t> all(tokens);
  for (std::size_t block = 0; block < header.crc32c.size(); ++block) {
    const std::size_t begin = block * block_bytes, size = std::min(block_bytes, tokens.size() - begin);
    if (crc32c(all.subspan(begin, size)) != header.crc32c[block]) {
      checksums.add(
          cat("block ", block, " of 'tokens' (bytes ", begin, " to ", begin + size - 1, ") has a wrong CRC-32C"));
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= header.text.vocabulary.size()) {
      ids.add(cat("record ", i / static_cast<std::size_t>(header.row_bytes()), " of 'tokens' holds the id ",
                  int{tokens[i]}, ", but the vocabulary has ", header.text.vocabulary.size(), " symbols"));
    }
  }
}

std::string decode(const ShardHeader& header, std::span<const std::uint8_t> ids) {
  std::string text;
  for (const std::uint8_t id : ids) text += id < header.text.vocabulary.size() ? header.text.vocabulary[id] : "?";
  return text;
}

// Returns "" for a valid row: blanks only on the left, at least one symbol, and the stop only at the end.
std::string row_fault(const ShardHeader& header, std::span<const std::uint8_t> row) {
  const auto pad = static_cast<std::uint8_t>(header.text.pad_id);
  const auto begin = std::find_if(row.begin(), row.end(), [&](std::uint8_t id) { return id != pad; });
  if (begin == row.end()) return "holds only blanks";
  if (std::find(begin, row.end(), pad) != row.end()) return "has a blank that is not on the left";
  if (header.text.stop_id >= 0) {
    const auto stop = std::find(begin, row.end(), static_cast<std::uint8_t>(header.text.stop_id));
    if (stop != row.end() && stop + 1 != row.end()) return "has a stop symbol before its end";
  }
  return "";
}

// Returns whether the row has the last ids of a prefix of the name. A row with blanks on the left must have the whole
// prefix.
bool is_prefix_row(const ShardHeader& header, std::span<const std::uint8_t> row,
                   const std::vector<std::uint8_t>& name) {
  const auto pad = static_cast<std::uint8_t>(header.text.pad_id);
  const auto begin = std::find_if(row.begin(), row.end(), [&](std::uint8_t id) { return id != pad; });
  if (begin != row.begin()) {
    return row.end() - begin <= static_cast<std::ptrdiff_t>(name.size()) && std::equal(begin, row.end(), name.begin());
  }
  return std::search(name.begin(), name.end(), row.begin(), row.end()) != name.end();
}

KnownNames read_names(const TextFormat& format, const h5::File& file, Verification& result) {
  KnownNames known;
  const std::vector<std::uint64_t> offsets = file.read<std::uint64_t>("name_offsets");
  const std::vector<std::uint8_t> bytes = file.read<std::uint8_t>("names");
  FaultList faults(result, file.path());
  if (offsets.empty() || offsets.front() != 0 || offsets.back() != bytes.size() ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    faults.add("'name_offsets' does not ascend from 0 to the length of 'names'");
    return known;
  }
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string name(bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i]),
                           bytes.begin() + static_cast<std::ptrdiff_t>(offsets[i + 1]));
    std::vector<std::uint8_t> ids;
    for (std::size_t at = 0; at < name.size();) {
      // Takes the longest symbol that fits. This is exact, because no code point is the beginning of another one.
      std::size_t id = 0, best = 0;
      for (std::size_t s = 0; s < format.vocabulary.size(); ++s) {
        const std::string& symbol = format.vocabulary[s];
        const bool reserved =
            static_cast<std::int64_t>(s) == format.pad_id || static_cast<std::int64_t>(s) == format.stop_id;
        if (!reserved && symbol.size() > best && name.compare(at, symbol.size(), symbol) == 0)
          id = s, best = symbol.size();
      }
      if (best == 0) {
        faults.add(cat("name ", i, " ('", name, "') has a symbol outside the vocabulary"));
        break;
      }
      ids.push_back(static_cast<std::uint8_t>(id));
      at += best;
    }
    if (format.stop_id >= 0) ids.push_back(static_cast<std::uint8_t>(format.stop_id));
    known.ids.push_back(std::move(ids));
  }
  known.rows.resize(known.ids.size());
  return known;
}

void check_rows(const ShardHeader& header, const h5::File& file, const std::vector<std::uint8_t>& tokens,
                KnownNames& known, Verification& result) {
  FaultList rows(result, header.path), names(result, header.path);
  std::vector<std::uint32_t> name_index;
  if (file.has("name_index")) {
    name_index = file.read<std::uint32_t>("name_index");
    if (static_cast<std::int64_t>(name_index.size()) != header.count) {
      names.add(cat("'name_index' has ", name_index.size(), " values, expected ", header.count));
      name_index.clear();
    }
  }
  const auto row_bytes = static_cast<std::size_t>(header.row_bytes());
  for (std::size_t i = 0; i < static_cast<std::size_t>(header.count); ++i) {
    const std::span<const std::uint8_t> row(tokens.data() + i * row_bytes, row_bytes);
    if (const std::string fault = row_fault(header, row); !fault.empty()) {
      rows.add(cat("record ", i, " ('", decode(header, row), "') ", fault));
    } else if (!name_index.empty() && !known.ids.empty()) {
      if (name_index[i] >= known.ids.size()) {
        names.add(cat("record ", i, " has name_index ", name_index[i], ", but there are ", known.ids.size(), " names"));
        continue;
      }
      ++known.rows[name_index[i]];
      if (!is_prefix_row(header, row, known.ids[name_index[i]])) {
        rows.add(cat("record ", i, " ('", decode(header, row), "') is not a prefix of its name '",
                     decode(header, known.ids[name_index[i]]), "'"));
      }
    }
  }
}

void check_sample_ids(const ShardHeader& header, const h5::File& file, std::vector<std::uint64_t>& all,
                      Verification& result) {
  if (!file.has("sample_ids")) return;
  const std::vector<std::uint64_t> ids = file.read<std::uint64_t>("sample_ids");
  if (static_cast<std::int64_t>(ids.size()) != header.count) {
    result.faults.push_back(cat(header.path, ": 'sample_ids' has ", ids.size(), " values, expected ", header.count));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < static_cast<std::uint64_t>(header.total)) continue;
    result.faults.push_back(
        cat(header.path, ": record ", i, " has sample id ", ids[i], " of ", header.total, " samples"));
    break;
  }
  all.insert(all.end(), ids.begin(), ids.end());
}

// Counts the letters that are two symbols (Unicode's decomposed form, NFD) although the vocabulary also has them as
// one.
class DecomposedLetters {
 public:
  explicit DecomposedLetters(const ShardHeader& header) : header_(header) {
    const std::vector<std::string>& symbols = header.text.vocabulary;
    for (const std::string& accent : symbols) {
      const bool may_combine = find_invalid_utf8(accent) == std::string::npos && accent.size() > 1;
      for (const std::string& letter : symbols)
        if (may_combine && find_invalid_utf8(letter) == std::string::npos &&
            composed(letter + accent) != composed(letter) + composed(accent))
          pairs_.insert({id_of(letter), id_of(accent)});
    }
  }
  void add(std::span<const std::uint8_t> ids) {
    for (std::size_t i = 1; !pairs_.empty() && i < ids.size(); ++i) {
      if (!pairs_.contains({ids[i - 1], ids[i]})) continue;
      if (count_++ == 0) example_ = decode(header_, ids.subspan(i - 1, 2));
    }
  }
  // Returns a warning; "" if there is nothing to warn of.
  std::string warning(const std::string& prefix) const {
    if (count_ == 0) return "";
    const bool is_both = std::ranges::count(header_.text.vocabulary, composed(example_)) > 0;
    return cat("warning: ", prefix, ": ", count_, " letters are two symbols, a letter and its accent (Unicode's ",
               "decomposed form, NFD), such as '", example_, "'",
               is_both ? ", which is also one symbol in this data set: the same word is there in two ways" : "",
               "; convert the data again, which makes one form of them");
  }

 private:
  int id_of(const std::string& symbol) const {
    return static_cast<int>(std::ranges::find(header_.text.vocabulary, symbol) - header_.text.vocabulary.begin());
  }
  const ShardHeader& header_;
  std::set<std::pair<int, int>> pairs_;
  std::int64_t count_ = 0;
  std::string example_;
};

// Adds the error that is being handled. Throws it again if a limit of this process is the cause, and not the data set.
void add_fault(const Error& error, Verification& result) {
  if (!advice_on_limits(error.what()).empty()) throw;
  result.faults.push_back(error.what());
}

SplitFacts verify_split(const std::string& prefix, Verification& result) {
  SplitFacts facts;
  const std::size_t before = result.faults.size();
  for (const std::string& path : find_shards(prefix)) {
    try {
      facts.headers.push_back(read_shard_header(path));
    } catch (const Error& error) {
      add_fault(error, result);
    }
  }
  if (result.faults.size() > before) return facts;
  const bool one_of_many = prefix.ends_with(".h5") && facts.headers[0].num_shards > 1;
  if (!one_of_many) check_shards_agree(facts.headers);
  if (facts.headers[0].is_image()) {
    facts.images = verify_image_split(prefix, facts.headers, !one_of_many, result);
    return facts;
  }

  std::vector<std::uint64_t> sample_ids;
  std::string example;
  DecomposedLetters decomposed(facts.headers[0]);
  for (const ShardHeader& header : facts.headers) {
    const h5::File file = h5::File::open(header.path);
    const DatasetIndex shard = make_dataset_index(header.path, {header});
    std::vector<std::uint8_t> tokens(static_cast<std::size_t>(header.bytes()));
    ShardFiles(shard.shards).read_array(0, "tokens", header.byte_offset, std::span(tokens));  // as training reads them
    if (header.crc32c.empty()) result.summary.push_back(cat(header.path, ": has no checksums (crc32c)"));
    check_blocks(header, tokens, result);
    const auto symbols = static_cast<std::int64_t>(header.text.vocabulary.size());
    if (file.has_attribute("/", "num_classes") && file.read_integer("/", "num_classes") != symbols)
      result.faults.push_back(cat(header.path, ": 'num_classes' is ", file.read_integer("/", "num_classes"),
                                  ", but there are ", symbols, " symbols"));
    if (!header.text.running_text) {
      if (file.has("names")) facts.names = read_names(header.text, file, result);
      check_rows(header, file, tokens, facts.names, result);
      const auto row = static_cast<std::size_t>(header.row_bytes());
      for (std::size_t at = 0; at + row <= tokens.size(); at += row)
        decomposed.add(std::span<const std::uint8_t>(tokens).subspan(at, row));
      check_sample_ids(header, file, sample_ids, result);
    }
    if (header.text.running_text) decomposed.add(tokens);
    if (example.empty() && header.count > 0) {
      const auto row = static_cast<std::size_t>(header.row_bytes());
      const std::span<const std::uint8_t> all(tokens);
      for (std::size_t i = 0; !header.text.running_text && i < 3 && (i + 1) * row <= all.size(); ++i) {
        example += cat(i == 0 ? "" : "  ", "'", decode(header, all.subspan(i * row, row)), "'");
      }
      if (header.text.running_text)
        example = cat("'", decode(header, all.first(std::min<std::size_t>(60, all.size()))), "'");
    }
  }
  sort_and_check_ids(prefix, sample_ids, result);
  if (!one_of_many) {
    for (std::size_t i = 0; i < facts.names.ids.size(); ++i) {
      if (facts.names.ids[i].empty()) {
        result.faults.push_back(cat(prefix, ": name ", i, " is empty, expected one symbol or more"));
        break;
      }
      if (facts.names.rows[i] % facts.names.ids[i].size() == 0) continue;
      result.faults.push_back(cat(prefix, ": name ", i, " ('", decode(facts.headers[0], facts.names.ids[i]), "') has ",
                                  facts.names.rows[i], " rows, expected a multiple of its ", facts.names.ids[i].size(),
                                  " prefixes"));
      break;
    }
  }
  const ShardHeader& first = facts.headers[0];
  const auto distinct =
      std::count_if(facts.names.rows.begin(), facts.names.rows.end(), [](std::uint64_t n) { return n > 0; });
  result.summary.push_back(
      cat(prefix, ": ", first.total, first.text.running_text ? " characters" : " samples", " in ", first.num_shards,
          " file(s), ", first.text.vocabulary.size(), " symbols",
          first.text.running_text ? "" : cat(", ", distinct, " distinct names, context ", first.text.context_length)));
  result.summary.push_back(cat("  such as ", example));
  if (const std::string warning = decomposed.warning(prefix); !warning.empty()) result.summary.push_back(warning);
  return facts;
}

}  // namespace

void sort_and_check_ids(const std::string& prefix, std::vector<std::uint64_t>& sample_ids, Verification& result) {
  std::ranges::sort(sample_ids);
  if (const auto twice = std::ranges::adjacent_find(sample_ids); twice != sample_ids.end())
    result.faults.push_back(cat(prefix, ": sample id ", *twice, " occurs more than once"));
}

Verification verify_dataset(const std::string& target) {
  Verification result;
  std::vector<SplitFacts> splits;
  std::vector<std::string> prefixes;
  for (const std::string& split : {target + "-train", target + "-validation"}) {
    try {
      find_shards(split);
      prefixes.push_back(split);
    } catch (const Error& error) {
      // Not every data set has a validation split, so a missing one is fine. An incomplete or mixed one is a fault.
      const std::string what = error.what();
      const bool absent = what.find("no data set at") != std::string::npos && what.find("*.tmp") == std::string::npos;
      if (!absent && !target.ends_with(".h5")) add_fault(error, result);
    }
  }
  if (prefixes.empty() && result.faults.empty()) prefixes.push_back(target);
  for (const std::string& prefix : prefixes) {
    try {
      splits.push_back(verify_split(prefix, result));
    } catch (const Error& error) {
      add_fault(error, result);
    }
  }
  if (splits.size() == 2 && result.faults.empty()) {
    if (splits[0].headers[0].is_image() && splits[1].headers[0].is_image()) {
      compare_image_splits(splits[0].headers, splits[0].images, splits[1].headers, splits[1].images, result);
      return result;
    }
    const ShardHeader &train = splits[0].headers[0], &validation = splits[1].headers[0];
    if (train.dataset_uuid != validation.dataset_uuid) {
      result.faults.push_back(cat(validation.path, ": attribute 'dataset_uuid' is ", validation.dataset_uuid, ", but ",
                                  train.path, " says ", train.dataset_uuid));
    }
    const KnownNames &a = splits[0].names, &b = splits[1].names;
    for (std::size_t i = 0; i < std::min(a.rows.size(), b.rows.size()); ++i) {
      if (a.rows[i] == 0 || b.rows[i] == 0) continue;
      result.faults.push_back(cat(target, ": the name '", decode(train, a.ids[i]), "' is in both splits"));
      break;
    }
  }
  return result;
}

}  // namespace ringtrain
