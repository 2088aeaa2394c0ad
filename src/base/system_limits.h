// Limits that the system sets to this process: open files, address space, the size of files. If a call fails because of
// one of them, the user learns which one, its value, and what to do. start_thread() says it of threads.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace ringtrain {

// Returns advice if a message ends with the system's words for too many open files, for memory that it refuses, or for
// a file that is too large, for example "this process may open 64 files (ulimit -n); raise ...". Otherwise returns "".
// The cause is then this process or its machine, and not the file that the message names.
std::string advice_on_limits(std::string_view message);

// Returns what the user can do: the advice on limits if there is any, otherwise the error's own hint, or advice on a
// full disk or a quota. "": there is nothing.
std::string hint_of(const std::exception& error);

// Returns whether this process may have so many files open, in all. Raises the soft limit if it is lower, because the
// usual limit of 1,024 is only a default.
bool may_open_files(std::int64_t count);

// Does the same, and throws Error if the hard limit is lower. `who` is the sentence's subject, such as
// "ringtrain-data".
void expect_open_files(std::int64_t count, const std::string& who);

// Throws Error if the limit of the stack (ulimit -s) is too small for this program's threads, which would crash.
void expect_stack(const std::string& who);

// Throws Error if the limit of address space (ulimit -v) leaves fewer than these bytes. Libraries such as MPI and
// oneDNN hang or crash if they get none, so this is asked before. `what` continues the sentence "there is no room for".
void expect_address_space(std::int64_t bytes, const std::string& what);

// With a limit of address space, a crash (SIGSEGV, SIGBUS) prints that this limit is the likely reason. Call it after
// MPI has started.
void explain_crashes_under_limit();

// What a message says of std::bad_alloc.
inline constexpr const char* out_of_memory = "out of memory: the operating system gave no more (std::bad_alloc)";

// Writes the message for memory that the system refuses (std::bad_alloc) into `text`, without allocating memory, and
// returns its length. `program` and `who` (the rank, or "") begin the message. `advice` says what needs less memory.
int no_memory_message(char* text, std::size_t size, const char* program, const char* who, const char* advice);

// Starts threads. If the system refuses one, the error says what the thread was for and which limit is in the way.

// Returns a sentence's end about the limits of this process that may have refused a thread or a process: those that are
// reached, or all that are set, or those of the machine. For example "the control group /sys/fs/cgroup/pids/job_7
// allows 8 processes and threads (pids.max), and has 8".
std::string limits_of_threads();

// Throws Error: "cannot start <what>: <limits>".
[[noreturn]] void throw_not_started(const std::string& what, const std::string& limits = limits_of_threads());

// `purpose` continues the sentence "cannot start a thread that ...". Throws Error if the system refuses the thread.
template <class Work>
std::thread start_thread(const std::string& purpose, Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error&) {
    throw_not_started("a thread that " + purpose);
  }
}

// Starts `count` threads that do nothing, all at the same time, and ends them. Libraries end the whole process when the
// system refuses them a thread, so this is asked before. `what` continues the sentence "cannot start ...". Throws Error
// if the system refuses one of them.
void expect_room_for_threads(int count, const std::string& what);

}  // namespace ringtrain
