// Starts the ranks of trials: with srun inside a Slurm job, elsewhere with mpirun on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "study/slots.h"

namespace ringtrain {

// What one rank's place in a Slurm job has.
struct TaskShare {
  int cpus = 1;
  int gpus = 0;
};

class TrialLauncher {
 public:
  // `given` is the beginning of the command: the launcher's name and its options, such as "srun --mpi=pmix". Empty:
  // srun in a Slurm job, else mpirun. `ranks` is the number of slots; 0: all. With `uses_gpus`, trials may run on GPUs.
  // Throws Error if the name is not that of srun, mpirun or mpiexec.
  TrialLauncher(const std::string& given, std::int64_t ranks, bool uses_gpus);

  Slots& slots() { return slots_; }
  int threads() const;  // the CPUs of one rank
  std::string name() const { return given_.front(); }

  // Starts `words`, the arguments of this program, on the ranks of these slots. The output is appended to `output`.
  std::unique_ptr<ChildProcess> start(const std::vector<std::size_t>& places, const std::vector<std::string>& words,
                                      const std::string& output) const;

 private:
  std::vector<std::string> with_srun(const std::vector<std::size_t>& places) const;

  std::vector<std::string> given_;
  bool is_srun_;
  std::vector<std::string> gpus_;  // of this machine
  TaskShare share_;                // in a Slurm job
  Slots slots_;
};

}  // namespace ringtrain
