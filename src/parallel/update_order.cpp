#include "parallel/update_order.h"

#include <algorithm>
#include <deque>
#include <ranges>
#include <set>
#include <utility>

#include "base/error.h"

namespace ringtrain {
namespace {

class ArrivalOrder : public UpdateOrder {
 public:
  ArrivalOrder(int workers, std::int64_t begin, std::int64_t max_staleness, MeetsAfter meets)
      : max_staleness_(max_staleness),
        meets_(std::move(meets)),
        workers_(static_cast<std::size_t>(workers)),
        applied_(begin),
        fresh_(begin),
        granted_end_(begin) {}

  void asks(int worker) override { idle_.push_back(worker); }
  void delivers(int worker) override { arrived_.push_back(worker); }

  // The ranks meet after at least one more update, because at least one update lies between two meetings.
  void meet_soon() override {
    const std::int64_t end = std::max(granted_end_, applied_ + 1);
    if (meeting_ < 0 || end < meeting_) meeting_ = end;
    for (Worker& worker : workers_)
      if (worker.hint >= meeting_) worker.hint = -1;
  }

  std::optional<ServerAction> next() override {
    if (took_) {
      took_ = false;
      const std::int64_t update = applied_++;
      return ServerAction{.kind = ServerAction::Kind::apply, .update = update, .meets = applied_ == meeting_};
    }
    if (!arrived_.empty()) return take();
    if (applied_ == meeting_)  // the ranks meet when all workers wait
      return idle_.size() == workers_.size() ? std::optional(meet()) : std::nullopt;
    for (auto worker = idle_.begin(); worker != idle_.end(); ++worker)
      if (may_start(*worker))
        if (const std::optional<std::int64_t> update = find_update(*worker)) return grant(worker, *update);
    return std::nullopt;
  }

 private:
  struct Worker {
    std::int64_t started = 0, finished = 0;  // number of steps of this worker
    std::int64_t update = -1, version = 0;   // the worker computes this update from these weights
    std::int64_t hint = -1;  // the update that is kept for this worker; another may get it if no other update is left
  };
  Worker& of(int worker) { return workers_[static_cast<std::size_t>(worker)]; }

  ServerAction take() {
    const int number = arrived_.front();
    arrived_.pop_front();
    idle_.push_back(number);
    Worker& worker = of(number);
    worker.finished += 1;
    took_ = true;
    return {.kind = ServerAction::Kind::take,
            .worker = number,
            .update = worker.update,
            .version = worker.version,
            .staleness = applied_ - worker.version};
  }

  // Updates that were kept for workers, but come after the meeting, can be granted to any worker again.
  ServerAction meet() {
    fresh_ = granted_end_ = applied_;
    meeting_ = -1;
    idle_.clear();
    for (Worker& worker : workers_) worker.hint = -1;
    return {.kind = ServerAction::Kind::meet, .update = applied_};
  }

  bool may_start(int worker) {
    if (max_staleness_ < 0) return true;
    const std::int64_t others = of(worker).started - max_staleness_;
    return std::ranges::all_of(workers_, [&](const Worker& other) { return other.finished >= others; });
  }

  // Returns the next update of the run's order that no worker has. Returns nothing if that update is after the meeting.
  std::optional<std::int64_t> take_fresh() {
    if (meeting_ >= 0 && fresh_ >= meeting_) return std::nullopt;
    const std::int64_t update = fresh_++;
    if (meeting_ < 0 && meets_(fresh_)) meeting_ = fresh_;
    return update;
  }

  std::optional<std::int64_t> find_update(int worker) {
    Worker* from = &of(worker);
    if (from->hint < 0) {
      if (const std::optional<std::int64_t> update = take_fresh()) return update;
      from = nullptr;
      for (Worker& other : workers_)
        if (other.hint >= 0 && (from == nullptr || other.hint < from->hint)) from = &other;
    }
    if (from == nullptr) return std::nullopt;
    return std::exchange(from->hint, -1);
  }

