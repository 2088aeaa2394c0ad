// Limits that the system sets to this process: open files, address space, the size of files. If a call fails because of
// one of them, the user learns which one, its value, and what to do. Limits of threads are in start_thread.h.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

namespace ringtrain {

// Returns the limit that holds now (ulimit -S). Returns nothing if there is none.
std::optional<std::int64_t> soft_limit(__rlimit_resource_t resource);

// Returns the bytes of address space that this process has.
std::int64_t bytes_of_process();

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

}  // namespace ringtrain
