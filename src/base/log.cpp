#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace ringtrain {
namespace {

std::mutex mutex;
int log_rank = 0;
std::string log_host;
std::function<void()> before_line;

void write_line(std::FILE* stream, std::string line) {
  line += '\n';
  if (before_line) before_line();
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
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

void write_info_line(const std::string& line) {
  const std::lock_guard lock(mutex);
  if (log_rank == 0) write_line(stdout, line);
}

void write_warning_line(const std::string& line) {
  const std::lock_guard lock(mutex);
  std::string label;
  if (log_rank != 0) label = cat(" (rank ", log_rank, log_host.empty() ? "" : " on ", log_host, ")");
  write_line(stderr, cat("warning", label, ": ", line));
}

}  // namespace ringtrain
