// A set of ranks that run something together: the whole job, or a part of it. Communicators, the watchdog and questions
// about nodes belong to a group. A rank that cannot go on ends the job (abort_job in session.h), whatever its groups.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

// A handle: copies stand for the same group. Only the main thread may call its functions.
class RankGroup {
 public:
  static RankGroup of_job();  // returns the group of all ranks; collective over the job

  int rank() const;
  int size() const;
  int node_rank() const;  // position among the group's ranks on this node
  int node_size() const;
  const std::string& host() const;
  const std::vector<std::string>& hosts() const;  // host of every rank, in rank order

  // Returns the group of the ranks that give the same colour, in the order of this group. A rank with a negative colour
  // gets none. Collective.
  std::optional<RankGroup> split(int colour) const;

  void meet() const;  // waits until all ranks of the group have called it
  // Gathers one text of any length from each rank. All ranks of the group (or of the node, in the order of node ranks)
  // get all texts. Collective over the group.
  std::vector<std::string> gather(const std::string& mine) const;
  std::vector<std::string> gather_on_node(const std::string& mine) const;

  struct State;
  const State& state() const { return *state_; }  // for the files of this folder that call MPI: mpi_calls.h

 private:
  explicit RankGroup(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

// Returns the hosts of a group in the order of their first ranks.
std::vector<std::string> distinct_hosts(const std::vector<std::string>& host_of_rank);

// The difference between the clocks of two nodes. Large differences make file times and logs misleading, and they break
// the time-limited tokens of batch systems.
struct ClockOffset {
  double seconds = 0;     // the host's time of day minus that of rank 0's host
  double round_trip = 0;  // seconds of the quickest exchange; the error of the offset is at most half of it
};

// Collective. Rank 0 gets the offset of every distinct host; the other ranks get an empty list. The method is
// Cristian's (1989): it assumes that an answer was written half a round trip before it arrived.
std::vector<ClockOffset> clock_offsets(const RankGroup& group);

}  // namespace ringtrain