  ServerAction grant(std::deque<int>::iterator idle, std::int64_t update) {
    const int number = *idle;
    idle_.erase(idle);
    Worker& worker = of(number);
    worker.started += 1;
    worker.update = update;
    worker.version = applied_;
    granted_end_ = std::max(granted_end_, update + 1);
    worker.hint = take_fresh().value_or(-1);
    return {.kind = ServerAction::Kind::grant,
            .worker = number,
            .update = update,
            .hint = worker.hint,
            .version = applied_};
  }

  const std::int64_t max_staleness_;
  const MeetsAfter meets_;
  std::vector<Worker> workers_;
  std::deque<int> idle_, arrived_;  // in the order in which they came
  std::int64_t applied_;
  std::int64_t fresh_;         // updates before this are granted or kept for a worker
  std::int64_t granted_end_;   // updates from here on are not granted
  std::int64_t meeting_ = -1;  // number of updates at the next meeting; -1: not known yet
  bool took_ = false;
};

}  // namespace

std::unique_ptr<UpdateOrder> make_arrival_order(int workers, std::int64_t begin, std::int64_t max_staleness,
                                                MeetsAfter meets) {
  return std::make_unique<ArrivalOrder>(workers, begin, max_staleness, std::move(meets));
}

namespace {

class BackupOrder : public UpdateOrder {
 public:
  BackupOrder(int workers, std::int64_t begin, int backups, MeetsAfter meets)
      : needed_(workers - backups),
        meets_(std::move(meets)),
        steps_(static_cast<std::size_t>(workers), -1),
        step_(begin) {}

  void asks(int worker) override { idle_.push_back(worker); }
  void delivers(int worker) override { arrived_.push_back(worker); }
  void meet_soon() override { meets_soon_ = true; }

  std::optional<ServerAction> next() override {
    if (taken_ == needed_) return apply();
    if (!arrived_.empty()) return take_or_drop();
    if (meets_now_) {
      if (idle_.size() < steps_.size()) return std::nullopt;  // some workers are still computing
      meets_now_ = false;
      idle_.clear();
      return ServerAction{.kind = ServerAction::Kind::meet, .update = step_, .dropped = std::exchange(dropped_, 0)};
    }
    const auto worker = std::ranges::find_if(idle_, [&](int w) { return step_of(w) < step_; });
    if (worker == idle_.end()) return std::nullopt;
    const int number = *worker;
    idle_.erase(worker);
    step_of(number) = step_;
    return ServerAction{.kind = ServerAction::Kind::grant,
                        .worker = number,
                        .update = step_,
                        .hint = meets_(step_ + 1) ? -1 : step_ + 1,
                        .version = step_};
  }

 private:
  std::int64_t& step_of(int worker) { return steps_[static_cast<std::size_t>(worker)]; }

  ServerAction apply() {
    taken_ = 0;
    ++step_;
    meets_now_ = std::exchange(meets_soon_, false) || meets_(step_);
    return {.kind = ServerAction::Kind::apply,
            .update = step_ - 1,
            .dropped = std::exchange(dropped_, 0),
            .meets = meets_now_};
  }

  ServerAction take_or_drop() {
    const int worker = arrived_.front();
    arrived_.pop_front();
    idle_.push_back(worker);
    const std::int64_t update = step_of(worker);
    const bool counts = update == step_ && !meets_now_;
    ++(counts ? taken_ : dropped_);
    return {.kind = counts ? ServerAction::Kind::take : ServerAction::Kind::drop,
            .worker = worker,
            .update = update,
            .version = update,
            .staleness = step_ - update};
  }

