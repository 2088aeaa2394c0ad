// ringtrain-data: makes data sets and checks them. This file only reads the command line.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "cluster/on_rank_0.h"
#include "data_prep/common/arguments.h"
#include "data_prep/common/ranks.h"
#include "data_prep/images/commands.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "data_prep/verify.h"

namespace ringtrain {
namespace {

constexpr const char* usage = R"(ringtrain-data: makes and checks data sets for ringtrain

  ringtrain-data images INPUT --out PREFIX [options]   folders, lists or tar files of JPEG and PNG images
  ringtrain-data import FILE.h5 --out PREFIX [options] other people's HDF5 arrays of images
  ringtrain-data names INPUT --out PREFIX [options]    names (lines or a CSV column) into prefixes
  ringtrain-data text INPUT --out PREFIX [options]     running text into characters
  ringtrain-data verify PREFIX|FILE.h5 ...             checks everything, checksums too
  ringtrain-data contact-sheet PREFIX --out SHEET.png  random images with their classes

ringtrain-data COMMAND --help lists a command's options. data_prep/README.md describes the files.
images and import share their work among the ranks of a job; of the other commands, rank 0 does all.
--verbose, with any command: an error also says where in the code it was thrown.
)";

constexpr const char* names_usage = R"(ringtrain-data names INPUT --out PREFIX [options]

Writes PREFIX-train-00000-of-00002.h5, ..., PREFIX-validation-00000-of-00002.h5, ...
INPUT has one name a line, or is a CSV file with a header; '-' is standard input.

  --out PREFIX        folder and first part of the files' names
  --column NAME       the CSV column; without it, a file ending in .csv or .tsv uses the column 'name', or the only one
                      whose header contains 'name'
  --alphabet NAME     study31 (* + a-z - . space; other names are dropped) or auto (every symbol that occurs, at most 252)
                      [study31 if 95 % of the names fit into it, otherwise auto]
  --keep-case         do not lower-case (--lowercase, the default, does)
  --drop-rare         with auto: keep the 252 most frequent symbols, drop the names with others
  --max-length N      drop names of more symbols [100]
  --context N         symbols before the predicted one [8]
  --validation SHARE  share of the distinct names held out [0.1]
  --shards N          files per split; does not change the data set [2]
  --seed N            of the split and of the order on disk [1]
  --license TEXT      stored in the files
  --force             overwrite
)";

constexpr const char* text_usage = R"(ringtrain-data text INPUT --out PREFIX [options]

Writes PREFIX-train-00000-of-00002.h5, ..., PREFIX-validation-00000-of-00002.h5, ...
The last part of the text is the validation split. '-' is standard input.

  --out PREFIX        folder and first part of the files' names
  --alphabet NAME     auto (UTF-8 symbols, at most 254) or bytes [auto]
  --validation SHARE  share of the text [0.05]
  --shards N          files per split; does not change the data set [2]
  --seed N            stored in the files [1]
  --license TEXT      stored in the files
  --force             overwrite
)";

constexpr const char* verify_usage = R"(ringtrain-data verify PREFIX|FILE.h5 ...

Checks files, attributes, types, totals, checksums and ids. Images: that every one decodes, has the shape and a label
that the file says, and is in one split only; says how many there are of each class. Names: padding, that every row is a
prefix of its name, and that no name is in both splits. PREFIX is a converter's --out (both splits) or one split of it. Every fault is one line; the exit code
is 1 if there is any.
)";

