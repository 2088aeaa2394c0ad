#include "data_prep/text/names.h"

#include <algorithm>
#include <ostream>

#include "base/error.h"
#include "base/machine_share.h"
#include "base/random.h"
#include "base/utf8.h"
#include "data/row_plan.h"
#include "data_prep/common/parallel.h"
#include "data_prep/tables/layout.h"

namespace ringtrain {
namespace {

// The ids of all names, one name after the other. Each name ends with the stop.
struct EncodedNames {
  std::vector<std::uint8_t> ids;
  std::vector<std::uint64_t> offsets = {0};

  EncodedNames(const NameTable& names, const Alphabet& alphabet, std::uint8_t stop) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      alphabet.encode(names.name(i), ids);
      ids.push_back(stop);
      offsets.push_back(ids.size());
    }
  }
  std::int64_t length(std::size_t name) const { return static_cast<std::int64_t>(offsets[name + 1] - offsets[name]); }
};

// The rows of one split. They are numbered by name, then by occurrence of the name, then by length of the prefix.
class PrefixRows {
 public:
  struct Place {
    std::uint32_t name;
    std::int64_t length;
  };
  PrefixRows(const NameTable& names, const EncodedNames& encoded, const std::vector<bool>& held_out, bool want)
      : encoded_(encoded) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (held_out[i] != want) continue;
      names_.push_back(static_cast<std::uint32_t>(i));
      starts_.push_back(starts_.back() + static_cast<std::int64_t>(names.count(i)) * encoded.length(i));
    }
    std::size_t name = 0;
    for (std::int64_t row = 0; row < total(); row += landmark_step) {
      while (starts_[name + 1] <= row) ++name;
      landmarks_.push_back(static_cast<std::uint32_t>(name));
    }
  }
  std::int64_t total() const { return starts_.back(); }
  std::int64_t distinct() const { return static_cast<std::int64_t>(names_.size()); }

  Place operator()(std::int64_t row) const {
    std::size_t name = landmarks_[static_cast<std::size_t>(row / landmark_step)];
    while (starts_[name + 1] <= row) ++name;
    return {names_[name], (row - starts_[name]) % encoded_.length(names_[name]) + 1};
  }

 private:
  static constexpr std::int64_t landmark_step = 32;  // rows; a look-up walks a short way from a landmark
  const EncodedNames& encoded_;
  std::vector<std::uint32_t> names_, landmarks_;
  std::vector<std::int64_t> starts_ = {0};
};

void write_known_names(const NameTable& names, ShardWriter& writer) {
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint64_t> offsets = {0};
  for (std::size_t i = 0; i < names.size(); ++i) {
    bytes.insert(bytes.end(), names.name(i).begin(), names.name(i).end());
    offsets.push_back(bytes.size());
  }
  writer.write_names(bytes, offsets);
}

// Writes the row of a prefix of a name: context + 1 ids. The prefix is the first `length` of `ids`, which end with the
// stop. The row has the last context + 1 of these; a shorter prefix is padded with `pad` on the left.
void prefix_row(const std::uint8_t* ids, std::int64_t length, std::int64_t context, std::uint8_t pad,
                std::uint8_t* row) {
  const std::int64_t kept = std::min(length, context + 1);
  std::fill(row, row + (context + 1 - kept), pad);
  std::copy(ids + (length - kept), ids + length, row + (context + 1 - kept));
}

// Fills rows [begin, end) of a piece of a shard. The piece starts at position `first` on disk. The look-ups are random
// accesses to memory. Short separate loops let the processor start many of them at the same time.
struct Piece {
  std::vector<std::uint8_t> tokens;
  std::vector<std::uint64_t> sample_ids;
  std::vector<std::uint32_t> name_index;

