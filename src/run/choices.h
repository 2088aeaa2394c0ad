// The choices that a run on GPUs makes at its start. A resumed run takes the same choices, so that it has the same
// bits. They are cuDNN's plans, for one device type and cuDNN version, and NCCL's algorithms for sums. They are stored
// in one file of the run's folder, because plans are too large for every checkpoint. The table of fusions, with the
// algorithms of recurrent layers, is stored in the checkpoints.
#pragma once

#include <map>
#include <string>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"

namespace ringtrain {

struct RunChoices {
  std::string device, cudnn;                         // the plans were made for these; "" without plans
  std::map<std::string, std::string> communication;  // see Communicator::record()
  std::string plans;                                 // see Device::packed_plans()

  bool empty() const { return device.empty() && communication.empty(); }
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

// Collective. Gives all ranks the choices that rank 0 has read. Only rank 0 keeps the plans.
RunChoices share_choices(RunChoices of_rank_0, Communicator& communicator);

}  // namespace ringtrain
