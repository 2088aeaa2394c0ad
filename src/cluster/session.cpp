#include "cluster/session.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.h"
#include "cluster/mpi_check.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr std::size_t kMaxCpus = 8192;
constexpr std::size_t kMaskBytes = kMaxCpus / 8;

// For rank_label() from any thread: written once, before the flag.
char label_text[300] = "";
std::atomic<bool> label_is_set{false};
std::atomic<int> ranks_of_job{0};

int environment_count(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

// Without a launcher Open MPI 4 would start a daemon (orted) for this one process: 0.2 s, and fatal where it is
// missing.
void prepare_start_without_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "SLURM_STEP_ID"})
    if (std::getenv(name) != nullptr) return;
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
}

std::vector<std::uint8_t> affinity_mask() {
  std::vector<std::uint8_t> mask(kMaskBytes, 0);
  if (sched_getaffinity(0, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) mask[0] = 1;
  return mask;
}

// A CPU in the masks of k ranks counts as 1/k for each of them.
double share_of_cpus(const std::vector<std::uint8_t>& masks, std::size_t ranks, std::size_t me) {
  double share = 0;
  for (std::size_t cpu = 0; cpu < kMaxCpus; ++cpu) {
    const auto has = [&](std::size_t r) { return (masks[r * kMaskBytes + cpu / 8] >> (cpu % 8)) & 1; };
    if (!has(me)) continue;
    int users = 0;
    for (std::size_t r = 0; r < ranks; ++r) users += has(r);
    share += 1.0 / users;
  }
  return share;
}

}  // namespace

int launched_tasks() {
  // A launcher of MPI says its number itself; Slurm's variables in its ranks may be those of its daemon, or of an
  // salloc around a deliberate `mpirun -n 1`. In a batch script SLURM_NTASKS is set too, but not SLURM_STEP_NUM_TASKS.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (std::getenv(name) != nullptr) return environment_count(name);
  return 1;
}

Session::Session(int* argc, char*** argv) {
  prepare_start_without_launcher();
  // The main thread alone communicates. The watchdog's MPI_Abort is the exception, and abort_job does not rely on it.
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED)
    throw Error("this MPI library does not allow threads", "use a build of MPI with at least MPI_THREAD_FUNNELED");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  char name[MPI_MAX_PROCESSOR_NAME + 1] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  host_.assign(name, static_cast<std::size_t>(length));

  const int tasks = launched_tasks();
  if (size_ == 1 && tasks > 1)
    throw Error(cat(tasks, " processes were started, but MPI sees only this one: each would train alone"),
                cat("the launcher and the MPI library (", mpi_version(),
                    ") do not fit together. Under Slurm: srun "
                    "--mpi=pmix (srun --mpi=list shows what there is), or mpirun inside the allocation; load the "
                    "module of the MPI that this program was built with, and use the mpirun of the same module"));

  std::snprintf(label_text, sizeof label_text, "rank %d on %s", rank_, host_.c_str());
  label_is_set.store(true, std::memory_order_release);
  ranks_of_job.store(size_, std::memory_order_relaxed);

  std::vector<char> names(static_cast<std::size_t>(size_) * sizeof name);
  check_mpi(MPI_Allgather(name, sizeof name, MPI_CHAR, names.data(), sizeof name, MPI_CHAR, MPI_COMM_WORLD),
            "MPI_Allgather");
  for (std::size_t r = 0; r < static_cast<std::size_t>(size_); ++r) hosts_.emplace_back(&names[r * sizeof name]);

  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  MPI_Comm_rank(node, &node_rank_);
  MPI_Comm_size(node, &node_size_);
  const std::vector<std::uint8_t> mask = affinity_mask();
  const auto node_ranks = static_cast<std::size_t>(node_size_);
  std::vector<std::uint8_t> masks(node_ranks * kMaskBytes);
  check_mpi(MPI_Allgather(mask.data(), kMaskBytes, MPI_BYTE, masks.data(), kMaskBytes, MPI_BYTE, node),
            "MPI_Allgather");
  MPI_Comm_free(&node);
  const double share = share_of_cpus(masks, node_ranks, static_cast<std::size_t>(node_rank_)) + 1e-6;
  available_threads_ = std::max(1, static_cast<int>(share));
  oversubscribed_ = share < 1;
  node_is_oversubscribed.store(oversubscribed_, std::memory_order_relaxed);
}

Session::~Session() {
  if (std::uncaught_exceptions() > 0) return;  // the other ranks may never reach MPI_Finalize
  MPI_Finalize();
}

std::string Session::mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release date: ..."
  std::string line(text, std::strcspn(text, ",\n"));
  if (const auto at = line.find("MPI v"); at != std::string::npos) line.erase(at + 4, 1);
  if (const auto at = line.find(" Version:"); at != std::string::npos) line.erase(at, 9);
  std::replace(line.begin(), line.end(), '\t', ' ');
  line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
  return line;
}

int job_size() {
  return ranks_of_job.load(std::memory_order_relaxed);
}

void abort_job(int exit_code) {
  // MPI_Abort may block: in a broken library, in exit handlers, or on a lock that another thread holds.
  try {
    std::thread([exit_code] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      _exit(exit_code);
    }).detach();
  } catch (...) {  // no more threads to be had: the alarm's default action ends the process
    std::signal(SIGALRM, SIG_DFL);
    alarm(3);
  }
  std::fflush(nullptr);
  int up = 0, down = 0;
  MPI_Initialized(&up);
  MPI_Finalized(&down);
  if (up && !down) MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

std::string rank_label() {
  return label_is_set.load(std::memory_order_acquire) ? label_text : "";
}

}  // namespace ringtrain
