#include "data_prep/common/ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/machine_share.h"
#include "base/signals.h"
#include "base/system_limits.h"
#include "cluster/launcher.h"
#include "cluster/mpi_calls.h"

namespace ringtrain {
namespace {

constexpr unsigned seconds_for_first = 2;
constexpr int threads_of_mpi = 3;                            // of Open MPI 4
constexpr std::size_t message_bytes = std::size_t{1} << 30;  // the most per message, because MPI's counts are ints

std::atomic<bool> prints_stop = true;  // the line that says that a signal has stopped the job

bool mpi_is_running() {
  int running = 0, ended = 0;
  MPI_Initialized(&running);
  if (running != 0) MPI_Finalized(&ended);
  return running != 0 && ended == 0;
}

bool started_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"})
    if (std::getenv(name) != nullptr) return true;
  return launched_tasks() > 1;
}

// Returns the threads for this rank, if all ranks of its node share the CPUs of its affinity mask's quota.
int threads_beside_others() {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  int rank = 0, size = 1;
  MPI_Comm_rank(node, &rank);
  MPI_Comm_size(node, &size);
  constexpr std::size_t text_bytes = 512;
  std::string mine = to_text(cpu_quotas());
  mine.resize(text_bytes, ' ');
  std::string all(text_bytes * static_cast<std::size_t>(size), ' ');
  check_mpi(MPI_Allgather(mine.data(), text_bytes, MPI_CHAR, all.data(), text_bytes, MPI_CHAR, node), "MPI_Allgather");
  MPI_Comm_free(&node);
  std::vector<std::vector<CpuQuota>> quotas;
  for (std::size_t at = 0; at < all.size(); at += text_bytes)
    quotas.push_back(parse_quotas(all.substr(at, text_bytes)));
  return whole_cpus(usable_cpus(), quota_share(quotas, static_cast<std::size_t>(rank)));
}

template <class Transfer>
void in_pieces(std::string& bytes, const Transfer& transfer) {
  for (std::size_t at = 0; at < bytes.size(); at += message_bytes) {
    transfer(bytes.data() + at, static_cast<int>(std::min(message_bytes, bytes.size() - at)));
  }
}

}  // namespace

Ranks::Ranks() {
  if (!started_by_launcher()) return;
  check_launcher(launcher_name(), launched_tasks());
  expect_room_for_threads(threads_of_mpi, "the threads of MPI");
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  mpi_ = true;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  prints_stop = rank_ == 0;
  check_ranks(size_, launched_tasks());
  threads_ = threads_beside_others();
}

Ranks::~Ranks() {
  if (mpi_ && std::uncaught_exceptions() == 0) MPI_Finalize();
}

void Ranks::leave_report_to_first() {
  int rank = 0;
  if (mpi_is_running()) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank > 0) ::sleep(seconds_for_first);
}

void Ranks::abort_job() {
  if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, 1);
}

void Ranks::barrier() const {
  if (size_ > 1) check_mpi(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

void Ranks::broadcast(std::string& bytes) const {
  if (size_ == 1) return;
  std::uint64_t length = bytes.size();
  check_mpi(MPI_Bcast(&length, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast");
  bytes.resize(length);
  in_pieces(bytes,
            [](char* data, int count) { check_mpi(MPI_Bcast(data, count, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast"); });
}

std::vector<std::string> Ranks::gather(const std::string& bytes) const {
  std::vector<std::string> all;
  if (rank_ > 0) {
    std::string mine = bytes;
    std::uint64_t length = mine.size();
    check_mpi(MPI_Send(&length, 1, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD), "MPI_Send");
    in_pieces(mine, [](char* data, int count) {
      check_mpi(MPI_Send(data, count, MPI_BYTE, 0, 1, MPI_COMM_WORLD), "MPI_Send");
    });
    return all;
  }
  all.push_back(bytes);
  for (int rank = 1; rank < size_; ++rank) {
    std::uint64_t length = 0;
    check_mpi(MPI_Recv(&length, 1, MPI_UINT64_T, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    std::string& part = all.emplace_back(length, '\0');
    in_pieces(part, [&](char* data, int count) {
      check_mpi(MPI_Recv(data, count, MPI_BYTE, rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    });
  }
  return all;
}

void Ranks::sum(std::span<std::uint64_t> values) const {
  if (size_ == 1) return;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_UINT64_T, MPI_SUM,
                          MPI_COMM_WORLD),
            "MPI_Allreduce");
}

namespace {

// The handler of a signal may take no lock. The files are therefore a list that only grows.
struct File {
  std::string path;
  std::atomic<bool> is_temporary = true;
  File* next = nullptr;
};

std::atomic<File*> files = nullptr;
std::atomic<bool> is_stopping = false;

void write_words(const char* words) {
  if (::write(STDERR_FILENO, words, std::strlen(words)) < 0) return;
}

void stop(int signal_number) {
  if (is_stopping.exchange(true)) return;
  for (const File* file = files; file != nullptr; file = file->next)  // the newest first: files before their folders
    if (file->is_temporary && ::unlink(file->path.c_str()) != 0) ::rmdir(file->path.c_str());
  if (prints_stop) {
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

}  // namespace ringtrain
