// Finds, before MPI starts, a launcher that this program's MPI does not understand. Open MPI would then print a banner
// in every process, or make each process a job of one rank. Both programs use these functions.
#pragma once

#include <string>

namespace ringtrain {

// Throws Error, with advice, if the launcher has started processes that this MPI cannot bring together: srun without a
// PMI (process management interface), srun with a PMI for which this MPI was not built, or the mpiexec of another MPI.
// Only the process of the launcher's rank 0 throws. The others wait until it has printed, and end without a word.
void check_launcher(const std::string& launcher, int tasks);

// Does the same after MPI has started, if MPI sees fewer ranks than there are processes.
void check_ranks(int ranks, int tasks);

inline constexpr const char* launcher_advice =
    "the launcher and the MPI library do not fit together. Under Slurm: srun --mpi=pmix (srun --mpi=list shows what "
    "there is), or mpirun inside the allocation; load the module of the MPI that this program was built with, and use "
    "the mpirun of the same module";

std::string mpi_version();  // such as "Open MPI 4.1.4"

// Ends this process without a word if another one of the job prints the same message.
void leave_message_to_first();

}  // namespace ringtrain
