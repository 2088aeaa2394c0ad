// Carries out the schedules of sums (sum_schedule.h), several at a time. If ranks of a node can read each other's
// values in place, they do (node_memory.h). All other values travel by MPI messages.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "cluster/mpi_sums.h"
#include "cluster/node_memory.h"
#include "cluster/sum_schedule.h"

namespace ringtrain {

// A lane is a part of a vector with its schedule. Lanes of all collectives are numbered in the order of their start,
// which is the same on all ranks. Lane j uses slot j mod `slots`. Each slot has a tag of its own and runs its lanes one
// after the other. Different slots run at the same time. The tag and the order of messages therefore identify the
// receiver of a message, even if ranks advance slots in different orders.
//
// A sum over nodes has steps within the nodes and steps over the network. If all lanes were at the same kind of step,
// either the nodes' memory or the network would be idle. A step within the node therefore waits while `lanes_in_node`
// older lanes are at such a step, so that the older lanes reach the network earlier. The oldest lane never has to wait
// for this reason, so there is always progress.
class MpiLanes {
 public:
  static constexpr int slots = 32;  // tags 0 .. slots - 1
  static constexpr int lanes_in_node = 8;

  // `comm` outlives this object.
  explicit MpiLanes(MPI_Comm comm) : comm_(comm) {}

  // From now on, lanes on memory of `node` exchange values within the node through `node`, which outlives this object.
  void use(NodeExchange& node) { node_ = &node; }

  // Starts a lane. `values` must stay in place until the lane is done. *left grows by one now, and falls by one when
  // the lane is done. `values` is memory of the node exchange on all ranks or on none.
  void start(float* values, SumSchedule schedule, const PartsLeft& left);
  void progress();
  int open_receives() const;  // number of messages that this rank waits for

 private:
  struct Lane {
    std::size_t number;
    float* values;
    SumSchedule schedule;
    PartsLeft left;
    bool shared;  // the ranks of the node can read the values
  };
  struct Slot {
    std::deque<Lane> lanes;  // the first one is under way
    std::vector<float> incoming;
    std::size_t step = 0;
    int open_requests = 0;  // MPI requests of the step
    // Through the node exchange: another rank has not offered its values yet, or has not read this rank's values yet.
    bool awaits_values = false, awaits_reader = false;
    bool is_posted = false;  // the step's messages are under way
    bool is_open() const { return open_requests > 0 || awaits_values || awaits_reader; }
  };

  void run(std::size_t slot_index);
  bool must_wait(const Slot& slot) const;
  void post(std::size_t slot_index);
  void test_requests();
  void exchange_in_node(std::size_t slot_index);
  void end_step(std::size_t slot_index);

  MPI_Comm comm_;
  NodeExchange* node_ = nullptr;
  std::vector<Slot> slots_{slots};
  std::vector<MPI_Request> requests_ = std::vector<MPI_Request>(2 * slots, MPI_REQUEST_NULL);  // slot: 2 requests
  std::vector<int> completed_ = std::vector<int>(2 * slots);
  std::size_t lanes_started_ = 0;
  int busy_slots_ = 0, open_requests_ = 0;
};

}  // namespace ringtrain
