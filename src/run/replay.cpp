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

// Goes through the recorded order with workers that each deliver their gradient at once.
class Replay {
 public:
  Replay(const RunPlan& plan, const Position& begin, std::int64_t pause_samples)
      : plan_(plan),
        pause_samples_(pause_samples),
        may_end_early_(!ends_at_a_known_step(plan)),
        name_(replay_name(plan.experiment.parallel.replay)),
        workers_(plan.servers->workers),
        arrivals_(read_arrivals(plan.experiment.parallel.replay, begin.step, name_)),
        position_(plan.course.settled(begin)),
        order_(make_replayed_order(name_, workers_, begin.step, arrivals_,
                                   [this](std::int64_t) { return must_meet_here(); })) {}

  std::optional<std::int64_t> go_through() {
    if (may_end_early_ && arrivals_.empty() && position_.step > 0 && !is_over()) return position_.step;
    all_ask();
    while (!is_over()) {
      const ServerAction action = next_action();
      if (action.kind == ServerAction::Kind::grant) order_->delivers(static_cast<int>(action.worker));
      if (action.kind == ServerAction::Kind::meet) all_ask();
      if (action.kind != ServerAction::Kind::take) continue;
      const bool meets = apply();
      if (!may_end_early_ || is_over() || applied_ < arrivals_.size()) continue;
      if (!meets)
        fail(cat("other updates were being computed after its last step ", position_.step),
             "a run that was not killed");
      return position_.step;
    }
    return std::nullopt;
  }

 private:
  bool pauses() const { return pause_samples_ > 0 && position_.samples >= pause_samples_; }
  bool is_over() const { return pauses() || has_all_steps(plan_, position_, 0); }
  bool must_meet_here() const { return pauses() || all_meet_after(plan_, before_, position_); }

  void all_ask() {
    for (int worker = 0; worker < workers_; ++worker) order_->asks(worker);
  }

  ServerAction next_action() {
    const std::optional<ServerAction> action = order_->next();
    if (!action) fail("its updates contradict each other", "an order in which no worker waits for ever");
    return *action;
  }

  // Moves on to the position after the gradient that was taken, and applies it. Returns whether all ranks meet there.
  bool apply() {
    before_ = std::exchange(position_, plan_.course.after(position_));
    check(arrivals_[applied_]);
    ++applied_;
    if (may_end_early_ && applied_ == arrivals_.size()) order_->meet_soon();
    return next_action().meets;
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
  const bool may_end_early_;  // whether the order may end before the run does
  const std::string name_;
  const int workers_;
  const std::vector<Arrival> arrivals_;
  Position position_, before_ = {};  // position after the applied updates, and before the newest of them
  std::size_t applied_ = 0;          // number of applied arrivals
  const std::unique_ptr<UpdateOrder> order_;
};

}  // namespace

std::optional<std::int64_t> check_replay(const RunPlan& plan, const Position& begin, std::int64_t pause_samples) {
  if (!plan.servers || plan.experiment.parallel.replay.empty()) return std::nullopt;
  return Replay(plan, begin, pause_samples).go_through();
}

}  // namespace ringtrain
