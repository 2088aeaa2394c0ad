#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/log_file.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

std::mutex mutex;
int log_rank = 0;
std::string log_host;
std::function<void()> before_line;
std::atomic<int> log_file{-1};  // a file descriptor; -1: no log file

// The text is written with one write, so that lines of several processes do not mix in a file.
void write_text(std::FILE* stream, const std::string& text) {
  if (const int file = log_file.load(); file >= 0) {
    [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
    return;
  }
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

void write_line(std::FILE* stream, const std::string& line) {
  if (before_line) before_line();
  write_text(stream, line + "\n");
}

}  // namespace

void set_log_rank(int rank, const std::string& host) {
  const std::lock_guard lock(mutex);
  log_rank = rank;
  log_host = host;
}

void set_before_line(std::function<void()> hook) {
  const std::lock_guard lock(mutex);
  before_line = std::move(hook);
}

void set_log_file(const std::string& path) {
  int file = -1;
  if (!path.empty()) {
    file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) throw Error(cat(path, ": cannot write: ", std::strerror(errno)));
  }
  const std::lock_guard lock(mutex);
  if (const int before = log_file.exchange(file); before >= 0) ::close(before);
}

bool has_log_file() {
  return log_file.load() >= 0;
}

void write_log_text(const std::string& text) {
  write_text(stdout, text);
}

void write_info_line(const std::string& line) {
  const std::lock_guard lock(mutex);
  if (log_rank == 0) write_line(stdout, line);
}

void write_warning_line(const std::string& line) {
  const std::lock_guard lock(mutex);
  std::string label;
  if (log_rank != 0) label = cat(" (rank ", log_rank, log_host.empty() ? "" : " on ", log_host, ")");
  write_line(stderr, printable(cat("warning", label, ": ", line)));
}

}  // namespace ringtrain
