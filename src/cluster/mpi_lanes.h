// Carries out the schedules of sums (sum_schedule.h) by MPI messages, several at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "cluster/mpi_counter_sums.h"
#include "cluster/sum_schedule.h"

namespace ringtrain {

// A lane is a part of a vector with its schedule. Lanes of all collectives are numbered in the order of starting, the
// same on all ranks, and lane j travels in slot j mod slots. A slot works off its lanes one after the other and owns a
// tag; the slots run side by side. So a message finds its receiver by slot and order alone, whatever the order in which
// ranks advance slots or wait for collectives.
//
// A sum over nodes spends part of its steps in the nodes' memory and part in their network. Lanes that all began at
// once would all be in the one and leave the other idle. So a step in the node waits while `lanes_in_node` older lanes
// are at such a step: younger lanes then are in the node while older ones are in the network. The oldest lane waits for
// none, on any rank, so one always goes on.
class MpiLanes {
 public:
  static constexpr int slots = 32;  // tags 0 .. slots - 1
  static constexpr int lanes_in_node = 8;

  // `comm`: outlives this.
  explicit MpiLanes(MPI_Comm comm) : comm_(comm) {}

  // `values` stay where they are while the lane travels. *left grows by one, and falls inside progress() or here.
  void start(float* values, SumSchedule schedule, const PartsLeft& left);
  void progress();

  // After an error: the requests that are open, for the caller to end; then forget().
  void take_requests(std::vector<MPI_Request>& receives, std::vector<MPI_Request>& sends) const;
  void forget();

 private:
  struct Lane {
    std::size_t number;
    float* values;
    SumSchedule schedule;
    PartsLeft left;
  };
  struct Slot {
    std::deque<Lane> lanes;  // front: under way
    std::vector<float> incoming;
    std::size_t step = 0;
    int open_requests = 0;
  };

  void run(std::size_t slot_index);
  bool must_wait(const Slot& slot) const;
  void post(std::size_t slot_index);

  MPI_Comm comm_;
  std::vector<Slot> slots_{slots};
  std::vector<MPI_Request> requests_ = std::vector<MPI_Request>(2 * slots, MPI_REQUEST_NULL);  // slot: receive, send
  std::vector<int> completed_ = std::vector<int>(2 * slots);
  std::size_t lanes_started_ = 0;
  int busy_slots_ = 0;
};

}  // namespace ringtrain
