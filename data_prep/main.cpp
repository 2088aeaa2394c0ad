// ringtrain-data makes data sets and checks them. Begin reading here. commands.cpp declares
// the commands and their options. images/ converts pictures and arrays (begin with convert.h). text/ converts names
// (begin with names.h) and running text. tables/ reads the names in a file. common/ has what these folders share.
// verify.h checks a finished data set. README.md describes the rules and the format of the files.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"
#include "data_prep/commands.h"
#include "data_prep/common/ranks.h"
#include "data_prep/common/stop_cleanup.h"

namespace ringtrain {
namespace {

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
  if (chosen == nullptr) return 0;
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
