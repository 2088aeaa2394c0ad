#include "cluster/session.h"

#include <mpi.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/machine_share.h"
#include "base/signals.h"
#include "checkpoint/writer.h"
#include "cluster/binding.h"
#include "cluster/launcher.h"
#include "cluster/watchdog.h"
#include "mpi_tests.h"
#include "tests/unit/with_environment.h"

namespace ringtrain {
namespace {

TEST(Session, ThreadsOfRanksWithTheSameMaskDoNotExceedTheMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int cpus = CPU_COUNT(&mask);
  EXPECT_GE(session().available_threads(), 1);
  EXPECT_LE(session().available_threads(), cpus);
  // Collects the masks of all ranks. In a test run on one node, these are the masks of this node.
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

TEST(Session, TextsOfAnyLengthComeFromAllRanksOfTheNodeInTheirOrder) {
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank * 1000), 'a') + std::to_string(rank);
  };
  const std::vector<std::string> texts = session().job().gather_on_node(text(session().rank()));
  ASSERT_EQ(static_cast<int>(texts.size()), session().node_size());
  EXPECT_EQ(texts[static_cast<std::size_t>(session().node_rank())], text(session().rank()));
  if (session().node_size() < session().size()) return;
  for (int r = 0; r < session().size(); ++r) EXPECT_EQ(texts[static_cast<std::size_t>(r)], text(r));
}

TEST(Bindings, OfAllRanksReachRankZeroInOrderWithTheirHosts) {
  const std::vector<RankBinding> ranks = gather_bindings(session().job(), "GPU-" + std::to_string(session().rank()));
  if (session().rank() != 0) {
    EXPECT_TRUE(ranks.empty());
    return;
  }
  ASSERT_EQ(static_cast<int>(ranks.size()), session().size());
  EXPECT_EQ(ranks[0].cpus, own_cpus());
  EXPECT_EQ(ranks[0].cores, cores_of(own_cpus()));
  for (int r = 0; r < session().size(); ++r) {
    const RankBinding& rank = ranks[static_cast<std::size_t>(r)];
    EXPECT_EQ(rank.rank, r);
    EXPECT_EQ(rank.gpus, "GPU-" + std::to_string(r));
    EXPECT_EQ(rank.host, session().hosts()[static_cast<std::size_t>(r)]);
    EXPECT_FALSE(rank.cpus.empty());
  }
}

