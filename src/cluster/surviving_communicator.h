// Collectives that go on where a rank dies, on MPI with fault tolerance (fault_tolerance.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// The rank that has what a broadcast is of. Thrown on all living ranks alike.
class RootDied : public Error {
 public:
  using Error::Error;
};

// Ranks keep their numbers and size() stays; one that has died adds nothing to a sum, and zeros to a gather. Every
// collective ends with an agreement of all living ranks: where one of them could not finish it, all leave out the dead
// and do it again. So all of them know of the same deaths after each, and RankGroup::outlives_deaths() is true.
// Sums are added in the order of the ranks, so that a rank that adds zeros does not change a bit of them when it dies.
// A sum begins when it is waited for. Made for the few that parameter servers need: a root sends to log2(size) ranks.
// `may_go_on`: throws where the job cannot go on without these ranks; on all of them alike. Collective over the group.
// Throws Error, with advice, where MPI has no fault tolerance, or the group is a part of the job.
std::unique_ptr<Communicator> make_surviving_communicator(const RankGroup& group,
                                                          std::function<void(const std::vector<int>& dead)> may_go_on);

}  // namespace ringtrain
