// Collectives that go on after the death of a rank. They need MPI with fault tolerance (fault_tolerance.h), but only
// its messages, which fail if their peer is dead. MPI's own agreement (MPIX_Comm_agree, MPIX_Comm_shrink) is not used:
// with Open MPI 5.0.11 it sometimes never ends if a second rank dies meanwhile.
//
// All collectives go through rank 0, without which the job cannot go on anyway. The others send rank 0 what they have,
// and rank 0 answers with the ranks that have died and with the result:
//
//   rank 1, 2, ...   values ─► rank 0: receives from each living rank, in order
//   rank 0           the dead ranks, the result ─► rank 1, 2, ...
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/mailbox.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Thrown on all living ranks if the root of a broadcast has died. The caller may repeat it from another rank.
class RootDied : public Error {
 public:
  using Error::Error;
};

// Throws, on all living ranks alike, if the job cannot go on without the ranks `dead`. It always throws if rank 0 is
// dead.
using MayGoOn = std::function<void(const std::vector<int>& dead)>;

// After a death the living ranks keep their numbers, and size() stays the same. A dead rank adds nothing to a sum, and
// zeros to a gather; a rank that dies in a collective may still take part in it. All living ranks get the same sums and
// broadcasts. After each collective they know of all deaths that rank 0 knew of. RankGroup::outlives_deaths() is true.
// Sums are added in the order of the ranks, so the death of a rank that adds zeros does not change a bit. A sum begins
// when its caller waits for it. Gathers and scatters are on rank 0 only. This communicator is made for the few
// collectives that parameter servers need: rank 0 sends a broadcast to each rank, as a server does with weights.
// Collective over the group. Throws Error, with advice, if MPI has no fault tolerance or the group fails alone
// (RankGroup::ends_job() is false).
std::unique_ptr<Communicator> make_surviving_communicator(const RankGroup& group, MayGoOn may_go_on);
// Does the same with the messages of a mailbox, which connects all ranks and outlives deaths.
std::unique_ptr<Communicator> make_surviving_communicator(std::unique_ptr<Mailbox> mailbox, MayGoOn may_go_on);

}  // namespace ringtrain
