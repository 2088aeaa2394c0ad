#include "cluster/session.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.h"
#include "base/machine_share.h"
#include "base/system_limits.h"
#include "cluster/binding.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"
#include "cluster/waiting.h"
#include "cluster/watchdog.h"

namespace ringtrain {
namespace {

constexpr int kThreadsOfMpi = 4;         // Open MPI 4 starts 3, and one thread watches its start
constexpr std::int64_t kOpenFiles = 64;  // MPI, the loaders, a checkpoint, and memory that ranks share
// The smallest run of two ranks needs this beside the program itself. MPI waits without end if it gets no memory.
constexpr std::int64_t kAddressSpace = std::int64_t{448} << 20;
constexpr std::chrono::seconds kFinalizeTime{20};
constexpr std::chrono::seconds kAbortTime{3};

// rank_label() may be called from any thread. The text is written once, before the flag is set.
char label_text[300] = "";
std::atomic<bool> label_is_set{false};
std::atomic<int> ranks_of_job{0};
std::atomic<bool> is_rank_0{false};

// Without a launcher, Open MPI 4 would start a daemon (orted) for this one process. That takes 0.2 s, and fails if the
// daemon is missing.
void prepare_start_without_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_STEP_ID"})
    if (std::getenv(name) != nullptr) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
}

// The launcher tells its processes about each other through PMIx, whose tables lie in memory that the processes of a
// node share, under one lock. A rank that died in MPI_Init while it held the lock stopped mpirun for ever. With `hash`,
// each process has tables of its own.
void use_own_pmix_tables() {
  setenv("PMIX_MCA_gds", "hash", 0);
}

// A study with more ranks than cores sets this variable for its trials, which do not see each other.
bool shares_cores_with_other_jobs() {
  const char* yields = std::getenv("OMPI_MCA_mpi_yield_when_idle");
  return yields != nullptr && std::strcmp(yields, "1") == 0;
}

// When a process ends with an exit code other than 0, Open MPI 4's mpirun prints up to 12 lines of its own, which bury
// the program's last message. It prints none for MPI_Abort in a process with mpirun's switch --quiet. The switch hides
// other messages too, such as those of MPI_Init, so it is set only just before MPI_Abort. Returns whether this MPI has
// the switch.
bool make_abort_quiet() {
  auto* const quiet = static_cast<bool*>(dlsym(RTLD_DEFAULT, "orte_execute_quiet"));
  if (quiet != nullptr) *quiet = true;
  return quiet != nullptr;
}

bool is_started_by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

// Ends a job of Open MPI 4's mpirun with the exit code, after all work has been done. Returns if the job cannot be
// ended in this way, for example because another launcher has started it. Collective.
void end_quietly(int exit_code) {
  if (!is_started_by_mpirun() || !make_abort_quiet()) return;
  std::signal(SIGTERM, SIG_DFL);  // mpirun ends the other processes with this signal
  MPI_Barrier(MPI_COMM_WORLD);    // all ranks have printed their messages
  if (is_rank_0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  _exit(exit_code);
}

// Ends the process with the exit code after `time`, if it is still there. A warning then says which call has not
// returned; null: there is no warning.
void leave_after(std::chrono::seconds time, int exit_code, const char* call) {
  try {
    std::thread([time, exit_code, call] {
      std::this_thread::sleep_for(time);
      if (call != nullptr) {
        std::fprintf(stderr, "ringtrain: warning (%s): %s did not return within %d s; leaving without it\n", label_text,
                     call, static_cast<int>(time.count()));
        std::fflush(stderr);
      }
      _exit(exit_code);
    }).detach();
  } catch (...) {  // no thread could be started: the alarm ends a process that hangs
    std::signal(SIGALRM, SIG_DFL);
    alarm(static_cast<unsigned>(time.count()));
  }
}

// Through a PMI (process management interface), the launcher tells each process its rank and its peers. If srun offers
// a PMI for which Open MPI was not built, Open MPI ends the process inside MPI_Init. Its message tells how to configure
// Open MPI, but not what the user can do.
std::atomic<bool> initializing{false};

void advise_at_exit() {
  if (initializing.load())
    std::fprintf(stderr, "ringtrain: MPI could not start. If it printed a reason, see there. Otherwise %s\n",
                 launcher_advice);
}

}  // namespace

Session::Session(int* argc, char*** argv) {
  launcher_ = launcher_name();
  const int tasks = launched_tasks();
  check_launcher(launcher_, tasks);
  prepare_start_without_launcher();
  use_own_pmix_tables();
  expect_open_files(kOpenFiles, "a rank");
  expect_address_space(kAddressSpace, "MPI and the libraries of a run");
  expect_room_for_threads(kThreadsOfMpi, "the threads of MPI");
  const StartGuard guard("MPI could not start");
  std::atexit(advise_at_exit);
  initializing.store(true);
  // Only the main thread communicates, except for the watchdog's MPI_Abort, on which abort_job() does not rely.
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  initializing.store(false);
  explain_crashes_under_limit();
  if (provided < MPI_THREAD_FUNNELED)
    throw Error("this MPI library does not allow threads", "use a build of MPI with at least MPI_THREAD_FUNNELED");
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  check_ranks(ranks, tasks);

  job_ = RankGroup::of_job();
  std::snprintf(label_text, sizeof label_text, "rank %d on %s", rank(), host().c_str());
  label_is_set.store(true, std::memory_order_release);
  ranks_of_job.store(ranks, std::memory_order_relaxed);
  is_rank_0 = rank() == 0;

  const auto me = static_cast<std::size_t>(node_rank());
  std::vector<std::vector<int>> cpus;
  for (const std::string& text : job_->gather_on_node(cpu_list(own_cpus()))) cpus.push_back(parse_cpu_list(text));
  std::vector<std::vector<CpuQuota>> quotas;
  for (const std::string& text : job_->gather_on_node(to_text(cpu_quotas()))) quotas.push_back(parse_quotas(text));
  const double of_mask = share_of_cpus(cpus, me) + 1e-6, of_quota = quota_share(quotas, me);
  available_threads_ = whole_cpus(std::max(1, static_cast<int>(of_mask)), of_quota);
  oversubscribed_ = std::min(of_mask, of_quota + 1e-6) < 1 || shares_cores_with_other_jobs();
  if (of_quota < of_mask) cpu_quota_ = of_quota;
  node_is_oversubscribed.store(oversubscribed_, std::memory_order_relaxed);
}

Session::~Session() {
  if (finished_ || std::uncaught_exceptions() > 0)
    return;  // after an error, the other ranks may never reach MPI_Finalize
  job_.reset();
  MPI_Finalize();
}

// If MPI_Finalize hangs, the process exits anyway. Its work is done, and waiting would use up the job's allocation.
int Session::finish(int exit_code) {
  finished_ = true;
  std::fflush(nullptr);
  leave_after(kFinalizeTime, exit_code, "MPI_Finalize");
  if (exit_code != 0) end_quietly(exit_code);
  job_.reset();
  MPI_Finalize();
  return exit_code;
}

void abort_job(int exit_code) {
  // MPI_Abort may block: in a broken library, in exit handlers, or on a lock that another thread holds.
  leave_after(kAbortTime, exit_code, nullptr);
  std::fflush(nullptr);
  int up = 0, down = 0;
  MPI_Initialized(&up);
  MPI_Finalized(&down);
  // Without a launcher there is no other process to end, and MPI_Abort would only print its own lines.
  if (up && !down && (ranks_of_job > 1 || is_started_by_mpirun())) {
    make_abort_quiet();
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  _exit(exit_code);
}

const char* rank_label() {
  return label_is_set.load(std::memory_order_acquire) ? label_text : "";
}

}  // namespace ringtrain
