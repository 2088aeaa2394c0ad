// Training with parameter servers on their own ranks. The first ranks are servers, the others are workers
// (ServerRanks). The weights are cut into ranges, one for each server. ParameterServer is the server's side and makes
// the updates. ServedWorker is the worker's side and gets its work. Server 0 decides the order (update_order.h) and
// tells the other servers, which do the same in the same order. All parts of the weights that a worker pulls therefore
// have the same version, and the servers can sum norms over their parts.
//
//   worker    asks or delivers ─────────► server 0: grant ─► weights of its range
//     gradient ranges ─► each server      │  and the same order, message by message
//                                         └► servers 1, 2, ... : grant ─► weights of theirs
//
// A server never waits for a worker that is computing. A worker announces its gradient as soon as it has begun to send
// it. A server sends weights only to a worker that waits for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "cluster/links.h"
#include "nn/parameters.h"
#include "optim/optimizer.h"
#include "parallel/rank_status.h"
#include "parallel/update_order.h"

namespace ringtrain {

// Tags of the messages between parameter servers and workers.
inline constexpr int worker_note_tag = 1, server_order_tag = 2, weights_tag = 3, gradient_tag = 4, server_sum_tag = 5;

// The results of a worker's passes.
struct WorkerSums {
  LossSums losses;  // its `targets` are at least 1, because the gradient is divided by them
  StepTimes times;  // `communication` and `server` are the wait for the weights
  WorkerSums& operator+=(const WorkerSums& other) {
    losses += other.losses;
    times += other.times;
    return *this;
  }
};

// A message from any rank to server 0.
struct WorkerNote {
  enum class Kind : std::int64_t {
    asks,      // the worker has no work
    delivers,  // the worker's gradient is on its way
    signal     // a server was asked to stop
  };
  Kind kind = Kind::asks;
  std::int64_t wants_to_stop = 0;  // whether this rank was asked to stop
  WorkerSums sums;
};

// A message from server 0. It tells a worker what to do. The other servers get all messages and do what server 0 does.
struct ServerOrder {
  ServerAction action;
  WorkerSums sums;           // set if the action is a take
  MeetingRequests requests;  // of all ranks; set if the action is a meet
};

// The ranks, and which elements of the flat vector a server holds.
class ServerRanks {
 public:
  // `mailbox` connects all ranks. `trained` and `elements` are those of the flat vector, as in ParameterTable.
  ServerRanks(std::unique_ptr<Mailbox> mailbox, int servers, std::int64_t trained, std::int64_t elements)
      : mailbox_(std::move(mailbox)), servers_(servers), trained_(trained), elements_(elements) {}

  Mailbox& mailbox() { return *mailbox_; }
  int servers() const { return servers_; }
  int workers() const { return mailbox_->size() - servers_; }
  bool is_server() const { return mailbox_->rank() < servers_; }
  int rank_of_worker(std::int64_t worker) const { return servers_ + static_cast<int>(worker); }

  // Returns the trained elements that a server holds. Ranges have equal sizes and may cut tensors.
  ElementRange range_of(int server) const;
  // Returns the elements that a worker sends to a server: the gradient of the server's range, and this step's
  // statistics. The statistics come after the trained elements, and every server has them.
  std::vector<ElementRange> pushed_to(int server) const { return with_statistics(range_of(server), true); }
  // Returns the elements that a worker gets from a server: the weights of the server's range. Server 0 also
  // sends the running statistics.
  std::vector<ElementRange> pulled_from(int server) const { return with_statistics(range_of(server), server == 0); }

  // Sums `values` over the servers, which all get the same bits. Collective over the servers.
  void sum(std::span<double> values);
  // Returns the share of the update that this server's optimizer does. The share is empty if one server has everything.
  // It is also empty on workers, which update nothing.
  UpdateShare update_share();

 private:
  std::vector<ElementRange> with_statistics(ElementRange range, bool statistics) const;

  std::unique_ptr<Mailbox> mailbox_;
  int servers_;
  std::int64_t trained_, elements_;
};

// The combined gradients of one update. Their combination is the mean over all their targets.
struct TakenGradients {
  WorkerSums sums;           // sums of all these gradients
  ServerAction last;         // the action that took the last gradient: its worker, update, version and staleness
  std::int64_t count = 0;    // number of gradients
  std::int64_t dropped = 0;  // gradients that came too late since the last update; in a step's report, those of
                             // late_at_meeting(), too
  // Returns the times of the workers: the mean over these gradients.
  StepTimes times_of_workers() const { return sums.times / static_cast<double>(count); }
};

class ParameterServer {
 public:
  // Makes the update with the values that are now in the vector of gradients.
  using Apply = std::function<void(const TakenGradients&)>;
  using Signalled = std::function<bool()>;  // whether this rank was asked to stop

  // `weights` and `gradients` are the flat vectors. `received` has the same length and takes one worker's gradient if
  // an update combines several gradients. It is empty if an update takes only one. `order` decides what the servers do;
  // it is null except on server 0.
  ParameterServer(ServerRanks& ranks, std::span<float> weights, std::span<float> gradients, std::span<float> received,
                  std::unique_ptr<UpdateOrder> order, Apply apply, Signalled signalled);

  // Server 0 returns after it has applied an update. If the ranks meet after this update, server 0 returns after the
  // meeting. The other servers return after the next meeting. Returns whether the ranks have met. requests() then
  // returns the requests of all ranks. `requests` are those of server 0; other servers only report that they were asked
  // to stop.
  bool step(const MeetingRequests& requests);
  const MeetingRequests& requests() const { return met_requests_; }
  // Returns how many gradients came too late after the last update and before the last meeting. Apply gets
  // TakenGradients that do not count them in `dropped`.
  std::int64_t late_at_meeting() const { return late_at_meeting_; }
  double waited_seconds() const { return waited_seconds_; }  // total time without work from workers
  double moving_seconds() const { return moving_seconds_; }  // total time of sending weights and taking gradients

 private:
  bool lead(const MeetingRequests& requests);
  bool follow();
  void look_for_notes();
  void request(const MeetingRequests& requests);
  void perform(const ServerOrder& order);
  void send_weights(int worker);
  void take(const ServerOrder& order);
  void combine(double weight, bool first);
  void apply(const ServerAction& action);
  WorkerSums& sums_of(std::int64_t worker) { return sums_[static_cast<std::size_t>(worker)]; }
  void tell_all(const ServerOrder& order);
  bool combines() const { return !received_.empty(); }

  ServerRanks& ranks_;
  std::span<float> weights_, gradients_, received_;
  const std::unique_ptr<UpdateOrder> order_;
  const Apply apply_;
  const Signalled signalled_;
  std::vector<WorkerSums> sums_;  // of each worker's newest gradient
  TakenGradients taken_;
  MeetingRequests requests_, met_requests_;
  std::int64_t late_at_meeting_ = 0;
  bool has_told_signal_ = false;
  double waited_seconds_ = 0, moving_seconds_ = 0;
};

class ServedWorker {
 public:
  // `weights` and `gradients` are the flat vectors. The weights of a grant are stored in `weights`.
  ServedWorker(ServerRanks& ranks, std::span<float> weights, std::span<float> gradients)
      : ranks_(ranks), weights_(weights), gradients_(gradients) {}
  // Both functions wait for the answer of server 0, which is a grant with weights or a meeting.
  ServerOrder ask(bool wants_to_stop);
  ServerOrder deliver(const WorkerSums& sums, bool wants_to_stop);

 private:
  ServerOrder note(const WorkerNote& note);

  ServerRanks& ranks_;
  std::span<float> weights_, gradients_;
};

}  // namespace ringtrain
