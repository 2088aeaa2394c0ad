// The part of a rank in the steps of a run. The interface is the same for equal ranks, for parameter servers and for
// workers.
#pragma once

#include <functional>
#include <memory>

#include "parallel/parameter_server.h"
#include "train/trainer.h"

namespace ringtrain {

class Steps {
 public:
  virtual ~Steps() = default;
  // Returns after the next update. A rank that does not see every update returns when all ranks meet. If
  // StepReport::met is true, all ranks have returned after the same update, with the same weights and requests. The
  // caller then does with all ranks what is due, for example a checkpoint.
  virtual StepReport step(const Requests& requests) = 0;
};

// Returns whether all ranks must meet after an update. The answer depends only on the positions before and after it.
using MeetingRule = std::function<bool(const Position& before, const Position& position)>;

// Makes the server ranks of a plan that has servers. Returns null if all ranks do the same work. Collective over the
// group.
std::unique_ptr<ServerRanks> make_server_ranks(const RunPlan& plan, const RankGroup& group);

struct StepParts {
  const RunPlan& plan;
  Backend& backend;
  Trainer& trainer;
  Loader& loader;
  Communicator& communicator;
  Watchdog& watchdog;
  ServerRanks* servers;  // null: all ranks do the same work
};
// Chooses the kind of steps for this rank. `meets` is not called if ranks meet after every step.
std::unique_ptr<Steps> make_steps(const StepParts& parts, MeetingRule meets);

}  // namespace ringtrain