  const std::int64_t needed_;
  const MeetsAfter meets_;
  std::vector<std::int64_t> steps_;  // the newest step that each worker was granted
  std::deque<int> idle_, arrived_;
  std::int64_t step_;  // number of updates in the weights
  std::int64_t taken_ = 0, dropped_ = 0;
  bool meets_soon_ = false, meets_now_ = false;
};

}  // namespace

std::unique_ptr<UpdateOrder> make_backup_order(int workers, std::int64_t begin, int backups, MeetsAfter meets) {
  return std::make_unique<BackupOrder>(workers, begin, backups, std::move(meets));
}

namespace {

[[noreturn]] void refuse(const std::string& name, const Arrival& a, const std::string& what,
                         const std::string& expected) {
  throw Error(cat(name, ": step ", a.step, " ", what, ", expected ", expected), replay_hint);
}

// Returns the arrivals. Throws Error if `workers` workers cannot have made this order.
std::vector<Arrival> checked(const std::string& name, std::vector<Arrival> arrivals, int workers, std::int64_t begin) {
  // The step of each worker's last arrival.
  std::vector<std::int64_t> free_at(static_cast<std::size_t>(workers), begin);
  std::set<std::int64_t> seen;
  std::int64_t step = begin;
  for (const Arrival& a : arrivals) {
    ++step;
    if (a.step != step) refuse(name, a, "is out of order", cat("step ", step));
    if (a.update < begin || !seen.insert(a.update).second)
      refuse(name, a, cat("takes the samples of update ", a.update),
             cat("every update from ", begin, " on, each once"));
    if (a.worker < 0 || a.worker >= workers)
      refuse(name, a, cat("is of worker ", a.worker), cat("a worker from 0 to ", workers - 1));
    std::int64_t& free = free_at[static_cast<std::size_t>(a.worker)];
    if (a.version < free || a.version >= a.step)
      refuse(name, a, cat("was computed from version ", a.version), cat("a version from ", free, " to ", a.step - 1));
    free = a.step;
    // Each worker has at most two updates that are not applied: the update that it computes, and an update that is kept
    // for it (make_arrival_order()). Without this limit, a damaged number would make a worker compute the positions of
    // all updates up to that number.
    const std::int64_t limit = a.version + 2 * workers;
    if (a.update >= limit)
      refuse(name, a, cat("takes the samples of update ", a.update, " from version ", a.version),
             cat("an update below ", limit, " with ", workers, " workers"));
  }
  return arrivals;
}

// Returns the grants of the recorded run in their order: a worker pulls the weights when it is granted an update.
std::vector<ServerAction> grants_of(const std::vector<Arrival>& arrivals, int workers) {
  std::vector<ServerAction> grants;
  for (const Arrival& a : arrivals)
    grants.push_back({.kind = ServerAction::Kind::grant, .worker = a.worker, .update = a.update, .version = a.version});
  // The hint is the next update of the same worker. From the last arrival to the first, it is the one seen before.
  std::vector<std::int64_t> next_update(static_cast<std::size_t>(workers), -1);
  for (ServerAction& grant : std::views::reverse(grants))
    grant.hint = std::exchange(next_update[static_cast<std::size_t>(grant.worker)], grant.update);
  std::ranges::stable_sort(grants, {}, &ServerAction::version);
  return grants;
}

// Returns for each number n of applied arrivals, from 0 on, whether the ranks can meet then. They can if the weights
// hold exactly the updates before begin + n, and no worker is computing a gradient.
std::vector<bool> meeting_points(const std::vector<Arrival>& arrivals, std::int64_t begin) {
  // For each n, the oldest weights from which an arrival after the first n was computed.
  std::vector<std::int64_t> oldest_version(arrivals.size() + 1, INT64_MAX);
  for (std::size_t n = arrivals.size(); n-- > 0;)
    oldest_version[n] = std::min(oldest_version[n + 1], arrivals[n].version);
  std::vector<bool> can_meet(arrivals.size() + 1);
  std::int64_t largest_update = begin - 1;  // of the first n arrivals
  for (std::size_t n = 0; n <= arrivals.size(); ++n) {
    if (n > 0) largest_update = std::max(largest_update, arrivals[n - 1].update);
    const std::int64_t applied = begin + static_cast<std::int64_t>(n);
    const bool lacks_none = largest_update < applied;  // n different updates, all of them before begin + n
    const bool nobody_computes = oldest_version[n] >= applied;
    can_meet[n] = lacks_none && nobody_computes;
  }
  return can_meet;
}

class ReplayedOrder : public UpdateOrder {
 public:
  ReplayedOrder(const std::string& name, int workers, std::int64_t begin, std::vector<Arrival> arrivals,
                MeetsAfter meets)
      : name_(name),
        meets_(std::move(meets)),
        begin_(begin),
        arrivals_(checked(name, std::move(arrivals), workers, begin)),
        grants_(grants_of(arrivals_, workers)),
        can_meet_(meeting_points(arrivals_, begin)),
        applied_(begin),
        states_(static_cast<std::size_t>(workers), State::busy) {}

