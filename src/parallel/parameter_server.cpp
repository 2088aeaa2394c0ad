#include "parallel/parameter_server.h"

#include <utility>

#include "base/clock.h"
#include "parallel/synchronizer.h"

namespace ringtrain {
namespace {

// Adds the seconds between its construction and its destruction to `seconds`.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() { seconds_ += now_seconds() - begin_; }

 private:
  double& seconds_;
  double begin_ = now_seconds();
};

}  // namespace

ElementRange ServerRanks::range_of(int server) const {
  return served_range(trained_, server, servers_);
}

std::vector<ElementRange> ServerRanks::with_statistics(ElementRange range, bool statistics) const {
  if (!statistics || trained_ == elements_) return {range};
  if (range.end == trained_) return {{range.begin, elements_}};
  return {range, {trained_, elements_}};
}

// Server 0 adds the values in the order of the ranges and sends the sum to all servers.
void ServerRanks::sum(std::span<double> values) {
  if (mailbox_->rank() != 0) {
    mailbox_->send(0, server_sum_tag, std::as_bytes(values));
    mailbox_->receive(0, server_sum_tag, std::as_writable_bytes(values));
    return;
  }
  std::vector<double> theirs(values.size());
  for (int server = 1; server < servers_; ++server) {
    mailbox_->receive(server, server_sum_tag, std::as_writable_bytes(std::span(theirs)));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  for (int server = 1; server < servers_; ++server) mailbox_->send(server, server_sum_tag, std::as_bytes(values));
}

UpdateShare ServerRanks::update_share() {
  if (!is_server() || servers_ == 1) return {};
  return {.own = std::vector<ElementRange>{range_of(mailbox_->rank())},
          .sum = [this](std::span<double> values) { sum(values); },
          .whole_state = true};
}

ParameterServer::ParameterServer(ServerRanks& ranks, std::span<float> weights, std::span<float> gradients,
                                 std::span<float> received, std::unique_ptr<UpdateOrder> order, Apply apply,
                                 Signalled signalled)
    : ranks_(ranks),
      weights_(weights),
      gradients_(gradients),
      received_(received),
      order_(std::move(order)),
      apply_(std::move(apply)),
      signalled_(std::move(signalled)),
      sums_(static_cast<std::size_t>(ranks.workers())) {}

bool ParameterServer::step(const MeetingRequests& requests) {
  return order_ ? lead(requests) : follow();
}

bool ParameterServer::lead(const MeetingRequests& requests) {
  request(requests);
  for (;;) {
    look_for_notes();
    const std::optional<ServerAction> action = order_->next();
    if (!action) {
      const Timed timed(waited_seconds_);
      while (!ranks_.mailbox().sender_of_waiting(worker_note_tag)) ranks_.mailbox().pause();
      continue;
    }
    ServerOrder order{.action = *action, .sums = {}, .requests = {}};
    const ServerAction::Kind kind = action->kind;
    if (kind == ServerAction::Kind::take) order.sums = sums_of(action->worker);
    if (kind == ServerAction::Kind::meet) order.requests = std::exchange(requests_, {});
    tell_all(order);
    perform(order);
    if (kind == ServerAction::Kind::meet) return true;
    if (kind == ServerAction::Kind::apply && !action->meets) return false;
  }
}

bool ParameterServer::follow() {
  has_told_signal_ = false;
  for (;;) {
    if (!has_told_signal_ && signalled_()) {
      has_told_signal_ = true;
      WorkerNote note{.kind = WorkerNote::Kind::signal, .wants_to_stop = 1, .sums = {}};
      ranks_.mailbox().send(0, worker_note_tag, value_bytes(note));
    }
    ServerOrder order;
    {
      const Timed timed(waited_seconds_);
      ranks_.mailbox().receive(0, server_order_tag, value_bytes(order));
    }
    perform(order);
    if (order.action.kind == ServerAction::Kind::meet) return true;
  }
}

// Tells the other servers everything, and the workers what concerns them.
void ParameterServer::tell_all(const ServerOrder& order) {
  const Timed timed(moving_seconds_);
  const auto tell = [&](int rank) { ranks_.mailbox().send(rank, server_order_tag, value_bytes(order)); };
  const ServerAction::Kind kind = order.action.kind;
  for (int server = 1; server < ranks_.servers(); ++server) tell(server);
  if (kind == ServerAction::Kind::grant) tell(ranks_.rank_of_worker(order.action.worker));
  if (kind == ServerAction::Kind::meet)
    for (int worker = 0; worker < ranks_.workers(); ++worker) tell(ranks_.rank_of_worker(worker));
}

void ParameterServer::request(const MeetingRequests& requests) {
  if (requests == MeetingRequests()) return;
  requests_ += requests;
  order_->meet_soon();
}

void ParameterServer::look_for_notes() {
  while (const std::optional<int> rank = ranks_.mailbox().sender_of_waiting(worker_note_tag)) {
    WorkerNote note;
    ranks_.mailbox().receive(*rank, worker_note_tag, value_bytes(note));
    if (note.wants_to_stop > 0) request({.signal = 1});
    const int worker = *rank - ranks_.servers();
    if (note.kind == WorkerNote::Kind::asks) order_->asks(worker);
    if (note.kind != WorkerNote::Kind::delivers) continue;
    sums_of(worker) = note.sums;
    order_->delivers(worker);
  }
}

void ParameterServer::perform(const ServerOrder& order) {
  switch (order.action.kind) {
    case ServerAction::Kind::grant:
      return send_weights(ranks_.rank_of_worker(order.action.worker));
    case ServerAction::Kind::take:
    case ServerAction::Kind::drop:
      return take(order);
    case ServerAction::Kind::apply:
      return apply(order.action);
    case ServerAction::Kind::meet:
      met_requests_ = order.requests;
      late_at_meeting_ = order.action.dropped;
      return;
  }
}

void ParameterServer::send_weights(int worker) {
  const Timed timed(moving_seconds_);
  for (const ElementRange& range : ranks_.pulled_from(ranks_.mailbox().rank()))
    ranks_.mailbox().send(worker, weights_tag, std::as_bytes(part(weights_, range)));
}

void ParameterServer::take(const ServerOrder& order) {
  const Timed timed(moving_seconds_);
  const ServerAction& action = order.action;
  const std::span<float> into = combines() ? received_ : gradients_;
  for (const ElementRange& range : ranks_.pushed_to(ranks_.mailbox().rank()))
    ranks_.mailbox().receive(ranks_.rank_of_worker(action.worker), gradient_tag,
                             std::as_writable_bytes(part(into, range)));
  if (action.kind == ServerAction::Kind::drop) return;
  if (combines()) combine(static_cast<double>(order.sums.losses.targets), taken_.count == 0);
  taken_.sums += order.sums;
  taken_.last = action;
  taken_.count += 1;
}

// Adds a worker's gradient to the combination. The worker has divided the gradient by its number of targets, so this
// number is the gradient's weight.
void ParameterServer::combine(double weight, bool first) {
  const auto factor = static_cast<float>(weight);
  for (const ElementRange& range : ranks_.pushed_to(ranks_.mailbox().rank())) {
    const std::span<float> sum = part(gradients_, range), one = part(received_, range);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = (first ? 0.0f : sum[i]) + factor * one[i];
  }
}

void ParameterServer::apply(const ServerAction& action) {
  if (combines()) {
    const float factor = 1.0f / static_cast<float>(taken_.sums.losses.targets);
    for (const ElementRange& range : ranks_.pushed_to(ranks_.mailbox().rank()))
      for (float& value : part(gradients_, range)) value *= factor;
  }
  taken_.dropped = action.dropped;
  apply_(std::exchange(taken_, {}));
}

ServerOrder ServedWorker::ask(bool wants_to_stop) {
  return note({.kind = WorkerNote::Kind::asks, .wants_to_stop = wants_to_stop ? 1 : 0, .sums = {}});
}

ServerOrder ServedWorker::deliver(const WorkerSums& sums, bool wants_to_stop) {
  for (int server = 0; server < ranks_.servers(); ++server)
    for (const ElementRange& range : ranks_.pushed_to(server))
      ranks_.mailbox().start_sending(server, gradient_tag, std::as_bytes(part(gradients_, range)));
  return note({.kind = WorkerNote::Kind::delivers, .wants_to_stop = wants_to_stop ? 1 : 0, .sums = sums});
}

ServerOrder ServedWorker::note(const WorkerNote& note) {
  Mailbox& mailbox = ranks_.mailbox();
  mailbox.send(0, worker_note_tag, value_bytes(note));
  mailbox.finish_sending();
  ServerOrder order;
  mailbox.receive(0, server_order_tag, value_bytes(order));
  if (order.action.kind == ServerAction::Kind::grant)
    for (int server = 0; server < ranks_.servers(); ++server)
      for (const ElementRange& range : ranks_.pulled_from(server))
        mailbox.receive(server, weights_tag, std::as_writable_bytes(part(weights_, range)));
  return order;
}

}  // namespace ringtrain
