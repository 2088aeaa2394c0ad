// Chooses the device of this rank and the library that sums its gradients. No other file chooses between CPU and GPU or
// between MPI and NCCL: what always computes on the CPU, such as `ringtrain sample`, makes that backend itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/fusion.h"
#include "cluster/binding.h"
#include "cluster/communicator.h"
#include "cluster/rank_group.h"
#include "config/experiment.h"
#include "parallel/pipeline.h"

namespace ringtrain {

namespace cuda {
struct SavedPlans;
}

// The choices that a run on GPUs makes at its start. A resumed run takes the same choices, so that it has the same
// bits. They are cuDNN's plans, for one device type and cuDNN version, and NCCL's algorithms for sums. They are stored
// in one file of the run's folder, because plans are too large for every checkpoint. The table of fusions, with the
// algorithms of recurrent layers, is stored in the checkpoints.
struct RunChoices {
  std::string device, cudnn;                         // the plans were made for these; "" without plans
  std::map<std::string, std::string> communication;  // see Communicator::record()
  std::string plans;                                 // see Device::packed_plans()

  bool fit(const cuda::DeviceFacts& facts) const { return device == facts.name && cudnn == facts.cudnn_version; }
  // Returns the choices without the plans, as one line of JSON for the other ranks.
  std::string head() const;
  static RunChoices of_head(const std::string& line);  // throws Error
};

// Only rank 0 calls this. Returns empty choices if there is no such file. A damaged file gives a warning and also empty
// choices.
RunChoices read_choices(const std::string& run_dir);
// Writes the file through a temporary file, and only if its content would change.
void write_choices(const std::string& run_dir, const RunChoices& choices);

struct Machine {
  std::unique_ptr<cuda::Device> device;  // null: the CPU computes
  std::unique_ptr<cuda::FusionTable> fusions;
  std::unique_ptr<Communicator> host;  // MPI
  std::unique_ptr<Communicator> sums;  // sums a device's vectors; null: the CPU computes, or `stages` sums
  std::unique_ptr<StageRanks> stages;  // the stages of a pipeline; null: every rank computes the whole model
  std::unique_ptr<Backend> backend;
  std::string gpu;  // the start of the GPU's UUID; on a CPU the value of CUDA_VISIBLE_DEVICES, if it matters there

  Communicator& communicator() const { return sums ? *sums : *host; }
  // Returns the communicator that sums gradients. In a pipeline it connects the replicas of this rank's stage.
  Communicator& summing() const { return stages ? stages->over_replicas() : communicator(); }

  // On GPUs, collective: rank 0 runs `compile`, which fills the table of fusions and makes cuDNN's plans, and stores
  // the measured choices in plan_cache. Then the other ranks get the table and the plans, and run `compile` with them.
  // On CPUs, every rank just runs `compile`.
  void agree_on_fusions(const std::function<void()>& compile);
  std::string plans;       // rank 0: cuDNN's plans, as the other ranks got them
  std::string plan_cache;  // the folder of plans and measured fusions; "": none
  // The choices that a resumed run needs to continue bit for bit. The checkpoints contain the table of fusions ("" on a
  // CPU). The run's folder contains choices().
  std::string fusion_choices() const { return fusions ? fusions->text() : ""; }
  RunChoices choices() const;
  // Collective. Loads the table of fusions on all ranks, and gives the plans to rank 0's device. Does nothing on a CPU.
  // Call it before agree_on_fusions(). The plans are used if they are for this device type and cuDNN
  // version. Otherwise a line in the log says that new plans are made.
  void take_choices(const std::string& fusions_of_rank_0, const RunChoices& kept);
  // Returns everything, apart from ranks and threads, on which the bits of the result depend: the GPU and its
  // libraries, or the instructions of the CPU.
  std::string identity() const;
};

// Collective over the group. Throws Error with a hint if the experiment needs a GPU and there is none, or if there are
// more ranks than GPUs.
Machine make_machine(const Experiment& experiment, const RankGroup& group, int threads);
// make_host_communicator() and complete_machine() are the two parts of make_machine(), for a run that is resumed: its
// choices, `kept`, are read between them. The group's ranks divide the GPUs of their node among themselves.
std::unique_ptr<Communicator> make_host_communicator(const Experiment& experiment, const RankGroup& group);
void complete_machine(Machine& machine, const Experiment& experiment, const RankGroup& group, int threads,
                      const RunChoices& kept = {});
// Collective. Returns the stages of the experiment's pipeline. Returns null if it has none, or if its stages do not
// divide the group (make_run_plan() then throws Error). `device` is this rank's device; null: the CPU computes.
std::unique_ptr<StageRanks> make_stage_ranks(const Experiment& experiment, const RankGroup& group,
                                             cuda::Device* device = nullptr, const RunChoices& kept = {});

// Returns how MPI sums gradients. order: fixed is halving, which adds in a binary tree over the ranks.
SumChoice sum_choice(const CommunicationConfig& communication);

// Collective over the ranks of `host`. Returns the communicator that sums vectors of this device, with the library that
// the experiment chooses.
std::unique_ptr<DeviceCommunicator> make_sums(const Experiment& experiment, cuda::Device& device, Communicator& host,
                                              const RunChoices& kept = {});
// Returns functions by which a backend takes memory of `sums` for the vectors that are summed. `sums` must outlive the
// backend.
ReducedMemory reduced_memory(Communicator& sums);
// Returns the CPU backend of a rank that trains with `host`, or in a pipeline with `stages` (null: no pipeline). Its
// gradients are in memory of the communicator that sums them.
std::unique_ptr<Backend> make_host_backend(const Experiment& experiment, int threads, Communicator& host,
                                           StageRanks* stages);
// Returns the machine for `ringtrain plan`. It has a backend that compiles programs and counts memory, but no
// communicators, because one process plans for all ranks. `device` is the name or description of a GPU, "" for this
// CPU. `plan_cache` is machine.plan_cache; the measured fusions in it are used, as a run on such a GPU would use them.
// With `saved`, which must outlive the machine, the GPU's plans are saved in its folder.
Machine make_planning_machine(int threads, const std::string& device, const std::string& plan_cache = "",
                              cuda::SavedPlans* saved = nullptr);

}  // namespace ringtrain
