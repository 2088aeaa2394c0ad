// The decisions of server 0: which worker computes which update from which weights, and in which order the updates are
// applied (arrivals_file.h has the file that records this order). An UpdateOrder has no messages and no clock. The
// server reports each arrival and carries out the action that next() returns (parallel/parameter_server.h).
//
// Update u takes the samples of the run's step u. A worker asks for work. The server grants it an update and sends it
// the current weights (the pull). The worker delivers its gradient and so asks again. `applied` counts the updates in
// the weights. The staleness of an update is the number of updates that were applied between its pull and itself.
//
//   worker 1   asks ──────────► grant 7, version 6 ──► computes ──► delivers ──► grant 10, version 9 ...
//   applied         6 (update 5)           7 (update 6)     8 (update 8)   9 (update 7: staleness 2)
//
// All ranks meet after K updates if an evaluation, a checkpoint or the end of the run is due, because these need all
// ranks. Updates from K on are granted only after the meeting. At the meeting the weights hold exactly the updates
// before K, and the applied samples are a prefix of the run's order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/arrivals_file.h"

namespace ringtrain {

struct ServerAction {
  enum class Kind : std::int64_t {
    grant,  // to `worker`: `update`, with the present weights; `hint`: what it will probably be granted next, -1:
            // unknown
    take,   // the gradient of `worker` for `update`, `staleness` updates old
    drop,   // the same, but too late to count
    apply,  // the gradients taken since the last apply; `dropped` gradients came too late since then
    meet    // no gradient is being computed, and `update` updates are applied; `dropped` as for apply
  };
  Kind kind = Kind::meet;
  std::int64_t worker = -1;
  std::int64_t update = 0;
  std::int64_t hint = -1;
  std::int64_t version = 0;  // grant: updates in the weights; take, drop: updates in the weights at the pull
  std::int64_t staleness = 0;
  std::int64_t dropped = 0;
  bool meets = false;  // apply: the ranks meet before the next update
  bool operator==(const ServerAction&) const = default;
};

class UpdateOrder {
 public:
  virtual ~UpdateOrder() = default;
  virtual void asks(int worker) = 0;      // the worker has no work; called once at the start and after every meeting
  virtual void delivers(int worker) = 0;  // the worker's gradient has arrived
  virtual void meet_soon() = 0;           // all ranks shall meet after the updates that are under way
  virtual std::optional<ServerAction> next() = 0;  // nothing: a worker must ask or deliver first
};

// Returns whether all ranks meet after this number of updates. The result depends only on the number. It is only called
// with numbers after the last meeting.
using MeetsAfter = std::function<bool(std::int64_t updates)>;

// Updates are applied when they arrive. With `max_staleness` s >= 0 (stale synchronous parallel, Ho et al. 2013), no
// worker starts its step k before all workers have finished step k - 1 - s. The staleness is then at most
// (N - 1) (2 s + 1) for N workers. A negative s means no bound. A worker that asks gets the next update, so a slow
// worker takes fewer updates. Other workers wait for it only at meetings. `begin` is the number of updates applied
// before.
std::unique_ptr<UpdateOrder> make_arrival_order(int workers, std::int64_t begin, std::int64_t max_staleness,
                                                MeetsAfter meets);

// Repeats the order of arrival of an earlier run. `arrivals` are those of the steps after `begin`, in order. Throws
// Error if `workers` workers cannot have made this order. next() throws Error if the arrivals end before the run, or if
// all ranks must meet after an update at which other gradients were being computed in the earlier run. The messages
// begin with `name`, which says where the arrivals come from.
std::unique_ptr<UpdateOrder> make_replayed_order(const std::string& name, int workers, std::int64_t begin,
                                                 std::vector<Arrival> arrivals, MeetsAfter meets);

// Synchronous steps with backup workers (Chen et al. 2016). Step k takes the first `workers - backups` gradients of the
// weights after k updates. Later gradients of step k are dropped, and their workers continue with the newest step.
std::unique_ptr<UpdateOrder> make_backup_order(int workers, std::int64_t begin, int backups, MeetsAfter meets);

}  // namespace ringtrain
