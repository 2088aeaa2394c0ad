#include "train/steps.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/signals.h"
#include "config/batch_course.h"
#include "parallel/arrivals_file.h"
#include "parallel/parameter_server.h"
#include "parallel/update_order.h"

namespace ringtrain {
namespace {

class EqualSteps : public Steps {
 public:
  explicit EqualSteps(Trainer& trainer) : trainer_(trainer) {}
  StepReport step(const Requests& requests) override { return trainer_.step(requests); }

 private:
  Trainer& trainer_;
};

// The common part of servers and workers. After a meeting, every rank has all weights and the whole optimizer state, as
// with a ring.
class ServedSteps : public Steps {
 public:
  explicit ServedSteps(const StepParts& parts)
      : parts_(parts), course_(parts.plan.course), known_{course_.settled(parts.trainer.position())} {}

 protected:
  // Returns the position at which step `step` begins, after `step` updates. The steps before the last meeting are
  // forgotten.
  const Position& position_at(std::int64_t step) {
    while (known_.back().step < step) known_.push_back(course_.after(known_.back()));
    return known_[static_cast<std::size_t>(step - known_.front().step)];
  }
  void share_all() {
    ServerRanks& servers = *parts_.servers;
    Trainer& trainer = parts_.trainer;
    const auto share = [&](Vector& vector, const ElementRange& range, int server) {
      parts_.communicator.broadcast_vector(part(vector.all(), range), server);
    };
    for (int server = 0; server < servers.servers(); ++server) {
      for (const ElementRange& range : servers.pulled_from(server)) share(trainer.weights(), range, server);
      for (const std::unique_ptr<Vector>& state : trainer.optimizer().state())
        share(*state, servers.range_of(server), server);
    }
  }
  // Gives all ranks the same weights and state after update `step`. Returns a report for ranks that did not see every
  // update since the last meeting. The report describes update `step` only.
  StepReport meeting(std::int64_t step, const MeetingRequests& requests) {
    const double begin = now_seconds();
    share_all();
    StepReport report;
    report.times.communication = now_seconds() - begin;
    report.met = true;
    report.before = position_at(step - 1);
    report.position = position_at(step);
    report.samples = report.position.samples - report.before->samples;
    report.requests = {requests};
    parts_.trainer.stand_at(report.position);
    parts_.watchdog.step_finished(step);
    while (known_.front().step < step) known_.pop_front();
    return report;
  }

  StepParts parts_;

 private:
  BatchCourse course_;
  std::deque<Position> known_;
};

class ServerSteps : public ServedSteps {
 public:
  ServerSteps(const StepParts& parts, MeetingRule meets)
      : ServedSteps(parts),
        meets_(std::move(meets)),
        received_(parts.plan.servers->async ? nullptr : parts.backend.make_vector(parts.trainer.gradients().size())),
        server_(
            *parts.servers, parts.trainer.weights().all(), parts.trainer.gradients().all(),
            received_ ? received_->all() : std::span<float>(), order(),
            [this](const TakenGradients& taken) { apply(taken); }, [] { return requested_signal() != 0; }) {}

  StepReport step(const Requests& requests) override {
    const double waited = server_.waited_seconds(), moving = server_.moving_seconds();
    times_ = {};
    const bool met = server_.step(requests);
    times_.workers = server_.waited_seconds() - waited;
    times_.communication = times_.workers + server_.moving_seconds() - moving;
    StepReport report = std::exchange(report_, {});
    if (parts_.servers->mailbox().rank() != 0) {
      report = meeting(parts_.trainer.position().step, server_.requests());
    } else {
      const Position before = position_at(report.position.step - 1);
      report.times = {};
      if (met) {
        const StepReport shared = meeting(report.position.step, server_.requests());
        report.requests = shared.requests;
        report.times = shared.times;
        report.met = true;
        report.served->dropped += server_.late_at_meeting();
      }
      report.before = before;
    }
    report.times += times_;
    return report;
  }

