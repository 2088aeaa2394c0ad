// Runs one GoogleTest program on all ranks. Rank 0 prints as usual. The other ranks print only their failures, with
// their rank. The exit code is non-zero on every rank when a test failed on any rank. If an
// ASSERT_ ends a collective test early on one rank only, the other ranks wait for this rank, and the watchdog ends the
// wait. EXPECT_ avoids this.
#include <mpi.h>

#include <cstdio>
#include <string>

#include "base/signals.h"
#include "cluster/watchdog.h"
#include "mpi_tests.h"

namespace {

const ringtrain::Session* the_session = nullptr;

constexpr double kSecondsPerTest = 540;  // on a busy machine, a test of 4 s took 2 minutes

class TestClock : public testing::EmptyTestEventListener {
 public:
  explicit TestClock(ringtrain::Watchdog& watchdog) : watchdog_(watchdog) {}

 private:
  void OnTestEnd(const testing::TestInfo&) override { watchdog_.step_finished(++tests_); }
  ringtrain::Watchdog& watchdog_;
  std::int64_t tests_ = 0;
};

class FailuresOnly : public testing::EmptyTestEventListener {
  // The name is kept here, because asking GoogleTest for it during a report would lock its mutex twice.
  void OnTestStart(const testing::TestInfo& info) override {
    name_ = std::string(info.test_suite_name()) + "." + info.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "[rank %d] %s failed: %s:%d\n%s\n", the_session->rank(), name_.c_str(),
                 result.file_name() != nullptr ? result.file_name() : "?", result.line_number(), result.summary());
  }
  std::string name_;
};

}  // namespace

const ringtrain::Session& session() {
  return *the_session;
}

int main(int argc, char** argv) {
  ringtrain::report_file_limits();  // as in the program's main()
  testing::InitGoogleTest(&argc, argv);
  const ringtrain::Session session_of_main(&argc, &argv);
  the_session = &session_of_main;
  ringtrain::Watchdog watchdog(session().job(), kSecondsPerTest);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new TestClock(watchdog));
  if (session().rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
    testing::GTEST_FLAG(output) = "";  // only one rank writes the report file
  }
  const int own_result = RUN_ALL_TESTS();
  int failed_here = own_result != 0, failed_ranks = 0;
  MPI_Allreduce(&failed_here, &failed_ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (session().rank() == 0 && failed_ranks > 0) std::fprintf(stderr, "failed on %d ranks\n", failed_ranks);
  return failed_ranks > 0 ? 1 : 0;
}
