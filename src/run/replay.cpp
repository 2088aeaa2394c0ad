#include "run/replay.h"

#include <utility>

#include "base/error.h"
#include "parallel/arrivals_file.h"
#include "run/adascale_plan.h"
#include "run/points.h"

namespace ringtrain {
namespace {

// A run may also stop when it reaches a target or after some time. Its record is then shorter than the plan.
bool ends_at_a_known_step(const RunPlan& plan) {
  const StopConfig& stop = plan.experiment.stop;
  return plan.updates > 0 && stop.seconds == 0 && stop.target_metric.empty();
}

class Replay {
 public:
  Replay(const RunPlan& plan, const Position& begin)
      : plan_(plan),
        name_(cat("parallel.replay: ", plan.experiment.parallel.replay)),
        workers_(plan.servers->workers),
        arrivals_(read_arrivals(plan.experiment.parallel.replay, begin.step, name_)),
        position_(plan.course.settled(begin)),
        order_(make_replayed_order(name_, workers_, begin.step, arrivals_,
                                   [this](std::int64_t) { return meets_after_next_update(); })) {}

  // Every worker delivers its gradient at once.
  void go_through() {
    for (bool meets = true; !has_all_steps(plan_, position_, 0);) {
      if (std::exchange(meets, false))
        for (int worker = 0; worker < workers_; ++worker) order_->asks(worker);
      if (next_ == arrivals_.size() && !meets_ && !ends_at_a_known_step(plan_)) return;
      const std::optional<ServerAction> action = order_->next();
      if (!action) fail("its updates contradict each other", "an order in which no worker waits for ever");
      if (action->kind == ServerAction::Kind::grant) order_->delivers(static_cast<int>(action->worker));
      meets = action->kind == ServerAction::Kind::meet;
      if (meets) meets_ = false;
    }
  }

 private:
  bool meets_after_next_update() {
    const Position before = std::exchange(position_, plan_.course.after(position_));
    check(arrivals_[next_++]);
    return meets_ = all_meet_after(plan_, before, position_);
  }

  void check(const Arrival& a) const {
    const std::int64_t most = plan_.experiment.parallel.max_staleness, others = workers_ - 1;
    if (most >= 0 && a.staleness() > others * (2 * most + 1))
      fail(cat("step ", a.step, " has a staleness of ", a.staleness()),
           cat("at most ", others * (2 * most + 1), " for parallel.max_staleness: ", most, " and ", workers_,
               " workers"));
    if (a.samples > 0 && a.samples != position_.samples)
      fail(cat("the recorded run had applied ", a.samples, " samples after step ", a.step),
           cat(position_.samples, " for batch.global: ", plan_.experiment.batch.global, " and ", workers_, " workers"));
  }

  [[noreturn]] void fail(const std::string& what, const std::string& expected) const {
    throw Error(cat(name_, ": ", what, ", expected ", expected), replay_hint);
  }

  const RunPlan& plan_;
  const std::string name_;
  const int workers_;
  const std::vector<Arrival> arrivals_;
  Position position_;
  std::size_t next_ = 0;  // the arrival that is applied next
  bool meets_ = false;    // the ranks meet before the next update
  const std::unique_ptr<UpdateOrder> order_;
};

}  // namespace

void check_replay(const RunPlan& plan, const Position& begin) {
  if (plan.servers && !plan.experiment.parallel.replay.empty()) Replay(plan, begin).go_through();
}

}  // namespace ringtrain
