// Carries out sums by MPI. MpiLanes follows the schedules of vectors (sum_algorithms.h), and MpiSteps those of a few
// numbers. Sums by the MPI library and sums with the result on one rank need no schedule.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cluster/mpi_calls.h"
#include "cluster/node_memory.h"
#include "cluster/sum_algorithms.h"

namespace ringtrain {

using PartsLeft = std::shared_ptr<std::size_t>;  // number of parts of a collective that are still under way

// Carries out a schedule on a few double values, one step after the other.
class MpiSteps {
 public:
  // `comm` must outlive this object, and must have no other messages with this tag.
  MpiSteps(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  // `values` stay in place until progress() has returned true. Throws Error if they are more than a message takes.
  void start(std::span<double> values, SumSchedule schedule);
  bool progress();  // returns whether all steps are done

 private:
  void post(const SumStep& step);

  MPI_Comm comm_;
  int tag_;
  std::span<double> values_;
  SumSchedule schedule_;
  std::size_t next_ = 0;  // step
  std::vector<double> incoming_;
  MPI_Request requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

// Sums a few numbers over the ranks. The latency of the messages decides how long such a sum takes. Up to small_sum
// numbers, halving_sum() has the fewest steps. All ranks start the same sums in the same order. One sum is under way at
// a time.
class MpiCounterSums {
 public:
  // `comm` and `tag` are as in MpiSteps. `comm` has the ranks of the group.
  MpiCounterSums(const RankGroup& group, MPI_Comm comm, int tag)
      : rank_(group.rank()), size_(group.size()), steps_(comm, tag) {}
  void start(std::span<double> values, const PartsLeft& left);  // adds 1 to *left; progress() subtracts it again
  void progress();

 private:
  struct Sum {
    std::span<double> values;
    PartsLeft left;
  };
  void begin_first();

  int rank_, size_;
  MpiSteps steps_;
  std::deque<Sum> sums_;  // the first one is under way
};

// Sums by the MPI library's own all-reduce, with which the other algorithms can be compared.
class MpiLibrarySums {
 public:
  // Collective over the group.
  explicit MpiLibrarySums(const RankGroup& group) : group_(group), comm_(duplicate(group)) {}

  // `values` has at most INT_MAX elements. *left grows by one, and falls by one inside progress().
  void start(std::span<float> values, const PartsLeft& left);
  void progress();

 private:
  struct Sum {
    MPI_Request request;
    PartsLeft left;
  };
  RankGroup group_;
  OwnComm comm_;
  std::vector<Sum> sums_;
};

// Sums whose result is on one rank, and broadcasts in the background. Parameter servers need both. Values travel in
// chunks. A root receives a few chunks of every rank at a time. When a chunk has arrived from all ranks, the root adds
// them in the order of the ranks, so the bits are the same each time. Messages are matched by their order, so all ranks
// must start the same sums and broadcasts in the same order. `left` counts the chunks under way. It falls inside
// progress().
class MpiRootSums {
 public:
  // `comm` has the ranks of the group. It outlives this object, and has no other messages with these two tags. `chunk`
  // is a number of elements.
  MpiRootSums(const RankGroup& group, MPI_Comm comm, int sum_tag, int broadcast_tag, std::size_t chunk);

  void start_sum(std::span<float> values, int root, const PartsLeft& left);
  void start_broadcast(std::span<float> values, int root, const PartsLeft& left);
  void progress();

 private:
  struct Part {
    std::span<float> values;
    PartsLeft left;
    std::vector<std::vector<float>> incoming = {};  // for a sum: by rank; empty for this rank
    std::vector<MPI_Request> requests = {};         // empty: not posted yet
  };
  void post_receives(Part& part);
  void add(Part& part);

  MPI_Comm comm_;
  int sum_tag_, broadcast_tag_;
  int rank_, size_;
  std::size_t chunk_, window_;
  std::deque<Part> sums_;                 // sums whose root is this rank; the first window_ are posted
  std::deque<Part> transfers_;            // all other sums and broadcasts
  std::vector<std::vector<float>> free_;  // buffers that can be used again
  std::vector<float> total_;
};

// Carries out the schedules of vectors, several at a time. If ranks of a node can read each other's values in place,
// they do (node_memory.h). All other values travel by MPI messages.
//
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
