// The messages between parameter servers and workers.
#pragma once

#include <array>
#include <cstdint>

#include "parallel/update_order.h"

namespace ringtrain {

// Tags of the mailbox.
inline constexpr int worker_note_tag = 1, server_order_tag = 2, weights_tag = 3, gradient_tag = 4, server_sum_tag = 5;

// The results of a worker's passes.
struct WorkerSums {
  double loss = 0;  // sum over the targets that count
  std::int64_t correct = 0, correct5 = 0;
  std::int64_t targets = 0;                                  // number of targets, by which the gradient is divided
  double input = 0, forward = 0, backward = 0, waiting = 0;  // seconds; `waiting` is the wait for the weights
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

// The ranks' requests for their next meeting: signal, save, stop, fail and diverged of Requests in
// train/trainer.h.
using Wishes = std::array<double, 5>;

// A message from server 0. It tells a worker what to do. The other servers get all messages and do what server 0 does.
struct ServerOrder {
  ServerAction action;
  WorkerSums sums;  // set if the action is a take
  Wishes wishes{};  // set if the action is a meet
};

}  // namespace ringtrain