int names(const std::vector<std::string>& words) {
  const Arguments arguments(words,
                            {"--out", "--column", "--alphabet", "--context", "--validation", "--shards", "--seed",
                             "--max-length", "--license"},
                            {"--lowercase", "--keep-case", "--drop-rare", "--force"});
  if (arguments.has("--lowercase") && arguments.has("--keep-case")) {
    throw Error("--lowercase and --keep-case contradict each other");
  }
  NamesOptions options;
  options.input = {arguments.one_input(), arguments.text("--column", "")};
  options.out = arguments.text("--out", "");
  options.alphabet = arguments.text("--alphabet", "");
  options.context = arguments.number("--context", options.context);
  options.validation = arguments.share();
  options.shards = arguments.number("--shards", options.shards);
  options.seed = arguments.number("--seed", options.seed);
  options.longest = arguments.number("--max-length", options.longest);
  options.license = arguments.text("--license", options.license);
  options.keep_case = arguments.has("--keep-case");
  options.drop_rare = arguments.has("--drop-rare");
  options.force = arguments.has("--force");
  convert_names(options, std::cout);
  return 0;
}

int text(const std::vector<std::string>& words) {
  const Arguments arguments(words, {"--out", "--alphabet", "--validation", "--shards", "--seed", "--license"},
                            {"--force"});
  TextOptions options;
  options.input = arguments.one_input();
  options.out = arguments.text("--out", "");
  options.alphabet = arguments.text("--alphabet", options.alphabet);
  options.validation = arguments.share();
  options.shards = arguments.number("--shards", options.shards);
  options.seed = arguments.number("--seed", options.seed);
  options.license = arguments.text("--license", options.license);
  options.force = arguments.has("--force");
  convert_text(options, std::cout);
  return 0;
}

int verify(const std::vector<std::string>& words) {
  const Arguments arguments(words, {}, {});
  if (arguments.inputs.empty()) throw Error("expected a PREFIX or a file", "--help shows the command");
  std::size_t faults = 0;
  for (const std::string& target : arguments.inputs) {
    const Verification result = verify_dataset(target);
    for (const std::string& line : result.summary) std::cout << line << "\n";
    for (const std::string& line : result.faults) std::cerr << "fault: " << line << "\n";
    faults += result.faults.size();
  }
  std::cout << (faults == 0 ? "no faults found\n" : cat(faults, " fault(s) found\n"));
  return faults == 0 ? 0 : 1;
}

enum class Work { of_all_ranks, of_one };

struct Command {
  const char* help;
  int (*run)(const std::vector<std::string>&);
  Work work;
};

const std::map<std::string, Command> commands = {
    {"images", {images_usage, run_images, Work::of_all_ranks}},
    {"import", {import_usage, run_import, Work::of_all_ranks}},
    {"names", {names_usage, names, Work::of_one}},
    {"text", {text_usage, text, Work::of_one}},
    {"verify", {verify_usage, verify, Work::of_one}},
    {"contact-sheet", {contact_sheet_usage, run_contact_sheet, Work::of_one}}};

bool verbose = false;

int run(std::vector<std::string> words) {
  verbose = std::erase(words, "--verbose") > 0;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    (words.empty() ? std::cerr : std::cout) << usage;
    return words.empty() ? 2 : 0;
  }
  const auto found = commands.find(words[0]);
  if (found == commands.end()) throw Error(cat("unknown command '", words[0], "'"), "ringtrain-data --help lists them");
  const Command& command = found->second;
  words.erase(words.begin());
  for (const std::string& word : words) {
    if (word == "--help" || word == "-h") {
      std::cout << command.help;
      return 0;
    }
  }
  if (command.work == Work::of_all_ranks) return command.run(words);
  const Ranks ranks;
  return ranks.size() == 1 ? command.run(words) : on_rank_0([&] { return command.run(words); });
}

void report(const std::exception& error) {
  std::cerr << "ringtrain-data: error: " << printable(error.what()) << "\n";
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own != nullptr && !own->hint().empty()) std::cerr << "  hint: " << printable(own->hint()) << "\n";
  if (verbose)
    std::cerr << (own != nullptr ? cat("  thrown at ", thrown_at(error)) : "  thrown by a library of this program")
              << "\n";
}

}  // namespace
}  // namespace ringtrain

int main(int count, char** words) {
  try {
    return ringtrain::run({words + 1, words + count});
  } catch (const std::exception& error) {
    ringtrain::report(error);
  }
  ringtrain::Ranks::abort_job();
  return 1;
}
