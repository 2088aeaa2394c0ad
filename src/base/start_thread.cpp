#include "base/start_thread.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "base/control_groups.h"
#include "base/error.h"
#include "base/system_limits.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

std::int64_t entries_in(const fs::path& folder) {
  std::error_code error;
  return std::distance(fs::directory_iterator(folder, error), fs::directory_iterator());
}

// Counts the threads of all processes of this process's user.
std::int64_t threads_of_user() {
  std::int64_t count = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    struct stat status {};
    if (!std::isdigit(static_cast<unsigned char>(entry.path().filename().string()[0]))) continue;
    if (::stat(entry.path().c_str(), &status) == 0 && status.st_uid == ::geteuid())
      count += entries_in(entry.path() / "task");
  }
  return count;
}

struct Limit {
  std::string sentence;
  bool is_reached = false;
};

std::vector<Limit> limits() {
  constexpr std::int64_t default_stack_bytes = 2 << 20;  // of a thread under `ulimit -s unlimited`
  std::vector<Limit> found;
  for (const ControlGroup& group : control_groups("pids")) {
    const auto most = number_in(group.folder / "pids.max"), now = number_in(group.folder / "pids.current");
    if (most && now)
      found.push_back({cat("the control group ", group.folder.string(), " allows ", *most,
                           " processes and threads (pids.max), and has ", *now),
                       *now >= *most});
  }
  if (const auto most = soft_limit(RLIMIT_NPROC); most && ::geteuid() != 0) {  // root has no such limit
    const std::int64_t now = threads_of_user();
    found.push_back(
        {cat("the limit of this user's processes and threads (ulimit -u) is ", *most, ", and there are ", now),
         now >= *most});
  }
  const std::int64_t stack = soft_limit(RLIMIT_STACK).value_or(default_stack_bytes);
  const char* own_stack = std::getenv("OMP_STACKSIZE");
  if (const auto most = soft_limit(RLIMIT_AS)) {
    const std::int64_t now = bytes_of_process();
    found.push_back({cat("the limit of address space (ulimit -v) is ", *most >> 10, " KiB, the process has ", now >> 10,
                         " KiB, and a thread takes ", stack >> 10, " KiB for its stack (ulimit -s)"),
                     now + stack > *most});
  }
  if (own_stack != nullptr) found.push_back({cat("OMP_STACKSIZE is ", own_stack), false});
  return found;
}

}  // namespace

std::string limits_of_threads() {
  const std::vector<Limit> all = limits();
  const bool is_known = std::ranges::any_of(all, &Limit::is_reached);
  std::string text;
  for (const Limit& limit : all)
    if (limit.is_reached || !is_known) text += cat(text.empty() ? "" : "; ", limit.sentence);
  if (is_known) return text;
  const auto most = number_in("/proc/sys/kernel/threads-max"), ids = number_in("/proc/sys/kernel/pid_max");
  return cat(text, text.empty() ? "" : "; ", "the machine allows ", most.value_or(0),
             " threads (kernel.threads-max) and ", ids.value_or(0), " process ids (kernel.pid_max)");
}

void throw_not_started(const std::string& what, const std::string& limits) {
  throw Error(cat("cannot start ", what, ": ", limits),
              "raise that limit, or use fewer threads (run.threads, data.loader_threads, --threads) or fewer ranks");
}

void expect_room_for_threads(int count, const std::string& what) {
  const std::int64_t before = entries_in("/proc/self/task");
  std::mutex mutex;
  std::condition_variable over;
  bool is_over = false;
  std::vector<std::thread> threads;
  std::string refused;
  try {
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        over.wait(lock, [&] { return is_over; });
      });
  } catch (const std::system_error&) {
    refused = limits_of_threads();  // as long as the other threads are there
  }
  {
    const std::lock_guard lock(mutex);
    is_over = true;
  }
  over.notify_all();
  for (std::thread& thread : threads) thread.join();
  // The system counts an ended thread for a moment longer.
  for (int i = 0; i < 1000 && entries_in("/proc/self/task") > before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!refused.empty()) throw_not_started(what, refused);
}

}  // namespace ringtrain
