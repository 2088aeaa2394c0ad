// The ranks of a run whose parameter servers have their own ranks. The first ranks are servers, the others are workers.
// The weights are cut into ranges, one for each server.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cluster/mailbox.h"
#include "nn/parameters.h"
#include "optim/update_share.h"
#include "parallel/requests.h"
#include "parallel/step_times.h"
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

class ServerRanks {
 public:
  // `mailbox` connects all ranks. `trained` and `elements` are those of the flat vector, as in ParameterTable.
  ServerRanks(std::unique_ptr<Mailbox> mailbox, int servers, std::int64_t trained, std::int64_t elements);

  Mailbox& mailbox() { return *mailbox_; }
  int servers() const { return servers_; }
  int workers() const { return mailbox_->size() - servers_; }
  bool is_server() const { return mailbox_->rank() < servers_; }
  int rank_of_worker(std::int64_t worker) const { return servers_ + static_cast<int>(worker); }

  // Returns the trained elements that a server holds. Ranges have equal sizes and may cut tensors.
  ElementRange range_of(int server) const;
  // Returns the elements that a worker sends to a server: the gradient of the server's range, and this step's
  // statistics. The statistics come after the trained elements, and every server has them.
  std::vector<ElementRange> pushed_to(int server) const;
  // Returns the elements that a worker gets from a server: the weights of the server's range. Server 0 also
  // sends the running statistics.
  std::vector<ElementRange> pulled_from(int server) const;

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

}  // namespace ringtrain
