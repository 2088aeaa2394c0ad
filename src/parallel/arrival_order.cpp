#include <algorithm>
#include <deque>
#include <utility>

#include "parallel/update_order.h"

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

}  // namespace ringtrain
