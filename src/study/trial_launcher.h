// Starts the ranks of trials: with srun inside a Slurm job, elsewhere with mpirun on this machine. Slots are the places
// at which they run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/child_process.h"

namespace ringtrain {

// The place of one rank.
struct Slot {
  std::string node;       // name of a node of the Slurm job; "": this machine
  std::vector<int> cpus;  // on this machine: the CPUs of the rank
  int gpu = -1;           // on this machine: the place of the rank's GPU in the list of visible GPUs; -1: none
};

// Slots that lie on one node are next to each other.
class Slots {
 public:
  explicit Slots(std::vector<Slot> slots);

  int count() const { return static_cast<int>(slots_.size()); }
  const Slot& operator[](std::size_t place) const { return slots_[place]; }

  // Takes slots for a trial of `ranks` ranks and returns their places in ascending order. A trial that fits into a node
  // gets slots of one node, and of several such nodes the fullest. A larger trial gets the nodes with the most free
  // slots. Returns nothing if there is no room now.
  std::optional<std::vector<std::size_t>> take(std::int64_t ranks);
  void give_back(const std::vector<std::size_t>& places);

 private:
  std::vector<Slot> slots_;
  std::vector<char> taken_;
};

// Returns `count` slots of this machine, or with count = 0 one for each GPU, or without GPUs one for each core. The
// slots have equal numbers of whole cores, as the ranks of tests/mpirun.sh have. If there are more slots than cores, a
// slot has one core that it shares. A control group's quota of CPU time counts as fewer cores. `gpus` is the number of
// GPUs that trials may use; with more slots than GPUs, slots share them.
std::vector<Slot> slots_of_machine(std::int64_t count, int gpus);

// Returns the slots of a Slurm job: one for each task. `hosts` are its nodes, `tasks` is the text of
// SLURM_TASKS_PER_NODE, such as "4(x2),3". With `count` above 0, only the first slots are used. Throws Error if the job
// has fewer.
std::vector<Slot> slots_of_job(const std::vector<std::string>& hosts, const std::string& tasks, std::int64_t count);

// Expands Slurm's text for a number on each node: "4(x2),3" gives 4 4 3. Throws Error for another text.
std::vector<int> numbers_of_nodes(const std::string& text);

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
