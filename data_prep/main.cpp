// ringtrain-data makes data sets and checks them. Begin reading here. This file declares the commands and their
// options, and runs the one that was asked for. images/ converts pictures and arrays (begin with convert.h). text/
// converts names (begin with names.h) and running text. tables/ reads the names in a file. common/ has what these
// folders share. verify.h checks a finished data set. README.md describes the rules and the format of the files.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/command_line.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"
#include "data_prep/common/ranks.h"
#include "data_prep/images/convert.h"
#include "data_prep/images/import.h"
#include "data_prep/text/names.h"
#include "data_prep/text/text.h"
#include "data_prep/verify.h"

namespace ringtrain {
namespace {

struct DataCommand {
  const CLI::App* words = nullptr;
  bool for_all_ranks = false;            // false: rank 0 does all the work
  std::function<int(const Ranks&)> run;  // returns the exit code
};

// ---- The commands ---------------------------------------------------------------------------------------------------

// Returns the one operand. Throws Error if there is none, or more than one.
std::string one_input(const CLI::App& command, const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  const std::string own = "ringtrain-data " + command.get_name();
  throw Error(cat(own, ": expected one ", operands_of(command), ", found ", words.size()), own + " --help");
}

void add_validation(CLI::App& command, std::optional<double>& share, const std::string& help) {
  command.add_option("--validation", share, help)->type_name("SHARE")->check(number(0));
}

// The options of a command, with the operands as they were typed.
template <class Options>
struct Typed : Options {
  std::vector<std::string> words;
};
template <class Options>
std::shared_ptr<Typed<Options>> typed(CLI::App& command, const std::string& operands) {
  auto options = std::make_shared<Typed<Options>>();
  add_operands(command, options->words, operands);
  return options;
}

// Adds an option whose value is a whole number of at least `least`.
template <class Number>
void add_number(CLI::App& command, const char* name, Number& value, std::int64_t least, const std::string& help,
                std::uint64_t most = most_counted) {
  command.add_option(name, value, help)->type_name("N")->check(whole_number(least, most));
}

// The options of all conversions.
void add_file_options(CLI::App& command, FileOptions& options, const std::string& shards_help) {
  command.add_option("--out", options.out, "folder and first part of the files' names")->type_name("PREFIX");
  add_number(command, "--shards", options.shards, 1,
             "files per split; does not change the data set [" + shards_help + "]");
  add_number(command, "--seed", options.seed, 0, "of the split and of the order on disk [1]", any_seed);
  command.add_option("--license", options.license, "stored in the files")->type_name("TEXT");
  command.add_flag("--force", options.force, "overwrites files");
}

void add_first_label(CLI::App& c, std::int64_t& first_label) {
  add_number(c, "--first-label", first_label, 0, "is subtracted from every label [0]");
}

// The options that all conversions to images have.
void add_image_options(CLI::App& c, ImageOptions& o, const std::string& encoding_help) {
  add_file_options(c, o, "512 MiB each");
  c.add_option("--class-list", o.class_list,
               "lines \"n01440764 tench\": class id and name (a tab may part them); label 0 is the first line")
      ->type_name("FILE");
  c.add_option("--split", o.split, "INPUT is one split")->type_name("train|validation");
  add_validation(c, o.validation, "share of each class held out for validation [0]");
  add_number(c, "--short-side", o.short_side, 1, "shrinks larger images to this short side and encodes them again");
  add_number(c, "--size", o.size, 1, "resizes to this short side and cuts out the central square");
  c.add_option("--quality", o.quality, "JPEG quality of pictures that are encoded again [95]")
      ->type_name("Q")
      ->check(whole_number(1));
  c.add_option("--encoding", o.encoding, encoding_help)->type_name("jpeg|raw");
  c.add_option("--check", o.check,
               "decode: decodes every image, which finds damaged ones; header: reads only their size [decode]")
      ->type_name("decode|header");
  c.add_option("--broken", o.broken, "fail: lists all and writes nothing; skip: lists all and leaves them out [fail]")
      ->type_name("fail|skip");
  c.add_option(
       "--orientation", o.orientation,
       "of pictures whose EXIF says that they are stored turned: keep stores them as they are; apply turns them "
       "and encodes them again [keep]")
      ->type_name("keep|apply");
  c.add_flag("--statistics", o.statistics, "stores mean and deviation of the training pixels [ImageNet's]");
  add_number(c, "--threads", o.threads, 1, "per rank [the CPUs it may use]");
  c.add_option("--memory", o.memory_gib, "per rank: images kept from the first pass to the second [2]")
      ->type_name("GIB")
      ->check(number(0));
  c.add_flag("--resume", o.resume, "continues a conversion that was killed, and keeps its finished files");
}

void add_rows(CLI::App& c, const std::string& name, std::optional<ImportRows>& rows, const std::string& help) {
  const auto read = [name, &rows](const std::string& text) {
    ImportRows range;
    const std::vector<std::string> ends = split(text, ':');
    if (ends.size() != 2 || !read_number(ends[0], range.first) || !read_number(ends[1], range.end))
      throw Error(cat("option ", name, ": '", text, "' is not FIRST:END"),
                  "for example 0:50000, which is the first 50000 rows");
    rows = range;
  };
  c.add_option_function<std::string>(name, read, help)->type_name("FIRST:END");
}

DataCommand declare_images(CommandLine& program) {
  CLI::App& c = program.add(
      "images",
      "Turns folders, lists or tar files of JPEG and PNG images into a data set. INPUT is a folder with train/ and "
      "val/ (training, valid, dev, ... in any case), each with a folder per class, or with a tar file per class "
      "(n01440764.tar, not compressed; read in place); or it holds the class folders (or tar files) itself; or it is a "
      "tar file of such a folder. JPEG files are stored as they are; PNG files and CMYK JPEGs become RGB JPEGs. "
      "Several "
      "ranks share the work: mpirun -n 8 ringtrain-data images ... gives the same bytes as one.");
  const auto o = typed<ImagesOptions>(c, "INPUT");
  add_image_options(c, *o, "jpeg, or raw: decoded pixels of one size [jpeg]");
  c.add_option("--list", o->list,
               "lines \"path label\": images below INPUT instead of class folders; the label is a number or a class id")
      ->type_name("FILE");
  c.add_option("--validation-list", o->validation_list,
               "the same for the validation split (ImageNet's flat folder of validation images)")
      ->type_name("FILE");
  return {&c, true, [o, &c](const Ranks& ranks) {
            o->input = one_input(c, o->words);
            convert_images(*o, ranks, std::cout);
            return 0;
          }};
}

DataCommand declare_import(CommandLine& program) {
  CLI::App& c = program.add(
      "import",
      "Turns other people's HDF5 arrays of images into a data set. The images are u8 pixels (N, H, W, C), (N, C, H, W) "
      "or (N, H, W), arrays of MATLAB (save -v7.3), or encoded images of variable length (Fuel's encoded_images and "
      "targets). Labels are whole numbers (N), (N, 1) or (1, N) that count from 0, or from --first-label.");
  const auto o = typed<ImportOptions>(c, "FILE.h5");
  o->encoding.clear();
  show_as_required(*c.add_option("--images", o->images, "data set of the images")->type_name("KEY"));
  show_as_required(*c.add_option("--labels", o->labels, "data set of the labels")->type_name("KEY"));
  c.add_option("--layout", o->layout,
               "order of the axes as h5py and h5dump show them: N images, H height, W width, C channels, such as HWCN "
               "[from the shape]")
      ->type_name("LETTERS");
  add_first_label(c, o->first_label);
  add_rows(c, "--rows", o->rows, "uses these rows only");
  add_rows(c, "--validation-rows", o->validation_rows, "rows of the validation split");
  add_image_options(c, *o, "[raw for pixels, jpeg for encoded images]");
  return {&c, true, [o, &c](const Ranks& ranks) {
            o->input = one_input(c, o->words);
            import_arrays(*o, ranks, std::cout);
            return 0;
          }};
}

DataCommand declare_idx(CommandLine& program) {
  CLI::App& c = program.add(
      "idx",
      "Turns a pair of IDX files, such as MNIST's and Fashion-MNIST's, into a data set. IMAGES holds u8 pixels "
      "(N, H, W) or (N, H, W, C), LABELS whole numbers (N) from 0, or from --first-label. Both may be compressed by "
      "gzip. The files of the "
      "test split are converted with the same --out and --split validation.");
  const auto o = typed<IdxOptions>(c, "IMAGES LABELS");
  o->encoding = "raw";
  add_first_label(c, o->first_label);
  add_image_options(c, *o, "raw or jpeg [raw]");
  return {&c, true, [o, &c](const Ranks& ranks) {
            if (o->words.size() != 2)
              throw Error(cat("ringtrain-data idx: expected IMAGES LABELS, found ", o->words.size(), " file(s)"),
                          "ringtrain-data idx --help");
            o->images = o->words[0], o->labels = o->words[1];
            import_idx(*o, ranks, std::cout);
            return 0;
          }};
}

DataCommand declare_names(CommandLine& program) {
  CLI::App& c =
      program.add("names",
                  "Turns names into a data set of prefixes. INPUT has one name a line, or is a table (CSV, TSV) with "
                  "a header; '-' is standard input.");
  struct Options : NamesOptions {
    bool lower_case = false;
  };
  const auto o = typed<Options>(c, "INPUT");
  add_file_options(c, *o, "2");
  c.add_option("--column", o->input.column,
               "the table's column, by its header or its number; without it, a file that ends in .csv, .tsv, .tab or "
               ".psv uses the column 'name', or the only one whose header contains 'name'")
      ->type_name("NAME");
  c.add_option("--separator", o->input.separator,
               "what separates the table's fields: a character, or comma, semicolon, tab, pipe, space, none (each line "
               "is one name) [guessed from the first lines]")
      ->type_name("CHARACTER");
  c.add_flag("!--no-header", o->input.has_header, "the table's first line is a record; --column is a number then");
  add_number(c, "--header-line", o->input.header_line, 1,
             "the line of the table's header, counted from 1; the lines above it are left out");
  c.add_flag("!--no-quotes", o->input.has_quotes, "quotation marks are letters, as in some tables with tabs");
  c.add_option("--alphabet", o->alphabet,
               "study31 (* + a-z - . space; other names are dropped) or auto (every symbol that occurs, at most 252) "
               "[study31 if 95 % of the names fit into it, otherwise auto]")
      ->type_name("study31|auto");
  CLI::Option* keep = c.add_flag("--keep-case", o->keep_case, "does not lower-case");
  c.add_flag("--lowercase", o->lower_case, "lower-cases [the default]")->excludes(keep);
  c.add_flag("--drop-rare", o->drop_rare,
             "with --alphabet auto: keeps the 252 most frequent symbols and drops the names with others");
  add_number(c, "--max-length", o->longest, 1, cat("drops names of more symbols; at most 10000 [", o->longest, "]"));
  add_number(c, "--context", o->context, 1, cat("symbols before the predicted one [", o->context, "]"));
  add_validation(c, o->validation, "share of the distinct names held out [0.1]");
  return {&c, false, [o, &c](const Ranks&) {
            o->input.path = one_input(c, o->words);
            convert_names(*o, std::cout);
            return 0;
          }};
}

DataCommand declare_text(CommandLine& program) {
  CLI::App& c = program.add("text",
                            "Turns running text into a data set of characters. The last part of the text is the "
                            "validation split. '-' is standard input.");
  const auto o = typed<TextOptions>(c, "INPUT");
  add_file_options(c, *o, "2");
  c.add_option("--alphabet", o->alphabet, "auto (UTF-8 symbols, at most 254) or bytes [auto]")->type_name("auto|bytes");
  add_validation(c, o->validation, "share of the text held out [0.05]");
  return {&c, false, [o, &c](const Ranks&) {
            o->input = one_input(c, o->words);
            convert_text(*o, std::cout);
            return 0;
          }};
}

DataCommand declare_verify(CommandLine& program) {
  CLI::App& c = program.add(
      "verify",
      "Checks everything about a data set: files, attributes, types, totals, ids and checksums. Of images, it checks "
      "that every one decodes, has the shape that the file says, has a label of a class, and is in one split only; it "
      "also counts the images of each class. Of names, it checks the padding, that every row is a prefix of its name, "
      "and that no name is in both splits. PREFIX is a converter's --out (both splits) or one split of it. Every fault "
      "is one line; the exit code is 1 if there is any.");
  const auto targets = std::make_shared<std::vector<std::string>>();
  add_operands(c, *targets, "PREFIX|FILE.h5 ...");
  return {&c, false, [targets](const Ranks&) {
            if (targets->empty()) throw Error("expected a PREFIX or a file", "ringtrain-data verify --help");
            std::size_t faults = 0;
            for (const std::string& target : *targets) {
              const Verification result = verify_dataset(target);
              for (const std::string& line : result.summary) std::cout << printable(line) << "\n";
              for (const std::string& line : result.faults) std::cerr << "fault: " << printable(line) << "\n";
              faults += result.faults.size();
            }
            std::cout << (faults == 0 ? "no faults found\n" : cat(faults, " fault(s) found\n"));
            return faults == 0 ? 0 : 1;
          }};
}

// ---- The program ----------------------------------------------------------------------------------------------------

constexpr const char* ranks_text =
    R"(images, import and idx share their work among the ranks of a job. For the other commands, rank 0 does all the work. With --verbose, which any command takes, an error also says where in the code it was thrown.)";
constexpr const char* files_text =
    R"(A data set is PREFIX-train-00000-of-00002.h5 and so on, and PREFIX-validation-00000-of-00002.h5 and so on. data_prep/README.md describes the files.)";

constexpr std::int64_t open_files_needed = 32;  // inputs, outputs, locks, and MPI

bool verbose = false;

int run(std::vector<std::string> words) {
  expect_stack("ringtrain-data");
  verbose = std::erase(words, "--verbose") > 0;
  CommandLine program("ringtrain-data", "makes and checks data sets for ringtrain");
  program.add_section("Files", files_text);
  program.add_section("Ranks", ranks_text);
  const std::vector<DataCommand> commands = {declare_images(program), declare_import(program), declare_idx(program),
                                             declare_names(program),  declare_text(program),   declare_verify(program)};
  if (words.empty()) {
    std::cerr << program.help();
    return 2;
  }
  const CLI::App* chosen = nullptr;
  try {
    chosen = program.parse(words);
  } catch (const Error&) {
    leave_message_to_first();
    throw;
  }
  if (chosen == nullptr) {
    check_standard_output();
    return 0;
  }
  expect_open_files(open_files_needed, "ringtrain-data");
  const DataCommand& command = *std::ranges::find(commands, chosen, &DataCommand::words);
  const Ranks ranks;
  check_same_words(ranks.gather(shell_command(words)));
  const auto work = [&] {
    const int code = command.run(ranks);
    check_standard_output();
    return code;
  };
  return command.for_all_ranks || ranks.size() == 1 ? work() : on_rank_0(work);
}

// Reports without allocating memory, because the operating system has just refused to give more.
void report_no_memory() {
  char text[900];
  const int length = no_memory_message(text, sizeof text, "ringtrain-data", "",
                                       "fewer --threads, a lower --memory or fewer ranks on a node need less");
  if (::write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(1);
}

// Prints an error. Many errors occur on all ranks at once, for example a bad file, and should be printed only once. So
// a rank other than 0 first waits for 2 seconds, in which rank 0 ends the job.
void report(const std::exception& error) {
  Ranks::leave_report_to_first();
  std::cerr << "ringtrain-data: error: " << printable(error.what()) << "\n";
  if (const std::string hint = hint_of(error); !hint.empty()) std::cerr << "  " << printable(hint) << "\n";
  if (verbose) std::cerr << "  " << described_place(error) << "\n";
}

}  // namespace
}  // namespace ringtrain

int main(int count, char** words) {
  ringtrain::clean_up_when_stopped();
  ringtrain::report_file_limits();
  try {
    return ringtrain::run({words + 1, words + count});
  } catch (const std::bad_alloc&) {
    ringtrain::report_no_memory();
  } catch (const std::exception& error) {
    ringtrain::report(error);
  }
  ringtrain::Ranks::abort_job();
  return 1;
}
