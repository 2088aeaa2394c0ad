#include "base/signals.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/system_limits.h"

namespace ringtrain {
namespace {

constexpr double kRepeatSeconds = 1.0;

constexpr int caught_signals[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};  // SIGHUP is caught, too, unless it is ignored

constexpr std::pair<int, const char*> signal_names[] = {
    {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"},
    {SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}};

std::atomic<int> requested{0};
std::atomic<double> first_time{0};
std::atomic<bool> held{false};

void receive(int signal_number) {
  const double now = now_seconds();
  if (requested.load() == 0) {
    first_time.store(now);  // stored before the flag, so a reader of the flag finds the time
    requested.store(signal_number);
    return;
  }
  if (signal_number != SIGINT && signal_number != SIGUSR2) return;
  if (held.load() || now - first_time.load() < kRepeatSeconds) return;
  signal(signal_number, SIG_DFL);
  sigset_t it;
  sigemptyset(&it);
  sigaddset(&it, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &it, nullptr);
  raise(signal_number);
}

[[noreturn]] void wait_for_signals(sigset_t expected) {
  for (int signal_number = 0;;)
    if (sigwait(&expected, &signal_number) == 0) receive(signal_number);
}

}  // namespace

void catch_signals() {
  // If a reader of the log ends (train | head), the run must not end with it.
  signal(SIGPIPE, SIG_IGN);
  sigset_t expected;
  sigemptyset(&expected);
  for (const int signal_number : caught_signals) sigaddset(&expected, signal_number);
  // A terminal that closes stops the run like Ctrl-C, unless the run was started with nohup.
  struct sigaction before {};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaddset(&expected, SIGHUP);
  if (const int code = pthread_sigmask(SIG_BLOCK, &expected, nullptr); code != 0)
    throw Error(cat("signals cannot be caught: ", std::system_category().message(code)));
  // A signal that the parent process ignored would never arrive. Shells ignore SIGINT for a command that ends with an
  // &.
  for (const int signal_number : caught_signals) signal(signal_number, SIG_DFL);
  start_thread("waits for signals", [expected] { wait_for_signals(expected); }).detach();
}

void report_file_limits() {
  signal(SIGXFSZ, SIG_IGN);
}

void request_stop(int signal_number) {
  if (requested.load() == 0) receive(signal_number);
}

void hold_signals() {
  held.store(true);
}

int requested_signal() {
  return requested.load();
}

double seconds_since_signal() {
  return requested_signal() != 0 ? now_seconds() - first_time.load() : 0;
}

std::string signal_name(int signal_number) {
  for (const auto& [number, name] : signal_names)
    if (number == signal_number) return name;
  return cat("signal ", signal_number);
}

}  // namespace ringtrain
