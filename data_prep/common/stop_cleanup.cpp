#include "data_prep/common/stop_cleanup.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/signals.h"

namespace ringtrain {
namespace {

// The handler of a signal may take no lock. The files are therefore a list that only grows.
struct File {
  std::string path;
  std::atomic<bool> is_temporary = true;
  File* next = nullptr;
};

std::atomic<File*> files = nullptr;
std::atomic<bool> is_stopping = false, prints = true;

void write_words(const char* words) {
  if (::write(STDERR_FILENO, words, std::strlen(words)) < 0) return;
}

void stop(int signal_number) {
  if (is_stopping.exchange(true)) return;
  for (const File* file = files; file != nullptr; file = file->next)  // the newest first: files before their folders
    if (file->is_temporary && ::unlink(file->path.c_str()) != 0) ::rmdir(file->path.c_str());
  if (prints) {
    write_words("\nringtrain-data: stopped by ");
    write_words(signal_name(signal_number).c_str());  // so short that it takes no memory
    write_words("; unfinished files were removed\n");
  }
  ::_exit(128 + signal_number);
}

}  // namespace

void clean_up_when_stopped() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    if (sigaction(signal_number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action.sa_handler = stop;
    sigaction(signal_number, &action, nullptr);
  }
}

void remove_if_stopped(const std::string& path) {
  auto* const file = new File{.path = path};
  file->next = files;
  while (!files.compare_exchange_weak(file->next, file)) {
  }
  while (is_stopping) ::pause();
}

void keep_if_stopped(const std::string& path) {
  for (File* file = files; file != nullptr; file = file->next)
    if (file->path == path) file->is_temporary = false;
}

void leave_stop_message_to_first() {
  prints = false;
}

}  // namespace ringtrain
