#include "base/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <thread>

namespace ringtrain {
namespace {

bool is_blocked(int signal_number) {
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, signal_number) == 1;
}

// Handlers stay: in a process of its own. Its exit code says what was wrong.
[[noreturn]] void check_who_is_interrupted() {
  install_signal_handlers();
  int code = 0;
  const auto check = [&](int base) {
    for (const int signal_number : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT})
      if (!is_blocked(signal_number)) code = base + signal_number;
  };
  check(100);
  std::thread([&] { check(200); }).join();
  ::kill(::getpid(), SIGUSR1);
  for (int hundredth = 0; hundredth < 1000 && requested_signal() == 0; ++hundredth) ::usleep(10'000);
  ::_exit(requested_signal() == SIGUSR1 ? code : 1);
}

TEST(Signals, ReachTheProcessButNoThreadThatComputes) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(check_who_is_interrupted(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ringtrain
