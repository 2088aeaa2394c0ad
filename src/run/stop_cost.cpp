#include "run/stop_cost.h"

#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
namespace {

// The default of Slurm's KillWait: the time between SIGTERM (at the time limit, or at a preemption without grace time)
// and SIGKILL.
constexpr int kUsualKillWait = 30;

std::string seconds_text(double seconds) {
  return printed(seconds < 10 ? "%.2g s" : "%.0f s", seconds);
}

}  // namespace

int lead_seconds(const StopCost& cost) {
  const double needed = 2 * (cost.checkpoint.seconds + 2 * cost.step_seconds) + 10;
  return 10 * static_cast<int>(std::ceil(needed / 10));
}

std::string describe(const StopCost& cost, bool is_new, bool in_slurm) {
  const bool knows_steps = cost.step_seconds > 0;
  const int lead = lead_seconds(cost);
  const std::string stop =
      cat("to stop, this run needs the time of two steps", knows_steps ? " of " + seconds_text(cost.step_seconds) : "",
          " and of a checkpoint (", readable_bytes(cost.checkpoint.bytes), " in ",
          seconds_text(cost.checkpoint.seconds), is_new ? ", measured now)" : ", measured in an earlier start)");
  if (!in_slurm) return stop;
  return cat(stop, ". To stop in time, this job needs --signal=USR1@", lead, " or more",
             knows_steps ? "" : "; add four times the seconds of a step, which is not measured yet",
             lead > kUsualKillWait ? cat(". SIGTERM alone usually leaves only ", kUsualKillWait, " s") : "");
}

}  // namespace ringtrain
