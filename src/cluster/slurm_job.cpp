#include "cluster/slurm_job.h"

#include <cstdlib>
#include <cstring>

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
  SlurmJob job;
  job.id = environment_text("SLURM_JOB_ID");
  job.array_job = environment_text("SLURM_ARRAY_JOB_ID");
  job.array_task = environment_text("SLURM_ARRAY_TASK_ID");
  job.restarts = environment_number("SLURM_RESTART_COUNT");
  job.nodes = environment_text("SLURM_JOB_NODELIST");
  return job;
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

bool has_pmix() {
  return is_set("PMIX_RANK");
}

}  // namespace ringtrain
