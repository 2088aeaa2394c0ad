#include "base/system_limits.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/machine_share.h"

namespace ringtrain {
namespace {

constexpr rlim_t usual_open_files = 4096;
constexpr std::int64_t stack_bytes_needed = std::int64_t{1} << 20;  // threads get stacks of the same size

// Returns the limit that holds now (ulimit -S). Returns nothing if there is none.
std::optional<std::int64_t> soft_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

// Returns the bytes of address space that this process has. This also runs when the system refuses memory, so it
// allocates none.
std::int64_t bytes_of_process() {
  char text[64] = "";
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  return length > 0 ? std::atoll(text) * ::sysconf(_SC_PAGESIZE) : 0;
}

bool says(std::string_view message, int reason) {
  return message.find(std::strerror(reason)) != std::string_view::npos;
}

std::string open_files_sentence() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return cat("this process may have ", limit.rlim_cur, " files open (ulimit -n)");
}

std::string raise_open_files(std::int64_t count) {
  return cat("raise the limit before the program starts, for example with ulimit -n ",
             std::max(usual_open_files, static_cast<rlim_t>(count)),
             " in the shell or the batch script, on every node; if that is refused, ask the administrator");
}

std::string memory_sentence() {
  std::string text;
  if (const auto most = soft_limit(RLIMIT_AS))
    text = cat("the limit of this process's address space (ulimit -v) is ", *most >> 10, " KiB, and it has ",
               bytes_of_process() >> 10, " KiB");
  if (const auto most = soft_limit(RLIMIT_DATA))
    text += cat(text.empty() ? "" : "; ", "the limit of this process's data (ulimit -d) is ", *most >> 10, " KiB");
  return text;
}

// Everything that the handler of a crash needs, because a handler may not allocate memory.
char crash_text[400];

void explain_crash(int signal_number) {
  if (::write(STDERR_FILENO, crash_text, std::strlen(crash_text)) < 0) _exit(128 + signal_number);
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

}  // namespace

std::string advice_on_limits(std::string_view message) {
  if (says(message, ENFILE))  // its text begins with that of EMFILE
    return cat("all processes of this machine together may have ", number_in("/proc/sys/fs/file-max").value_or(0),
               " files open (fs.file-max): end other work there, or ask the administrator");
  if (says(message, EMFILE)) return cat(open_files_sentence(), ": ", raise_open_files(0));
  if (says(message, ENOMEM)) {
    const std::string limit = memory_sentence();
    return limit.empty() ? "the machine has too little memory for this: end other work there, or use fewer ranks on it"
                         : limit + ": raise that limit";
  }
  if (says(message, EFBIG)) {
    const auto most = soft_limit(RLIMIT_FSIZE);
    return most ? cat("the limit of a file's size (ulimit -f) is ", *most >> 10, " KiB: raise it (ulimit -f unlimited)")
                : "the file system does not take files of this size: write to another disk";
  }
  return "";
}

std::string hint_of(const std::exception& error) {
  std::string advice = advice_on_limits(error.what());
  if (!advice.empty()) return advice;
  if (const auto* own = dynamic_cast<const Error*>(&error); own != nullptr && !own->hint().empty()) return own->hint();
  return advice_for_writing(std::string_view(error.what()), "");
}

bool may_open_files(std::int64_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const auto wanted = static_cast<rlim_t>(count);
  if (limit.rlim_cur >= wanted) return true;  // this is also true without a limit
  limit.rlim_cur = std::min(std::max(wanted, usual_open_files), limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted;
}

void expect_open_files(std::int64_t count, const std::string& who) {
  if (may_open_files(count)) return;
  throw Error(cat(who, " needs ", count, " open files, but ", open_files_sentence()), raise_open_files(count));
}

void expect_stack(const std::string& who) {
  const auto most = soft_limit(RLIMIT_STACK);
  if (!most || *most >= stack_bytes_needed) return;
  throw Error(cat(who, " needs a stack of ", stack_bytes_needed >> 10, " KiB, but this process may have ", *most >> 10,
                  " KiB (ulimit -s)"),
              "raise that limit, for example with ulimit -s 8192");
}

void expect_address_space(std::int64_t bytes, const std::string& what) {
  const auto most = soft_limit(RLIMIT_AS);
  if (!most) return;
  const auto size = static_cast<std::size_t>(bytes);
  void* const room = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    throw Error(
        cat("there is no room for ", what, ", which may need ", bytes >> 10, " KiB of addresses: ", memory_sentence()),
        "raise that limit, for example with ulimit -v unlimited");
  ::munmap(room, size);
}

void explain_crashes_under_limit() {
  const auto most = soft_limit(RLIMIT_AS);
  if (!most) return;
  std::snprintf(crash_text, sizeof crash_text,
                "ringtrain: error: a library has crashed, probably because it got no more memory: the limit of this "
                "process's address space (ulimit -v) is %lld KiB\n"
                "  raise that limit, for example with ulimit -v unlimited\n",
                static_cast<long long>(*most >> 10));
  struct sigaction action {};
  action.sa_handler = explain_crash;
  ::sigaction(SIGSEGV, &action, nullptr);
  ::sigaction(SIGBUS, &action, nullptr);
}

int no_memory_message(char* text, std::size_t size, const char* program, const char* who, const char* advice) {
  char limit[200] = "";
  const auto most = soft_limit(RLIMIT_AS), data = soft_limit(RLIMIT_DATA);
  if (most || data)
    std::snprintf(limit, sizeof limit, "; the limit of this process's %s is %lld KiB, and it has %lld KiB of addresses",
                  most ? "address space (ulimit -v)" : "data (ulimit -d)",
                  static_cast<long long>(most.value_or(data.value_or(0)) >> 10),
                  static_cast<long long>(bytes_of_process() >> 10));
  const int length =
      std::snprintf(text, size, "%s: error%s%s%s: %s%s\n  %s%s\n", program, *who != '\0' ? " (" : "", who,
                    *who != '\0' ? ")" : "", out_of_memory, limit, *limit != '\0' ? "raise that limit; " : "", advice);
  return std::min(length, static_cast<int>(size) - 1);
}

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
