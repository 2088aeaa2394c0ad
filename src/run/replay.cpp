#include "run/replay.h"

#include <utility>

#include "base/error.h"
#include "parallel/update_order.h"
#include "run/course.h"

namespace ringtrain {
namespace {

// A run may also stop when it reaches a target or after some time. Its record is then shorter than the plan.
bool ends_at_a_known_step(const RunPlan& plan) {
  const StopConfig& stop = plan.experiment.stop;
  return plan.updates > 0 && stop.seconds == 0 && stop.target_metric.empty();
}

class Replay {
 public:
  Replay(const RunPlan& plan, const Position& begin, std::int64_t pause_samples)
      : plan_(plan),
        pause_samples_(pause_samples),
        name_(replay_name(plan.experiment.parallel.replay)),
        workers_(plan.servers->workers),
        arrivals_(read_arrivals(plan.experiment.parallel.replay, begin.step, name_)),
        position_(plan.course.settled(begin)),
        order_(make_replayed_order(name_, workers_, begin.step, arrivals_,
                                   [this](std::int64_t) { return meets_after_next_update(); })) {}

  // Every worker delivers its gradient at once.
  std::optional<std::int64_t> go_through() {
    const bool may_end_here = !ends_at_a_known_step(plan_);
    if (may_end_here && arrivals_.empty() && position_.step > 0 && !is_over()) return position_.step;
    for (bool meets = true; !is_over();) {
      if (std::exchange(meets, false))
        for (int worker = 0; worker < workers_; ++worker) order_->asks(worker);
      const bool at_last = next_ + 1 == arrivals_.size();
      if (may_end_here && at_last) order_->meet_soon();
      const std::optional<ServerAction> action = order_->next();
      if (!action) fail("its updates contradict each other", "an order in which no worker waits for ever");
      if (action->kind == ServerAction::Kind::grant) order_->delivers(static_cast<int>(action->worker));
      meets = action->kind == ServerAction::Kind::meet;
      if (may_end_here && action->kind == ServerAction::Kind::apply && next_ == arrivals_.size() && !is_over()) {
        if (!action->meets)
          fail(cat("other updates were being computed after its last step ", position_.step),
               "a run that was not killed");
        return position_.step;
      }
    }
    return std::nullopt;
  }

 private:
  bool pauses() const { return pause_samples_ > 0 && position_.samples >= pause_samples_; }
  bool is_over() const { return pauses() || has_all_steps(plan_, position_, 0); }
  bool meets_after_next_update() {
    const Position before = std::exchange(position_, plan_.course.after(position_));
    check(arrivals_[next_++]);
    return pauses() || all_meet_after(plan_, before, position_);
  }

  void check(const Arrival& a) const {
    const std::int64_t most = plan_.experiment.parallel.max_staleness, others = workers_ - 1;
    if (most >= 0 && a.staleness() > others * (2 * most + 1))
      fail(cat("step ", a.step, " has a staleness of ", a.staleness()),
           cat("at most ", others * (2 * most + 1), " for parallel.max_staleness: ", most, " and ", workers_,
               " workers"));
    if (a.samples > 0 && a.samples != position_.samples)
      fail(cat("the recorded run had applied ", a.samples, " samples after step ", a.step),
           cat(position_.samples, " as in this run (batch.global: ", plan_.experiment.batch.global, ", ", workers_,
               " workers)"));
  }

  [[noreturn]] void fail(const std::string& what, const std::string& expected) const {
    throw Error(cat(name_, ": ", what, ", expected ", expected), replay_hint);
  }

  const RunPlan& plan_;
  const std::int64_t pause_samples_;
  const std::string name_;
  const int workers_;
  const std::vector<Arrival> arrivals_;
  Position position_;
  std::size_t next_ = 0;  // the arrival that is applied next
  const std::unique_ptr<UpdateOrder> order_;
};

}  // namespace

std::optional<std::int64_t> check_replay(const RunPlan& plan, const Position& begin, std::int64_t pause_samples) {
  if (!plan.servers || plan.experiment.parallel.replay.empty()) return std::nullopt;
  return Replay(plan, begin, pause_samples).go_through();
}

}  // namespace ringtrain
