#include "cluster/launcher_check.h"

#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "cluster/slurm_job.h"

namespace ringtrain {
namespace {

const int rank_of_launcher = launched_rank();  // MPI_Init of a single process overwrites the variables
constexpr unsigned seconds_to_print = 2;       // mpiexec ends all processes when one has ended with an error

[[noreturn]] void refuse(const std::string& what) {
  leave_message_to_first();
  throw Error(what, launcher_advice);
}

#ifdef OPEN_MPI
// Returns whether this Open MPI was built for Slurm's PMI-2 or older. Version 5 knows only PMIx. Version 4 has a
// component for each interface, a file in a folder openmpi* of its library's folder.
bool knows_older_pmi() {
  Dl_info library{};
  if (OMPI_MAJOR_VERSION >= 5 || dladdr(dlsym(RTLD_NEXT, "MPI_Comm_rank"), &library) == 0) return false;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(library.dli_fname, error).parent_path();
  bool has_components = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with("openmpi")) continue;
    for (const auto& file : std::filesystem::recursive_directory_iterator(entry.path(), error)) {
      const std::string name = file.path().filename().string();
      has_components = has_components || name.starts_with("mca_pmix_");
      for (const char* own : {"mca_pmix_s1.so", "mca_pmix_s2.so", "mca_pmix_cray.so"})
        if (name == own) return true;
    }
  }
  return !has_components;  // they may be inside the library
}
#endif

}  // namespace

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // The text is "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release date: ...".
  std::string line(text, std::strcspn(text, ",\n"));
  if (const auto at = line.find("MPI v"); at != std::string::npos) line.erase(at + 4, 1);
  if (const auto at = line.find(" Version:"); at != std::string::npos) line.erase(at, 9);
  std::replace(line.begin(), line.end(), '\t', ' ');
  line.erase(std::unique(line.begin(), line.end(), [](char a, char b) { return a == ' ' && b == ' '; }), line.end());
  return line;
}

void leave_message_to_first() {
  if (rank_of_launcher == 0) return;
  std::fflush(nullptr);
  ::sleep(seconds_to_print);
  _exit(exit_failed);
}

void check_launcher(const std::string& launcher, int tasks) {
#ifdef OPEN_MPI
  const std::string processes = cat(tasks, tasks == 1 ? " process" : " processes");
  // Without any PMI under srun, Open MPI 5 would start each rank alone. Open MPI 4 would end even a single rank.
  if (launcher == "srun" && (tasks > 1 || OMPI_MAJOR_VERSION < 5))
    refuse(cat("srun started ", processes, " without PMIx: MPI cannot ",
               tasks == 1 ? "start in it" : "bring them together"));
  const bool is_older = launcher == "srun --mpi=pmi2" || (launcher == "mpiexec" && !has_pmix());
  if (is_older && !knows_older_pmi())
    refuse(cat(launcher == "mpiexec" ? "the mpiexec of another MPI (MPICH, Intel MPI)" : launcher, " started ",
               processes, ", and this program's ", mpi_version(), " does not understand it"));
#else
  static_cast<void>(launcher), static_cast<void>(tasks);  // other MPI libraries have their own ways to ask Slurm
#endif
}

void check_ranks(int ranks, int tasks) {
  if (ranks >= tasks) return;
  refuse(cat(tasks, " processes were started, but MPI sees ",
             ranks == 1 ? "only this one: each would work alone" : cat("only ", ranks, " of them"),
             " (this program runs with ", mpi_version(), ")"));
}

}  // namespace ringtrain