  void asks(int worker) override { of(worker) = State::idle; }
  void delivers(int worker) override { of(worker) = State::arrived; }
  void meet_soon() override { meets_soon_ = true; }

  std::optional<ServerAction> next() override {
    if (took_) return apply();
    if (meets_now_) return meet();
    if (applied_here() == arrivals_.size())
      throw Error(cat(name_, ": the file ends after step ", applied_, ", before the run does"), replay_hint);
    if (granted_ < grants_.size() && grants_[granted_].version == applied_) return grant();
    return take();
  }

 private:
  enum class State { busy, idle, arrived };
  State& of(std::int64_t worker) { return states_[static_cast<std::size_t>(worker)]; }
  std::size_t applied_here() const { return static_cast<std::size_t>(applied_ - begin_); }  // number of arrivals

  std::optional<ServerAction> grant() {
    const ServerAction& recorded = grants_[granted_];
    if (of(recorded.worker) != State::idle) return std::nullopt;
    of(recorded.worker) = State::busy;
    ++granted_;
    return recorded;
  }

  std::optional<ServerAction> take() {
    const Arrival& a = arrivals_[applied_here()];
    if (of(a.worker) != State::arrived) return std::nullopt;
    of(a.worker) = State::idle;
    took_ = true;
    return ServerAction{.kind = ServerAction::Kind::take,
                        .worker = a.worker,
                        .update = a.update,
                        .version = a.version,
                        .staleness = a.staleness()};
  }

  ServerAction apply() {
    took_ = false;
    ++applied_;
    const bool must_meet = meets_(applied_), can_meet = can_meet_[applied_here()];
    if (must_meet && !can_meet)
      throw Error(cat(name_, ": this run stops for an evaluation, a checkpoint, a pause or its end after step ",
                      applied_, ", but in the recorded run other updates were being computed then"),
                  replay_hint);
    meets_now_ = must_meet || (meets_soon_ && can_meet);
    return {.kind = ServerAction::Kind::apply, .update = applied_ - 1, .meets = meets_now_};
  }

  // The ranks meet when all workers wait.
  std::optional<ServerAction> meet() {
    if (std::ranges::count(states_, State::idle) < std::ssize(states_)) return std::nullopt;
    meets_now_ = meets_soon_ = false;
    std::ranges::fill(states_, State::busy);
    return ServerAction{.kind = ServerAction::Kind::meet, .update = applied_};
  }

  const std::string name_;
  const MeetsAfter meets_;
  const std::int64_t begin_;
  // The recorded order.
  const std::vector<Arrival> arrivals_;
  const std::vector<ServerAction> grants_;
  const std::vector<bool> can_meet_;  // by the number of applied arrivals
  // How far this run has come in it.
  std::int64_t applied_;  // number of updates in the weights
  std::size_t granted_ = 0;
  std::vector<State> states_;  // of the workers
  bool took_ = false, meets_soon_ = false, meets_now_ = false;
};

}  // namespace

std::unique_ptr<UpdateOrder> make_replayed_order(const std::string& name, int workers, std::int64_t begin,
                                                 std::vector<Arrival> arrivals, MeetsAfter meets) {
  return std::make_unique<ReplayedOrder>(name, workers, begin, std::move(arrivals), std::move(meets));
}

}  // namespace ringtrain
