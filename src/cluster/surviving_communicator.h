// Collectives that go on after the death of a rank. They need MPI with fault tolerance (fault_tolerance.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Thrown on all living ranks if the root of a broadcast, gather or scatter has died, because no other rank can replace
// it.
class RootDied : public Error {
 public:
  using Error::Error;
};

// After a death the living ranks keep their numbers, and size() stays the same. A dead rank adds nothing to a sum, and
// zeros to a gather. All living ranks agree at the end of every collective. If one of them could not finish it, all
// leave out the dead ranks and repeat it. Therefore all living ranks know of the same deaths after each collective.
// RankGroup::outlives_deaths() is true. Sums are added in the order of the ranks, so the death of a rank that adds
// zeros does not change a bit. A sum begins when its caller waits for it. This communicator is made for the few
// collectives that parameter servers need; a root sends to log2(size) ranks.
// `may_go_on` throws, on all living ranks alike, if the job cannot go on without the dead ranks. Collective over the
// group. Throws Error, with advice, if MPI has no fault tolerance or the group is only a part of the job.
std::unique_ptr<Communicator> make_surviving_communicator(const RankGroup& group,
                                                          std::function<void(const std::vector<int>& dead)> may_go_on);

}  // namespace ringtrain
