// Reads from the environment what Slurm and the launcher say about the job, for messages and the run's record only. MPI
// gives the ranks and their nodes instead, because under mpirun Slurm's variables describe mpirun's daemons.
#pragma once

#include <string>

namespace ringtrain {

struct SlurmJob {
  std::string id;                     // SLURM_JOB_ID; empty: no Slurm
  std::string array_job, array_task;  // empty outside an array
  int restarts = 0;                   // how often the job was requeued
  std::string nodes;                  // such as "node[1-2]"
  bool in_slurm() const { return !id.empty(); }
  // Returns the name that scontrol and scancel take: "4711", or "4709_3" for a task of an array. SLURM_JOB_ID would not
  // do for the last task of an array, because it is also the id of the whole array.
  std::string name() const;
};
SlurmJob slurm_job();

// Returns "Slurm job 4709_3, restart 2, on node[1-2], started by srun --mpi=pmix".
std::string describe(const SlurmJob& job, const std::string& launcher);

// Returns "mpirun", "mpiexec", "srun --mpi=pmix", "srun --mpi=pmi2", "srun", or "none". Call it before MPI_Init, which
// sets variables of its own.
std::string launcher_name();

// Returns the number of processes that the launcher (mpirun, or srun for a job step) started; 1 without a launcher.
int launched_tasks();
// Returns the rank from the launcher's variables, for the time before MPI has started; 0 without a launcher.
int launched_rank();
bool has_pmix();  // whether a launcher speaks PMIx with this process

}  // namespace ringtrain