// Gives each rank its own visible devices. Returns the error of the check of all ranks, or an empty string.
std::string visible_devices_error(const std::string& mine) {
  const WithEnvironment environment(Variables{{"CUDA_VISIBLE_DEVICES", mine}});
  try {
    check_visible_devices(session().job());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(VisibleDevices, EachRankItsOwnOrAllOfThemIsRight) {
  std::string all = "0";
  for (int r = 1; r < session().node_size(); ++r) all += "," + std::to_string(r);
  EXPECT_EQ(visible_devices_error(all), "");
  EXPECT_EQ(visible_devices_error(std::to_string(session().node_rank())), "");
  EXPECT_EQ(visible_devices_error(""), "");
}

TEST(VisibleDevices, RanksOnOneDeviceAreNamedWithTheirHost) {
  const std::string error = visible_devices_error("0");
  if (session().node_size() == 1) {
    EXPECT_EQ(error, "");
    return;
  }
  for (const std::string& word : {session().host(), std::string("CUDA_VISIBLE_DEVICES=0"), std::string("GPU 0 (rank ")})
    EXPECT_NE(error.find(word), std::string::npos) << error;
}

TEST(Session, NodeRanksAreDistinctAndTheLabelNamesRankAndHost) {
  EXPECT_GE(session().node_rank(), 0);
  EXPECT_LT(session().node_rank(), session().node_size());
  EXPECT_EQ(rank_label(), "rank " + std::to_string(session().rank()) + " on " + session().host());
  EXPECT_FALSE(session().host().empty());
  EXPECT_EQ(mpi_version().find('\n'), std::string::npos);
}

TEST(LaunchedTasks, OneWithoutALauncher) {
  const WithEnvironment environment(Variables{});
  EXPECT_EQ(launched_tasks(), 1);
}

TEST(LaunchedTasks, SlurmStepsCountButAnAllocationAloneDoesNot) {
  // These variables are those inside salloc or in a batch script.
  const WithEnvironment environment(Variables{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(launched_tasks(), 1);
  const WithEnvironment step(Variables{{"SLURM_STEP_NUM_TASKS", "4"}});  // this process is a task of srun
  EXPECT_EQ(launched_tasks(), 4);
}

TEST(LaunchedTasks, MpirunInsideAnAllocationIsBelieved) {
  // The user has called mpirun -n 1 on purpose.
  const WithEnvironment environment(Variables{{"SLURM_STEP_NUM_TASKS", "4"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_EQ(launched_tasks(), 1);
}

// Returns the exit code of a forked child that runs `action`, or 128 + the number of the signal that ended it.
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

// Sends the signal to this process, as launchers do. Another thread takes it, and not at once.
void send(int signal_number) {
  kill(getpid(), signal_number);
  for (int i = 0; i < 500 && requested_signal() == 0; ++i) pass_seconds(0.01);
  pass_seconds(0.05);
}

TEST(Signals, TheFirstOneSetsAFlagAndDoesNotKill) {
  for (const int signal_number : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) {
    EXPECT_EQ(fate_of_child([&] {
                catch_signals();
                if (requested_signal() != 0) _exit(1);
                send(signal_number);
                _exit(requested_signal() == signal_number ? 0 : 2);
              }),
              0);
  }
}

TEST(Signals, InterruptNoThreadThatComputes) {
  const auto blocks_all = [] {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    bool all = true;
    for (const int signal_number : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP})
      all = all && sigismember(&blocked, signal_number) == 1;
    return all;
  };
  EXPECT_EQ(fate_of_child([&] {
              signal(SIGHUP, SIG_DFL);  // nohup may have left it ignored
              catch_signals();
              bool also_there = false;
              std::thread([&] { also_there = blocks_all(); }).join();
              _exit(blocks_all() && also_there ? 0 : 2);
            }),
            0);
}

TEST(Signals, RepeatsWithinASecondDoNotKill) {
  EXPECT_EQ(fate_of_child([] {
              catch_signals();
              send(SIGINT);
              send(SIGINT);
              send(SIGUSR2);
              _exit(requested_signal() == SIGINT ? 0 : 2);
            }),
            0);
}

TEST(Signals, WhatSlurmRepeatsNeverKills) {
  for (const int signal_number : {SIGTERM, SIGUSR1}) {
    EXPECT_EQ(fate_of_child([&] {
                catch_signals();
                send(SIGUSR1);
                pass_seconds(1.1);
                send(signal_number);
                _exit(requested_signal() == SIGUSR1 && seconds_since_signal() >= 1.1 ? 0 : 2);
              }),
              0);
  }
}

TEST(Signals, ASecondCtrlCLaterKillsUnlessACheckpointIsBeingWritten) {
  for (const int signal_number : {SIGINT, SIGUSR2})
    for (const bool writing : {false, true}) {
      EXPECT_EQ(fate_of_child([&] {
                  catch_signals();
                  send(SIGTERM);
                  if (writing) hold_signals();
                  pass_seconds(1.1);
                  send(signal_number);
                  pass_seconds(writing ? 0 : 10);
                }),
                writing ? 0 : 128 + signal_number);
    }
}

TEST(Signals, HaveNames) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_name(SIGUSR1), "SIGUSR1");
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(30), "signal 30");
}

TEST(Watchdog, StepsAndBeatsKeepItQuietBeyondTheTimeout) {
  Watchdog watchdog(session().job(), 3.0);  // a busy machine may stop a rank for a second
  for (int step = 1; step <= 32; ++step) {
    watchdog.enter(step, Phase::forward);
    watchdog.enter(step, Phase::communication);
    pass_seconds(0.1);
    watchdog.step_finished(step);
  }
  for (int i = 0; i < 32; ++i) {
    watchdog.enter(32, Phase::evaluation);
    pass_seconds(0.1);
    watchdog.alive();
  }
}

TEST(Watchdog, RanksLeaveItTogether) {
  if (session().size() == 1) GTEST_SKIP() << "one rank waits for no other";
  std::optional<Watchdog> watchdog(std::in_place, session().job(), 30.0);
  const bool is_late = session().rank() == session().size() - 1;
  const double begin = now_seconds();
  if (is_late) pass_seconds(0.5);
  watchdog.reset();
  EXPECT_GE(now_seconds() - begin, 0.4);
}

// Rank 0 works longer than the time-out, and reports progress all the time.
TEST(Watchdog, StaysQuietOnAllRanksWhileRankZerosSlowWorkGetsFurther) {
  Watchdog watchdog(session().job(), 3.0);  // a busy machine may stop a rank for a second
  const auto ring = make_mpi_communicator(session().job(), 1 << 16);
  SlowWork work;
  const bool works = session().rank() == 0;
  if (works)
    work.start([](const Progress& progress) {
      for (int i = 0; i < 35; ++i) {
        pass_seconds(0.1);
        progress(1000);
      }
    });
  wait_together(works ? &work : nullptr, *ring, watchdog, 3);
  work.finish();
  EXPECT_EQ(work.bytes(), works ? 35000 : 0);
}

TEST(SlowWork, ThrowsWhatItsThreadHasThrownOnce) {
  SlowWork work;
  work.finish();
  EXPECT_TRUE(work.ended_within(0));
  work.start([](const Progress&) { throw Error("the disk is full"); });
  while (!work.ended_within(1)) continue;
  EXPECT_TRUE(work.failed());
  EXPECT_THROW(work.finish(), Error);
  EXPECT_FALSE(work.failed());
  work.finish();
}

TEST(Watchdog, EveryPhaseHasAName) {
  for (std::uint32_t phase = 0; phase <= static_cast<std::uint32_t>(Phase::finished); ++phase)
    EXPECT_STRNE(phase_name(static_cast<Phase>(phase)), "?");
}

}  // namespace
}  // namespace ringtrain
