// What a run on GPUs chose at its start and a resumed run takes again: cuDNN's plans, which were proposed or timed for
// one device type and version, and how NCCL adds. One file of the run's folder (plans are too large for every
// checkpoint); the table of fusions, with the algorithms of recurrent layers, is in the checkpoints.
#pragma once

#include <map>
#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"

namespace ringtrain {

struct RunChoices {
  std::string device, cudnn;                         // which the plans are for; "" where there are none
  std::map<std::string, std::string> communication;  // Communicator::record()
  std::string plans;                                 // Device::packed_plans()

  bool empty() const { return device.empty() && communication.empty(); }
  bool fit(const cuda::DeviceFacts& facts) const { return device == facts.name && cudnn == facts.cudnn_version; }
  // Without plans, for other ranks: one line of JSON.
  std::string head() const;
  static RunChoices of_head(const std::string& line);  // throws Error
};

// Rank 0. Nothing where no such file is; one that is damaged counts as none, with a warning.
RunChoices read_choices(const std::string& run_dir);
// Written through a temporary file, and only where the file would change.
void write_choices(const std::string& run_dir, const RunChoices& choices);

// Collective: what rank 0 has read, without plans on the others.
RunChoices share_choices(RunChoices of_rank_0, Communicator& communicator);

}  // namespace ringtrain
