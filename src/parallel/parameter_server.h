// Training with parameter servers on their own ranks. ParameterServer is the server's side and makes the updates.
// ServedWorker is the worker's side and gets its work. Server 0 decides the order (update_order.h) and tells the other
// servers, which do the same in the same order. All parts of the weights that a worker pulls therefore have the same
// version, and the servers can sum norms over their parts.
//
//   worker    asks or delivers ─────────► server 0: grant ─► weights of its range
//     gradient ranges ─► each server      │  and the same order, message by message
//                                         └► servers 1, 2, ... : grant ─► weights of theirs
//
// A server never waits for a worker that is computing. A worker announces its gradient as soon as it has begun to send
// it. A server sends weights only to a worker that waits for them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/server_ranks.h"

namespace ringtrain {

// The combined gradients of one update. Their combination is the mean over all their targets.
struct TakenGradients {
  WorkerSums sums;           // sums of all these gradients
  ServerAction last;         // the action that took the last gradient
  std::int64_t count = 0;    // number of gradients
  std::int64_t dropped = 0;  // gradients that came too late since the last update
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
  // Returns how many gradients came too late after the last update and before the last meeting. `dropped` of
  // TakenGradients does not count them.
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
  void tell(int rank, const ServerOrder& order);
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
