#include <algorithm>
#include <deque>
#include <utility>

#include "parallel/update_order.h"

namespace ringtrain {
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

}  // namespace ringtrain
