// Starts threads. If the system refuses one, the error says what the thread was for and which limit is in the way.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace ringtrain {

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
