#include "base/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "base/error.h"

namespace ringtrain {
namespace {

constexpr double kRepeatSeconds = 1.0;

// Lock-free, hence safe in a handler.
std::atomic<int> requested{0};
std::atomic<double> first_time{0};
std::atomic<bool> held{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

extern "C" void on_signal(int signal_number) {
  const double now = now_seconds();
  double first = 0;
  first_time.compare_exchange_strong(first, now);  // before the flag: who sees that finds the time, too
  int none = 0;
  if (requested.compare_exchange_strong(none, signal_number)) return;
  if (signal_number != SIGINT && signal_number != SIGUSR2) return;
  if (held.load() || now - first < kRepeatSeconds) return;
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);  // delivered when this handler returns
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a read or write under way must not fail with EINTR
  sigemptyset(&action.sa_mask);
  sigset_t caught;
  sigemptyset(&caught);
  const auto take = [&](int signal_number) {
    if (sigaction(signal_number, &action, nullptr) != 0) throw Error(cat("cannot catch signal ", signal_number));
    sigaddset(&caught, signal_number);
  };
  for (const int signal_number : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) take(signal_number);
  // A terminal that closes stops the run like Ctrl-C, unless it was started with nohup.
  struct sigaction before {};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) take(SIGHUP);
  // A reader of the log that goes away (train | head) must not take the run with it.
  std::signal(SIGPIPE, SIG_IGN);
  // Threads that are made from now on do not get these signals, but one does. A handler on a thread that computes would
  // destroy the heap: matrix products of oneDNN have their stack pointer in it (its issue 4845, mended in March 2026).
  pthread_sigmask(SIG_BLOCK, &caught, nullptr);
  std::thread([caught] {
    pthread_sigmask(SIG_UNBLOCK, &caught, nullptr);
    for (;;) pause();
  }).detach();
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
  switch (signal_number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    default:
      return cat("signal ", signal_number);
  }
}

}  // namespace ringtrain
