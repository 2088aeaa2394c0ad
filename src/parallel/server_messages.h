// What servers and workers tell each other.
#pragma once

#include <array>
#include <cstdint>

#include "parallel/update_order.h"

namespace ringtrain {

// Tags of the mailbox.
inline constexpr int worker_note_tag = 1, server_order_tag = 2, weights_tag = 3, gradient_tag = 4, server_sum_tag = 5;

// What a worker's passes came to.
struct WorkerSums {
  double loss = 0;  // sum over the targets that count
  std::int64_t correct = 0, correct5 = 0;
  std::int64_t targets = 0;                                  // by which the gradient is divided
  double input = 0, forward = 0, backward = 0, waiting = 0;  // seconds; waiting: for the weights
};

// Of any rank to server 0.
struct WorkerNote {
  enum class Kind : std::int64_t {
    asks,      // a worker without work
    delivers,  // its gradient is on its way
    signal     // a server was asked to stop
  };
  Kind kind = Kind::asks;
  std::int64_t wants_to_stop = 0;  // this rank was asked to stop
  WorkerSums sums;
};

// What the ranks want to happen at their next meeting: signal, save, stop, fail of train/trainer.h's Requests.
using Wishes = std::array<double, 4>;

// Of server 0: to a worker what it shall do, to the other servers all that it does.
struct ServerOrder {
  ServerAction action;
  WorkerSums sums;  // take
  Wishes wishes{};  // meet
};

}  // namespace ringtrain
