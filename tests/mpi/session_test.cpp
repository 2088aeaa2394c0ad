#include "cluster/session.h"

#include <mpi.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/signals.h"
#include "cluster/watchdog.h"
#include "mpi_tests.h"

namespace ringtrain {
namespace {

TEST(Session, ThreadsOfRanksWithTheSameMaskDoNotExceedTheMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int cpus = CPU_COUNT(&mask);
  EXPECT_GE(session().available_threads(), 1);
  EXPECT_LE(session().available_threads(), cpus);
  // Masks of this node; in a single-node test run, all of them.
  std::vector<cpu_set_t> masks(static_cast<std::size_t>(session().size()));
  MPI_Allgather(&mask, sizeof mask, MPI_BYTE, masks.data(), sizeof mask, MPI_BYTE, MPI_COMM_WORLD);
  int same = 0, overlapping = 0;
  for (const cpu_set_t& other : masks) {
    cpu_set_t common;
    CPU_AND(&common, &mask, &other);
    same += CPU_EQUAL(&mask, &other) != 0;
    overlapping += CPU_COUNT(&common) > 0;
  }
  if (session().node_size() == session().size() && same == overlapping) {
    EXPECT_EQ(session().available_threads(), std::max(1, cpus / same));
    EXPECT_EQ(session().oversubscribed(), same > cpus);
  }
}

TEST(Session, NodeRanksAreDistinctAndTheLabelNamesRankAndHost) {
  EXPECT_GE(session().node_rank(), 0);
  EXPECT_LT(session().node_rank(), session().node_size());
  EXPECT_EQ(rank_label(), "rank " + std::to_string(session().rank()) + " on " + session().host());
  EXPECT_FALSE(session().host().empty());
  EXPECT_EQ(Session::mpi_version().find('\n'), std::string::npos);
}

// Sets variables for the length of a test.
class Environment {
 public:
  Environment() {
    for (const char* name : kNames)
      if (const char* value = std::getenv(name)) saved_.emplace_back(name, value), unsetenv(name);
  }
  ~Environment() {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
                                           "SLURM_PROCID"};
  std::vector<std::pair<std::string, std::string>> saved_;
};

TEST(LaunchedTasks, OneWithoutALauncher) {
  const Environment environment;
  EXPECT_EQ(launched_tasks(), 1);
}

TEST(LaunchedTasks, SlurmStepsCountButAnAllocationAloneDoesNot) {
  const Environment environment;
  setenv("SLURM_NTASKS", "4", 1);  // inside salloc or a batch script
  setenv("SLURM_PROCID", "0", 1);
  EXPECT_EQ(launched_tasks(), 1);
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);  // a task of srun
  EXPECT_EQ(launched_tasks(), 4);
}

TEST(LaunchedTasks, MpirunInsideAnAllocationIsBelieved) {
  const Environment environment;
  setenv("SLURM_STEP_NUM_TASKS", "4", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);  // a deliberate mpirun -n 1
  EXPECT_EQ(launched_tasks(), 1);
}

// What becomes of a forked child that runs `action`: its exit code, or 128 + signal.
template <class Action>
int fate_of_child(Action action) {
  const pid_t child = fork();
  if (child == 0) {
    action();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void pass_seconds(double seconds) {
  const double start = now_seconds();
  while (now_seconds() - start < seconds) usleep(10'000);
}

TEST(Signals, TheFirstOneSetsAFlagAndDoesNotKill) {
  for (const int signal_number : {SIGTERM, SIGUSR1, SIGINT}) {
    EXPECT_EQ(fate_of_child([&] {
                install_signal_handlers();
                if (requested_signal() != 0) _exit(1);
                raise(signal_number);
                _exit(requested_signal() == signal_number ? 0 : 2);
              }),
              0);
  }
}

TEST(Signals, RepeatsWithinASecondAndLaterUserSignalsDoNotKill) {
  EXPECT_EQ(fate_of_child([] {
              install_signal_handlers();
              raise(SIGTERM);
              raise(SIGTERM);
              raise(SIGINT);
              pass_seconds(1.1);
              raise(SIGUSR1);
              _exit(requested_signal() == SIGTERM ? 0 : 2);
            }),
            0);
}

TEST(Signals, ASecondStopLaterKills) {
  EXPECT_EQ(fate_of_child([] {
              install_signal_handlers();
              raise(SIGTERM);
              pass_seconds(1.1);
              raise(SIGINT);
            }),
            128 + SIGINT);
}

TEST(Watchdog, StaysQuietWhileStepsFinishAndLeavesTogether) {
  Watchdog watchdog(5.0);
  for (int step = 1; step <= 3; ++step) {
    watchdog.enter(step, Phase::forward);
    watchdog.enter(step, Phase::communication);
    watchdog.step_finished(step);
  }
  watchdog.enter(3, Phase::evaluation);
  watchdog.alive();
}

TEST(Watchdog, BeatsKeepItQuietBeyondTheTimeout) {
  Watchdog watchdog(1.0);
  for (int i = 0; i < 15; ++i) {
    watchdog.enter(i, Phase::evaluation);
    pass_seconds(0.1);
    watchdog.alive();
  }
}

TEST(Watchdog, EveryPhaseHasAName) {
  for (std::uint32_t phase = 0; phase <= static_cast<std::uint32_t>(Phase::finished); ++phase)
    EXPECT_STRNE(phase_name(static_cast<Phase>(phase)), "?");
}

}  // namespace
}  // namespace ringtrain