 private:
  std::unique_ptr<UpdateOrder> order() {
    if (parts_.servers->mailbox().rank() != 0) return nullptr;
    const MeetsAfter meets = [this](std::int64_t step) { return meets_(position_at(step - 1), position_at(step)); };
    const ParallelConfig& parallel = parts_.plan.experiment.parallel;
    const int workers = parts_.servers->workers();
    const std::int64_t begin = parts_.trainer.position().step;
    if (!parts_.plan.servers->async)
      return make_backup_order(workers, begin, static_cast<int>(parallel.backup_workers), meets);
    if (parallel.replay.empty()) return make_arrival_order(workers, begin, parallel.max_staleness, meets);
    const std::string name = replay_name(parallel.replay);
    return make_replayed_order(name, workers, begin, read_arrivals(parallel.replay, begin, name), meets);
  }

  void apply(const TakenGradients& taken) {
    const bool inverse = parts_.plan.experiment.parallel.staleness_rate == "inverse";
    const double factor = inverse && taken.last.staleness > 1 ? 1.0 / static_cast<double>(taken.last.staleness) : 1.0;
    report_ = parts_.trainer.apply(taken.sums.losses, factor);
    times_ += report_.times;
    report_.served = taken;
  }

  MeetingRule meets_;
  StepReport report_;                 // of the newest update
  StepTimes times_;                   // of all updates in step()
  std::unique_ptr<Vector> received_;  // one worker's gradient; null: async
  ParameterServer server_;
};

class WorkerSteps : public ServedSteps {
 public:
  explicit WorkerSteps(const StepParts& parts)
      : ServedSteps(parts), worker_(*parts.servers, parts.trainer.weights().all(), parts.trainer.gradients().all()) {}

  // Works until the ranks meet.
  StepReport step(const Requests& requests) override {
    StepTimes times;
    const auto timed = [&](double& seconds, const auto& call) {
      const double begin = now_seconds();
      ServerOrder order = call();
      seconds = now_seconds() - begin;
      return order;
    };
    double waiting = 0;
    ServerOrder order = timed(waiting, [&] { return worker_.ask(requests.signal > 0); });
    times.communication = times.server = waiting;
    while (order.action.kind == ServerAction::Kind::grant) {
      WorkerSums sums = compute(order.action);
      sums.times.communication = sums.times.server = waiting;  // for the weights of these passes
      order = timed(waiting, [&] { return worker_.deliver(sums, requested_signal() != 0); });
      sums.times.communication = sums.times.server = waiting;  // for those of the next ones
      times += sums.times;
    }
    StepReport report = meeting(order.action.update, order.requests);
    report.times += times;
    return report;
  }

 private:
  void request(std::int64_t update) {
    const Position& position = position_at(update);
    parts_.loader.request(position.epoch, position.offset);
    requested_ = update;
  }

  WorkerSums compute(const ServerAction& grant) {
    if (requested_ != grant.update) {
      if (requested_ >= 0) parts_.loader.forget_requests();
      request(grant.update);
    }
    requested_ = -1;
    if (grant.hint >= 0) request(grant.hint);
    WorkerSums sums;
    sums.losses = parts_.trainer.compute(position_at(grant.update), sums.times);
    return sums;
  }

  ServedWorker worker_;
  std::int64_t requested_ = -1;  // the update whose samples are being read ahead; -1: none
};

}  // namespace

std::unique_ptr<ServerRanks> make_server_ranks(const RunPlan& plan, const RankGroup& group) {
  if (!plan.servers) return nullptr;
  return std::make_unique<ServerRanks>(make_mailbox(group), plan.servers->servers, plan.parameters.trained(),
                                       plan.parameters.size());
}

std::unique_ptr<Steps> make_steps(const StepParts& parts, MeetingRule meets) {
  if (parts.servers == nullptr) return std::make_unique<EqualSteps>(parts.trainer);
  if (parts.servers->is_server()) return std::make_unique<ServerSteps>(parts, std::move(meets));
  return std::make_unique<WorkerSteps>(parts);
}

}  // namespace ringtrain