  void fill(std::int64_t first, std::int64_t begin, std::int64_t end, const SplitDescription& split,
            const EncodedNames& encoded, const PrefixRows& rows, const EpochOrder& order) {
    std::vector<PrefixRows::Place> places;
    places.reserve(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = begin; i < end; ++i) {
      sample_ids[static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(order(first + i));
    }
    for (std::int64_t i = begin; i < end; ++i) {
      places.push_back(rows(static_cast<std::int64_t>(sample_ids[static_cast<std::size_t>(i)])));
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const PrefixRows::Place place = places[static_cast<std::size_t>(i - begin)];
      name_index[static_cast<std::size_t>(i)] = place.name;
      prefix_row(encoded.ids.data() + encoded.offsets[place.name], place.length, split.context_length,
                 static_cast<std::uint8_t>(split.pad_id), tokens.data() + i * (split.context_length + 1));
    }
  }
};

// Position p on disk holds row order(p). Shards are cut from this sequence; their number does not change the data.
void write_split(const SplitDescription& split, const NameTable& names, const EncodedNames& encoded,
                 const PrefixRows& rows, OutputFiles& files) {
  constexpr std::int64_t rows_at_once = 1 << 18;
  const std::int64_t threads = std::min(usable_cpus(), 8);
  const EpochOrder order(random_key(split.seed, RandomPurpose::shards), 0, split.total);
  Piece piece;
  for (std::int64_t shard = 0; shard < split.num_shards; ++shard) {
    ShardWriter writer(split, shard, files);
    const ShardRange range = writer.range();
    for (std::int64_t first = range.first; first < range.last; first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, range.last - first);
      piece.tokens.resize(static_cast<std::size_t>(count * (split.context_length + 1)));
      piece.sample_ids.resize(static_cast<std::size_t>(count));
      piece.name_index.resize(static_cast<std::size_t>(count));
      parallel_for(threads, static_cast<int>(threads), [&](std::int64_t t) {
        piece.fill(first, count * t / threads, count * (t + 1) / threads, split, encoded, rows, order);
      });
      writer.append(piece.tokens, piece.sample_ids, piece.name_index);
    }
    if (shard == 0) write_known_names(names, writer);
    writer.finish();
  }
}

std::string uuid_of(const CleanNames& clean, const NamesOptions& options, double share) {
  ContentHash hash;
  hash.add("names 1");
  for (const std::string& symbol : clean.alphabet.vocabulary()) hash.add(symbol);
  hash.add(static_cast<std::uint64_t>(options.context));
  hash.add(options.seed);
  hash.add(static_cast<std::uint64_t>(share * 1e9));
  for (std::size_t i = 0; i < clean.names.size(); ++i) {
    hash.add(clean.names.name(i));
    hash.add(clean.names.count(i));
  }
  return hash.uuid();
}

void check(const NamesOptions& options) {
  const double share = options.validation.value_or(0.1);
  if (options.out.empty()) throw Error("--out PREFIX is missing");
  if (options.context < 1 || options.context > 4096)
    throw Error(cat("--context ", options.context, ": expected 1 to 4096"));
  if (options.shards < 1 || options.shards > 99999)
    throw Error(cat("--shards ", options.shards, ": expected 1 to 99999"));
  if (!(share >= 0 && share < 1)) throw Error(cat("--validation ", share, ": expected at least 0 and less than 1"));
  if (options.longest < 1 || options.longest > 10'000)  // the reader cuts lines after 64 KiB
    throw Error(cat("--max-length ", options.longest, ": expected 1 to 10000"));
  if (!options.alphabet.empty() && options.alphabet != "study31" && options.alphabet != "auto") {
    throw Error(cat("--alphabet ", options.alphabet, ": expected study31 or auto"));
  }
}

void print_source(const CleanNames& clean, const std::string& path, std::ostream& log) {
  const NameTableInfo& source = clean.source;
  log << "names       " << path;
  if (source.separator != '\n' || !source.column.empty())
    log << ", column " << shown(source.column) << ", separated by " << separator_name(source.separator);
  log << "\n";
  if (source.column.empty()) return;
  log << "lines       " << source.lines << ": " << clean.read << " rows, " << source.header_lines << " of the header";
  if (source.inner_line_ends > 0) log << ", " << source.inner_line_ends << " more inside quoted fields";
  log << "\n";
}

void print_changes(const CleanNames& clean, std::ostream& log) {
  const auto line = [&](std::uint64_t count, const char* what) {
    if (count > 0) log << "changed     " << count << " " << what << "\n";
  };
  line(clean.composed, "names to Unicode's composed form (NFC)");
  line(clean.without_invisible, "names: invisible symbols, such as zero-width spaces and soft hyphens, were removed");
  line(clean.with_plain_spaces, "names: no-break and other unusual spaces became plain ones");
  line(clean.trimmed, "names: spaces at the ends were removed");
}

std::size_t count_numbers(const NameTable& names) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < names.size(); ++i)
    count += names.name(i).find_first_not_of("0123456789.,-") == std::string_view::npos;
  return count;
}

