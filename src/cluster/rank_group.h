// A set of ranks that run something together: the whole job, or a part of it. Communicators, the watchdog and questions
// about nodes belong to a group, so several groups can work in one job at the same time.
//
// A rank that cannot go on must tell the others of its group, or they wait for ever. In the group of the whole job an
// error ends the job (abort_job). A group that split() has made fails alone, and the processes live on:
//
//   rank 2   starts a sum, waits ............ GroupFailed | abort() waits for rank 3 | the parent's next group
//   rank 3   an error | abort() tells rank 2 ...^         | and waits for rank 2     | the parent's next group
//
// 1. The rank that has an error calls Communicator::abort(), which calls fail().
// 2. The other ranks see the message while they wait, throw GroupFailed, and call abort() too.
// 3. abort() returns when no rank of the group uses memory of another one any more. After that, the failed group and
//    all that was made of it may be destroyed, and must not be used for anything else. All ranks of the parent may then
//    split the parent again.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringtrain {

// A rank of this rank's group has failed: another rank, or this rank itself after fail() or demand_failure(). The text
// names the rank and gives the reason.
class GroupFailed : public Error {
 public:
  using Error::Error;
};

// A handle: copies stand for the same group. Only the main thread may call its functions, except demand_failure().
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
  // Does the same for ranks that stay together with this whole group. If an error in this group ends the job, so does
  // an error in the part, and nobody waits for the part's other ranks.
  std::optional<RankGroup> part(int colour) const;

  // Waits until all ranks of the group have called it. Throws GroupFailed.
  void meet() const;
  // Does the same for a rank that has other work: `while_waiting` is called again and again, and may sleep or throw.
  void meet(const std::function<void()>& while_waiting) const;
  // Gathers one text of any length from each rank. All ranks of the group (or of the node, in the order of node ranks)
  // get all texts. Collective over the group. Throws GroupFailed.
  std::vector<std::string> gather(const std::string& mine) const;
  std::vector<std::string> gather_on_node(const std::string& mine) const;

  bool ends_job() const;  // true: an error here ends the whole job, and fail() does nothing
  // Tells the other ranks that this one cannot go on. Only the first call has an effect. Does not block.
  void fail(const std::string& why) const;
  // May be called from any thread. The next check() of this rank then calls fail().
  void demand_failure(const std::string& why) const;
  bool failed() const;
  // Call it again and again while this rank waits for others. Every 64th call calls look_out() and looks for messages.
  // Throws GroupFailed if a rank has failed. If ends_job() is true, it looks for no messages and never throws this.
  void check() const;
  // Sets a function that looks for ranks that have died. look_out() calls this function at most once a second. check()
  // calls look_out() while this rank waits for other ranks, also after a failure. The function does not return if a
  // rank of the group has died.
  void set_lookout(std::function<void()> lookout) const;
  void look_out() const;

  struct State;
  const State& state() const { return *state_; }  // for the files of this folder that call MPI: rank_group_mpi.h

 private:
  explicit RankGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::optional<RankGroup> split(int colour, bool ends_job) const;
  std::shared_ptr<State> state_;
};

}  // namespace ringtrain
