// Converts names (one per line, or a CSV column) into a data set of prefixes, encoded as in the pet-name study.
//
// convert_names() does all of it. read_clean_names() reads, checks and counts the names and chooses the alphabet.
// hold_out() puts each distinct name into one of the two splits. Every name then becomes one row per prefix
// (prefix_row() in names.cpp). The rows are shuffled by the seed and written by common/shard_writer.h.
// data_prep/README.md describes the rules under "Names" and the format under "The files".
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "data_prep/common/shard_writer.h"
#include "data_prep/tables/name_source.h"
#include "data_prep/text/alphabet.h"

namespace ringtrain {

// The share for validation is of the distinct names. Unset: 0.1, or none if there is one name.
struct NamesOptions : FileOptions {
  NameSource input;
  std::string alphabet;        // "study31", "auto", or "": study31 when 95 % of the names fit into it
  std::int64_t context = 8;    // symbols before the predicted one
  std::int64_t longest = 100;  // symbols of a name; longer ones are dropped
  bool keep_case = false;
  bool drop_rare = false;  // drop names with symbols that do not fit, instead of an error
};

// What was dropped for one reason: how many rows, and the first few names (in quotes) or lines.
struct Dropped {
  std::uint64_t count = 0;
  std::vector<std::string> examples;
};

struct CleanNames {
  NameTable names;  // sorted; lower-case unless case is kept
  Alphabet alphabet;
  bool lowercase = true;
  std::uint64_t read = 0, kept = 0;  // rows; read is kept and all that were dropped
  std::map<std::string, Dropped> dropped;
  std::uint64_t composed = 0, without_invisible = 0, with_plain_spaces = 0, trimmed = 0;  // names that were changed
  NameTableInfo source;
  std::string advice;  // for the user, if there is any
};

struct NamesReport {
  struct Split {
    std::int64_t names = 0, samples = 0, shards = 0;  // numbers of distinct names, of prefixes and of shards
  };
  CleanNames clean;
  Split train, validation;
  std::string dataset_uuid;
};

// Reads, trims, checks, lower-cases and counts the names. Throws Error if no name is left.
CleanNames read_clean_names(const NamesOptions& options);

// Returns which distinct names are held out. A hash of (seed, name) decides, so adding names moves no others.
// With two or more names and a share above 0, each split gets at least one name. For this, one name may be moved.
std::vector<bool> hold_out(const NameTable& names, std::uint64_t seed, double share);

// Runs the whole conversion. `log` gets the messages for the user.
NamesReport convert_names(const NamesOptions& options, std::ostream& log);

}  // namespace ringtrain
