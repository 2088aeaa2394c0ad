#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "parallel/arrivals_file.h"

namespace ringtrain {
namespace {

void check(const std::string& name, const std::vector<Arrival>& arrivals, int workers, std::int64_t begin) {
  std::vector<std::int64_t> free_at(static_cast<std::size_t>(workers),
                                    begin);  // the step of each worker's last arrival
  std::set<std::int64_t> seen;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& a = arrivals[i];
    const auto fail = [&](const std::string& what, const std::string& expected) {
      throw Error(cat(name, ": step ", a.step, " ", what, ", expected ", expected), replay_hint);
    };
    const std::int64_t step = begin + static_cast<std::int64_t>(i) + 1;
    if (a.step != step) fail("is out of order", cat("step ", step));
    if (a.update < begin || !seen.insert(a.update).second)
      fail(cat("takes the samples of update ", a.update), cat("every update from ", begin, " on, each once"));
    if (a.worker < 0 || a.worker >= workers)
      fail(cat("is of worker ", a.worker), cat("a worker from 0 to ", workers - 1));
    std::int64_t& free = free_at[static_cast<std::size_t>(a.worker)];
    if (a.version < free || a.version >= a.step)
      fail(cat("was computed from version ", a.version), cat("a version from ", free, " to ", a.step - 1));
    free = a.step;
    // Each worker has at most two updates that are not applied: the update that it computes, and an update that is kept
    // for it (make_arrival_order()). Without this limit, a damaged number would make a worker compute the positions of
    // all updates up to that number.
    const std::int64_t limit = a.version + 2 * workers;
    if (a.update >= limit)
      fail(cat("takes the samples of update ", a.update, " from version ", a.version),
           cat("an update below ", limit, " with ", workers, " workers"));
  }
}

class ReplayedOrder : public UpdateOrder {
 public:
  ReplayedOrder(const std::string& name, int workers, std::int64_t begin, std::vector<Arrival> arrivals,
                MeetsAfter meets)
      : name_(name),
        meets_(std::move(meets)),
        begin_(begin),
        applied_(begin),
        arrivals_(std::move(arrivals)),
        states_(static_cast<std::size_t>(workers), State::busy) {
    check(name_, arrivals_, workers, begin);
    find_grants();
  }

  void asks(int worker) override { of(worker) = State::idle; }
  void delivers(int worker) override { of(worker) = State::arrived; }
  void meet_soon() override { meets_soon_ = true; }

  std::optional<ServerAction> next() override {
    if (took_) {
      took_ = false;
      ++applied_;
      meets_now_ = meets_(applied_);
      if (meets_now_ && !is_clean())
        throw Error(cat(name_, ": this run stops for an evaluation, a checkpoint, a pause or its end after step ",
                        applied_, ", but in the recorded run other updates were being computed then"),
                    replay_hint);
      meets_now_ = meets_now_ || (meets_soon_ && is_clean());
      return ServerAction{.kind = ServerAction::Kind::apply, .update = applied_ - 1, .meets = meets_now_};
    }
    if (meets_now_) {
      if (std::ranges::count(states_, State::idle) < std::ssize(states_)) return std::nullopt;
      meets_now_ = meets_soon_ = false;
      std::ranges::fill(states_, State::busy);
      return ServerAction{.kind = ServerAction::Kind::meet, .update = applied_};
    }
    const auto at = static_cast<std::size_t>(applied_ - begin_);
    if (at == arrivals_.size())
      throw Error(cat(name_, ": the file ends after step ", applied_, ", before the run does"), replay_hint);
    if (granted_ < grants_.size() && version(granted_) == applied_) return grant();
    return take(arrivals_[at]);
  }

 private:
  enum class State { busy, idle, arrived };
  State& of(std::int64_t worker) { return states_[static_cast<std::size_t>(worker)]; }
  std::int64_t version(std::size_t grant) const { return arrivals_[grants_[grant]].version; }

  // Finds the order of the grants, which is the order of the pulls, and the update that each worker computes next.
  void find_grants() {
    grants_.resize(arrivals_.size());
    for (std::size_t i = 0; i < grants_.size(); ++i) grants_[i] = i;
    std::ranges::stable_sort(grants_, {}, [&](std::size_t i) { return arrivals_[i].version; });
    hints_.assign(arrivals_.size(), -1);
    std::vector<std::int64_t> next(states_.size(), -1);
    for (std::size_t i = arrivals_.size(); i-- > 0;)
      hints_[i] = std::exchange(next[static_cast<std::size_t>(arrivals_[i].worker)], arrivals_[i].update);
    // clean_[n] says whether the ranks can meet after n arrivals. They can if all updates before begin_ + n are
    // applied, no later update is, and no worker is computing a gradient.
    clean_.resize(arrivals_.size() + 1);
    std::int64_t largest = begin_ - 1;
    std::vector<bool> pulled_before(arrivals_.size() + 1, false);
    std::int64_t oldest = INT64_MAX;
    for (std::size_t i = arrivals_.size() + 1; i-- > 0;) {
      pulled_before[i] = oldest < begin_ + static_cast<std::int64_t>(i);
      if (i > 0) oldest = std::min(oldest, arrivals_[i - 1].version);
    }
    for (std::size_t i = 0; i <= arrivals_.size(); ++i) {
      if (i > 0) largest = std::max(largest, arrivals_[i - 1].update);
      clean_[i] = largest < begin_ + static_cast<std::int64_t>(i) && !pulled_before[i];
    }
  }
  bool is_clean() const { return clean_[static_cast<std::size_t>(applied_ - begin_)]; }

  std::optional<ServerAction> grant() {
    const std::size_t at = grants_[granted_];
    const Arrival& a = arrivals_[at];
    if (of(a.worker) != State::idle) return std::nullopt;
    of(a.worker) = State::busy;
    ++granted_;
    return ServerAction{.kind = ServerAction::Kind::grant,
                        .worker = a.worker,
                        .update = a.update,
                        .hint = hints_[at],
                        .version = a.version};
  }

  std::optional<ServerAction> take(const Arrival& a) {
    if (of(a.worker) != State::arrived) return std::nullopt;
    of(a.worker) = State::idle;
    took_ = true;
    return ServerAction{.kind = ServerAction::Kind::take,
                        .worker = a.worker,
                        .update = a.update,
                        .version = a.version,
                        .staleness = a.staleness()};
  }

  const std::string name_;
  const MeetsAfter meets_;
  const std::int64_t begin_;
  std::int64_t applied_;
  const std::vector<Arrival> arrivals_;
  std::vector<std::size_t> grants_;  // indices of arrivals_, in the order of the grants
  std::vector<std::int64_t> hints_;  // for each arrival, the update that its worker computes next
  std::vector<bool> clean_;          // by the number of applied arrivals
  std::vector<State> states_;
  std::size_t granted_ = 0;
  bool took_ = false, meets_soon_ = false, meets_now_ = false;
};

}  // namespace

std::unique_ptr<UpdateOrder> make_replayed_order(const std::string& name, int workers, std::int64_t begin,
                                                 std::vector<Arrival> arrivals, MeetsAfter meets) {
  return std::make_unique<ReplayedOrder>(name, workers, begin, std::move(arrivals), std::move(meets));
}

}  // namespace ringtrain
