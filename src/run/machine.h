// Chooses the device of this rank and the library that sums its gradients. Only this file chooses between CPU and GPU
// and between MPI and NCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/fusion.h"
#include "cluster/communicator.h"
#include "cluster/device_choice.h"
#include "cluster/rank_group.h"
#include "config/experiment.h"
#include "parallel/stage_ranks.h"
#include "run/choices.h"

namespace ringtrain {

struct Machine {
  std::unique_ptr<cuda::Device> device;  // null: the CPU computes
  std::unique_ptr<cuda::FusionTable> fusions;
  std::unique_ptr<Communicator> host;  // MPI
  std::unique_ptr<Communicator> sums;  // of a device's vectors; null: the CPU computes, or `stages` does it
  std::unique_ptr<StageRanks> stages;  // of a pipeline; null: every rank computes the whole model
  std::unique_ptr<Backend> backend;
  std::string gpu;  // the one that computes; on a CPU what CUDA_VISIBLE_DEVICES says, where that matters

  Communicator& communicator() const { return sums ? *sums : *host; }
  // The communicator that sums gradients. In a pipeline it connects the replicas of this rank's stage.
  Communicator& summing() const { return stages ? stages->over_replicas() : communicator(); }

  // Rank 0 runs `compile`, which fills its table of fusions and makes cuDNN's plans; then every rank has those, and
  // what was timed is kept in plan_cache. Collective.
  void agree_on_fusions(const std::function<void()>& compile);
  std::string plans;       // rank 0: cuDNN's, as the others were given them
  std::string plan_cache;  // folder of plans and timed fusions; "": none
  // What a resumed run finds again to continue bit for bit: the table of fusions, "" on a CPU, for its checkpoints, and
  // what lies beside them.
  std::string fusion_choices() const { return fusions ? fusions->text() : ""; }
  RunChoices choices() const;
  // Collective, before agree_on_fusions(). Plans are taken where they are for this device type and cuDNN; else a line
  // says so.
  void take_choices(const std::string& fusions_of_rank_0, const RunChoices& kept);
  // Everything besides ranks and threads that the bits of the result depend on. "" on a CPU.
  std::string identity() const;
};

// Collective over the group. Throws Error with advice where a GPU is asked for and is not there, or there are more
// ranks than GPUs.
Machine make_machine(const Experiment& experiment, const RankGroup& group, int threads);
// The same in two parts, for a group that may fail alone: whatever goes wrong in the second, the communicator of the
// first is still there to tell the other ranks. `kept`: of the run that is resumed. `node`: what all ranks of the job
// on this node see, where the group is a part of them; null: the group's ranks share out the devices.
std::unique_ptr<Communicator> make_host_communicator(const Experiment& experiment, const RankGroup& group);
// The same for a run that trains: with parallel.replicas it goes on where a server dies. Throws Error, with advice,
// where MPI has no fault tolerance.
std::unique_ptr<Communicator> make_training_communicator(const Experiment& experiment, const RankGroup& group);
void complete_machine(Machine& machine, const Experiment& experiment, const RankGroup& group, int threads,
                      const RunChoices& kept = {}, const NodeDevices* node = nullptr);
// Of the experiment's pipeline; null: it has none. `device`: this rank's; null: the CPU computes. Collective.
std::unique_ptr<StageRanks> make_stage_ranks(const Experiment& experiment, const RankGroup& group,
                                             cuda::Device* device = nullptr, const RunChoices& kept = {});
// What sums vectors of this device over the ranks of `host`, as the experiment chooses. Collective over those.
std::unique_ptr<DeviceCommunicator> make_sums(const Experiment& experiment, cuda::Device& device, Communicator& host,
                                              const RunChoices& kept = {});
// For `plan`: a backend that compiles and counts memory, and no communicators: one process plans for all ranks.
// `device`: a GPU's name or description, "" for this CPU. `plan_cache`: as machine.plan_cache: what a search on such a
// GPU has timed is chosen as a run there would choose it.
Machine make_planning_machine(int threads, const std::string& device, const std::string& plan_cache = "");

}  // namespace ringtrain
