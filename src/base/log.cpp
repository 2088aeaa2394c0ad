#include "base/log.h"

#include <cstdio>
#include <iostream>
#include <mutex>
#include <utility>

#include "base/utf8.h"

namespace ringtrain {
namespace {

std::mutex mutex;
int log_rank = 0;
std::string log_host;
std::function<void()> before_line;

void write_text(std::FILE* stream, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

void write_line(std::FILE* stream, const std::string& line) {
  if (before_line) before_line();
  write_text(stream, line + "\n");
}

}  // namespace

void write_out(const std::string& text) {
  write_text(stdout, text);
}

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
  write_line(stderr, printable(cat("warning", label, ": ", line)));
}

// A flush that failed earlier has left its mark in the stream.
void check_standard_output() {
  std::cout.flush();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout)
    throw Error("cannot write to standard output", "the disk that it goes to may be full");
}

}  // namespace ringtrain