void print(const NamesReport& report, const NamesOptions& options, std::ostream& log) {
  const CleanNames& clean = report.clean;
  print_source(clean, options.input.path, log);
  log << "kept        " << clean.kept << " of " << clean.read << " (" << clean.names.size() << " distinct)\n";
  for (const auto& [reason, dropped] : clean.dropped) {
    log << "dropped     " << dropped.count << " " << reason;
    for (std::size_t i = 0; i < dropped.examples.size(); ++i)
      log << (i == 0 ? ", such as " : ", ") << dropped.examples[i];
    log << "\n";
  }
  if (!clean.advice.empty()) log << "            " << clean.advice << "\n";
  if (clean.source.short_rows > 0) {
    log << "note        " << clean.source.short_rows << " rows have fewer fields than the header (first line "
        << clean.source.first_short_row << "); their names are used\n";
  }
  constexpr std::int64_t many_lines = 10;
  if (clean.source.longest_lines >= many_lines)
    log << "warning     a quoted field of line " << clean.source.longest_at << " goes on for "
        << clean.source.longest_lines << " more lines: is a quotation mark missing?\n";
  if (const std::size_t numbers = count_numbers(clean.names); 2 * numbers > clean.names.size())
    log << "warning     " << numbers << " of " << clean.names.size()
        << " distinct names are numbers: is this the right column (--column)?\n";
  if (!clean.source.seems_header.empty())
    log << "warning     the first line, " << shown(clean.source.seems_header)
        << ", is taken for a name; if it is a header, give --column 1\n";
  print_changes(clean, log);
  log << "alphabet    " << clean.alphabet.name() << ", " << clean.alphabet.vocabulary().size() << " symbols, "
      << (clean.lowercase ? "lower case" : "case kept") << "\n";
  const auto line = [&](const std::string& split, const NamesReport::Split& part) {
    log << split << part.names << " distinct names, " << part.samples << " samples (prefixes), " << part.shards
        << " file(s)\n";
  };
  line("train       ", report.train);
  if (report.validation.samples > 0) {
    line("validation  ", report.validation);
  } else {
    log << "validation  none" << (options.validation ? "" : ": one distinct name cannot be split") << "\n";
  }
}

}  // namespace

std::vector<bool> hold_out(const NameTable& names, std::uint64_t seed, double share) {
  std::vector<bool> held(names.size(), false);
  if (share <= 0 || names.size() < 2) return held;
  const std::uint64_t key = random_key(seed, RandomPurpose::shards);
  std::size_t number = 0, lowest = 0, highest = 0;
  double lowest_draw = 2, highest_draw = -1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double draw = keyed_draw(key, names.name(i));
    held[i] = draw < share;
    number += held[i];
    if (draw < lowest_draw) lowest = i, lowest_draw = draw;
    if (draw > highest_draw) highest = i, highest_draw = draw;
  }
  // With few names, a split could be empty. Each split therefore gets at least one name.
  if (number == 0) held[lowest] = true;
  if (number == names.size()) held[highest] = false;
  return held;
}

NamesReport convert_names(const NamesOptions& options, std::ostream& log) {
  check(options);
  OutputFiles files({options.out + "-train", options.out + "-validation"}, options.force);
  constexpr std::uint8_t pad = 0, stop = 1;
  const double share = options.validation.value_or(0.1);
  NamesReport report;
  report.clean = read_clean_names(options);
  const CleanNames& clean = report.clean;
  if (options.validation.value_or(0) > 0 && clean.names.size() < 2) {
    throw Error(cat(options.input.path, ": there is only one distinct name, which leaves none for validation"),
                "use --validation 0");
  }
  const std::vector<bool> held_out = hold_out(clean.names, options.seed, share);
  const EncodedNames encoded(clean.names, clean.alphabet, stop);
  report.dataset_uuid = uuid_of(clean, options, share);
  for (const bool validation : {false, true}) {
    const PrefixRows rows(clean.names, encoded, held_out, validation);
    if (rows.total() == 0) continue;
    SplitDescription split =
        describe_split(options, validation ? "validation" : "train", rows.total(), options.input.path);
    split.dataset_uuid = report.dataset_uuid;
    split.context_length = options.context;
    split.vocabulary = clean.alphabet.vocabulary();
    split.pad_id = pad;
    split.stop_id = stop;
    split.lowercase = clean.lowercase;
    write_split(split, clean.names, encoded, rows, files);
    (validation ? report.validation : report.train) = {rows.distinct(), rows.total(), split.num_shards};
  }
  files.commit();
  print(report, options, log);
  return report;
}

}  // namespace ringtrain
