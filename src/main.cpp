// The main program. It starts MPI and catches signals for the commands that need them. An error that a
// command does not handle ends the job here.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "backend/cpu/processor.h"
#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/plan_process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/command_line.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"
#include "cluster/session.h"
#include "commands/commands.h"
#include "config/schema.h"
#include "run/library_versions.h"
#include "run/start.h"

namespace ringtrain {
namespace {

constexpr const char* files_text =
    R"(An experiment is a YAML file; configs/README.md lists every key. key.path=value replaces one of them. A run has a folder of its own, results/NAME/TIME or run.dir.)";
constexpr const char* ranks_text =
    R"(train, evaluate and bench work on all ranks of a job. The other commands are for one process: in a job of several ranks, rank 0 does their work. study starts the ranks of its trials itself. With --verbose, which any command takes, an error also says where in the code it was thrown; a run's run.json always does.)";
std::string codes_text() {
  std::string text;
  for (const ExitCode& code : exit_codes) {
    const std::string number = cat(code.code);
    text += cat(text.empty() ? "" : "\n", "  ", number, std::string(4 - number.size(), ' '), code.meaning);
  }
  return text;
}

bool verbose = false;  // true: errors say where in the code they were thrown

void describe(CommandLine& program) {
  program.add_answer("--version", "prints the commit, the compiler and the libraries", version_text);
  program.add_section("Files", files_text);
  program.add_section("Ranks", ranks_text);
  program.add_section("Exit codes", codes_text());
  std::vector<std::string> keys;
  for (const Field& field : schema()) keys.push_back(cat(field.key, "="));
  program.complete_keys(std::move(keys));
}

int run(int argc, char** argv) {
  expect_stack("ringtrain");
  const std::vector<std::string> whole(argv, argv + argc);
  std::vector<std::string> words(whole.begin() + std::min(argc, 1), whole.end());
  verbose = std::erase(words, "--verbose") > 0;
  CommandLine program("ringtrain", "large-batch training over MPI");
  describe(program);
  const std::vector<Command> commands = declare_commands(program, whole);
  if (words.empty()) {
    std::fputs(program.help().c_str(), stderr);
    return exit_usage;
  }
  if (words[0] == cuda::planner_command) return cuda::run_planner();  // `plan --device` starts this child process

  // In a job of several ranks, a mistake in the command line is thrown again after MPI has started. Then report() can
  // see to it that only one rank prints it.
  const CLI::App* chosen = nullptr;
  std::exception_ptr mistake;
  try {
    chosen = program.parse(words);
    if (chosen == nullptr) return 0;
  } catch (const Error&) {
    if (launched_tasks() == 1) throw;
    mistake = std::current_exception();
  }
  const auto command = std::ranges::find(commands, chosen, &Command::words);
  const bool for_one = command != commands.end() && command->for_one_process;
  if (!for_one && command != commands.end() && command->trains) catch_signals();  // must come before MPI starts
  const auto work = [&](Session* session) {
    const int code = command->run(session);
    if (!command->trains) check_standard_output();  // what a training leaves is in its folder
    return code;
  };
  if (for_one && launched_tasks() == 1) return work(nullptr);
  Session session(&argc, &argv);
  set_log_rank(session.rank(), session.host());
  check_same_words(session.job().gather(shell_command(words)));
  if (mistake) std::rethrow_exception(mistake);
  if (!for_one) agree_on_instruction_sets(session.job());
  return session.finish(for_one ? on_rank_0([&] { return work(&session); }) : work(&session));
}

// Reports without allocating memory, because the operating system has just refused to give more.
[[noreturn]] void report_no_memory() {
  const char* who = rank_label();
  char text[900];
  const int length =
      no_memory_message(text, sizeof text, "ringtrain", who,
                        "ringtrain plan shows what a rank needs: a smaller batch.micro, memory.recompute, fewer loader "
                        "threads or fewer ranks on a node need less; so does what else runs here");
  if (::write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(exit_failed);
  abort_job(exit_failed);
}

// Prints an error and ends the job. Many errors occur on all ranks at once, for example a bad file, and should be
// printed only once. So a rank other than 0 first waits up to 2 seconds. If the first signal arrives in this time, rank
// 0 has ended the job, and this rank prints nothing. If a signal arrived earlier, it says nothing about rank 0.
[[noreturn]] void report(const std::exception& error) {
  const std::string who = rank_label();
  if (who.empty() ? launched_rank() > 0 : !who.starts_with("rank 0 ")) {
    const int before = requested_signal();
    for (int tenth = 0; tenth < 20 && requested_signal() == before; ++tenth) usleep(100'000);
    if (requested_signal() != before) abort_job(exit_failed);
  }
  std::string text = cat("ringtrain: error", who.empty() ? "" : " (" + who + ")", ": ", error.what(), "\n");
  if (const std::string hint = hint_of(error); !hint.empty()) text += cat("  ", hint, "\n");
  if (verbose) text += cat("  ", described_place(error), "\n");
  std::fflush(stdout);
  std::fputs(printable(text).c_str(), stderr);
  std::fflush(stderr);
  abort_job(exit_failed);
}

// Reports an exception that no thread has caught, for example out of memory in a parallel region.
[[noreturn]] void report_uncaught() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    report_no_memory();
  } catch (const std::exception& error) {
    report(error);
  } catch (...) {
  }
  std::abort();
}

}  // namespace
}  // namespace ringtrain

int main(int argc, char** argv) {
  std::set_terminate(ringtrain::report_uncaught);
  ringtrain::cpu::leave_openmp_places(argv);
  ringtrain::report_file_limits();
  try {
    const int code = ringtrain::run(argc, argv);
    ringtrain::check_standard_output();
    return code;
  } catch (const std::bad_alloc&) {
    ringtrain::report_no_memory();
  } catch (const std::exception& error) {
    try {
      ringtrain::report(error);
    } catch (const std::bad_alloc&) {
      ringtrain::report_no_memory();
    }
  }
}
