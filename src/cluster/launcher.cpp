#include "cluster/launcher.h"

#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/child_process.h"
#include "base/error.h"

namespace ringtrain {
namespace {

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;
}

}  // namespace

std::string SlurmJob::name() const {
  return array_job.empty() ? id : cat(array_job, "_", array_task);
}

SlurmJob slurm_job() {
  return {.id = environment_text("SLURM_JOB_ID"),
          .array_job = environment_text("SLURM_ARRAY_JOB_ID"),
          .array_task = environment_text("SLURM_ARRAY_TASK_ID"),
          .restarts = environment_number("SLURM_RESTART_COUNT"),
          .nodes = environment_text("SLURM_JOB_NODELIST")};
}

std::string describe(const SlurmJob& job, const std::string& launcher) {
  return cat("Slurm job ", job.name(), job.restarts > 0 ? cat(", restart ", job.restarts) : "",
             job.nodes.empty() ? "" : ", on " + job.nodes, launcher == "none" ? "" : ", started by " + launcher);
}

std::string launcher_name() {
  // mpirun starts its daemons with srun, and the ranks inherit srun's variables. Therefore srun is tested last.
  if (is_set("OMPI_COMM_WORLD_SIZE")) return "mpirun";
  if (is_set("HYDI_CONTROL_FD") || is_set("MPI_LOCALNRANKS")) return "mpiexec";  // Hydra: MPICH, Intel MPI
  if (!is_set("SLURM_STEP_NUM_TASKS")) return is_set("PMI_RANK") || is_set("PMIX_RANK") ? "mpiexec" : "none";
  if (is_set("PMIX_RANK")) return "srun --mpi=pmix";
  return is_set("PMI_RANK") || is_set("PMI_FD") ? "srun --mpi=pmi2" : "srun";
}

int launched_tasks() {
  // A launcher of MPI sets the number itself. Slurm's variables in its ranks may be those of its daemon, or of an
  // salloc around a deliberate `mpirun -n 1`. A batch script also has SLURM_NTASKS, but not SLURM_STEP_NUM_TASKS.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (is_set(name)) return environment_number(name);
  return 1;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (is_set(name)) return environment_number(name);
  return 0;
}

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

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  // The text is "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release date: ...".
  return {text, std::strcspn(text, ",\n")};
}

std::string mpi_version() {
  std::string line = mpi_library();
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
  const bool is_older = launcher == "srun --mpi=pmi2" || (launcher == "mpiexec" && !is_set("PMIX_RANK"));
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

void check_same_words(const std::vector<std::string>& of_ranks) {
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank)
    if (of_ranks[rank] != of_ranks[0])
      throw Error(cat("the ranks of this job have different arguments: rank ", rank, " has '", of_ranks[rank],
                      "', rank 0 '", of_ranks[0], "'"),
                  "start all ranks with the same command line");
}

}  // namespace ringtrain
