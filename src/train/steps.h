// A rank's part in the run's steps, whichever way the ranks put their work together.
#pragma once

#include <functional>
#include <memory>

#include "parallel/server_ranks.h"
#include "train/trainer.h"

namespace ringtrain {

class Steps {
 public:
  virtual ~Steps() = default;
  // Returns after the next update or, on a rank that does not see every update, when all ranks meet. Where
  // StepReport::met is true all of them have returned after the same update, with the same weights and requests; the
  // caller then makes what is due, with all ranks.
  virtual StepReport step(const Requests& requests) = 0;
};

// Whether all ranks must meet after an update, a function of the positions before and after it.
using MeetingRule = std::function<bool(const Position& before, const Position& position)>;

// The ranks of a plan that has servers; null where all ranks do the same. Collective over the group.
std::unique_ptr<ServerRanks> make_server_ranks(const RunPlan& plan, const RankGroup& group);

struct StepParts {
  const RunPlan& plan;
  Trainer& trainer;
  Loader& loader;
  Communicator& communicator;
  Watchdog& watchdog;
  ServerRanks* servers;  // null: all ranks do the same
};
// The one chooser. `meets`: is not asked where ranks meet after every step.
std::unique_ptr<Steps> make_steps(const StepParts& parts, MeetingRule meets);

}  // namespace ringtrain
