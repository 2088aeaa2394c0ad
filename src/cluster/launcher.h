// Reads from the environment what Slurm and the launcher say about the job, for messages and the run's record only. MPI
// gives the ranks and their nodes instead, because under mpirun Slurm's variables describe mpirun's daemons.
#pragma once

#include <string>
#include <vector>

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

// Finds, before MPI starts, a launcher that this program's MPI does not understand. Open MPI would then print a banner
// in every process, or make each process a job of one rank. Both programs use these functions.

// Throws Error, with advice, if the launcher has started processes that this MPI cannot bring together: srun without a
// PMI (process management interface), srun with a PMI for which this MPI was not built, or the mpiexec of another MPI.
// Only the process of the launcher's rank 0 throws. The others wait until it has printed, and end without a word.
void check_launcher(const std::string& launcher, int tasks);

// Does the same after MPI has started, if MPI sees fewer ranks than there are processes.
void check_ranks(int ranks, int tasks);

// Throws Error if the ranks of a job were started with different arguments. `of_ranks` has those of each rank.
void check_same_words(const std::vector<std::string>& of_ranks);

inline constexpr const char* launcher_advice =
    "the launcher and the MPI library do not fit together. Under Slurm: srun --mpi=pmix (srun --mpi=list shows what "
    "there is), or mpirun inside the allocation; load the module of the MPI that this program was built with, and use "
    "the mpirun of the same module";

// Returns the beginning of MPI's description of itself: "Open MPI v4.1.4", "MPICH Version:\t4.0.2". MPI need not have
// started.
std::string mpi_library();
std::string mpi_version();  // the same as a text for messages: "Open MPI 4.1.4", "MPICH 4.0.2"

// Ends this process without a word if another one of the job prints the same message.
void leave_message_to_first();

}  // namespace ringtrain
