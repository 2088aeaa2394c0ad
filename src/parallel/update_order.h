// Who computes which update from which weights, and in which order the updates are applied: what server 0 decides. No
// messages and no clock are in here: the server says what has come and does what next() returns
// (parallel/parameter_server.h).
//
// Update u takes the samples of the run's step u. A worker asks for work, is granted an update together with the
// weights of now (the pull), delivers its gradient, and thereby asks again. `applied` counts the updates in the
// weights; the staleness of an update is the number of updates that were applied between its pull and itself.
//
//   worker 1   asks ──────────► grant 7, version 6 ──► computes ──► delivers ──► grant 10, version 9 ...
//   applied         6 (update 5)           7 (update 6)     8 (update 8)   9 (update 7: staleness 2)
//
// All ranks meet after K updates where something is due that needs all of them (an evaluation, a checkpoint, the end):
// updates from K on are granted after the meeting only, so that the weights then hold the updates before K and no
// others: the applied samples are a prefix of the run's order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

struct ServerAction {
  enum class Kind : std::int64_t {
    grant,  // to `worker`: `update`, with the weights of now; `hint`: what it will probably be granted next, -1:
            // unknown
    take,   // the gradient of `worker` for `update`, `staleness` updates old
    drop,   // the same, too late to count
    apply,  // what was taken since the last time; `dropped` gradients came too late since then
    meet    // nothing is under way any more, and `update` updates are applied
  };
  Kind kind = Kind::meet;
  std::int64_t worker = -1;
  std::int64_t update = 0;
  std::int64_t hint = -1;
  std::int64_t version = 0;  // grant: updates in the weights; take, drop: those that were in them at the pull
  std::int64_t staleness = 0;
  std::int64_t dropped = 0;
  bool meets = false;  // apply: the ranks meet before the next update
  bool operator==(const ServerAction&) const = default;
};

class UpdateOrder {
 public:
  virtual ~UpdateOrder() = default;
  virtual void asks(int worker) = 0;      // a worker without work: once at the start and after every meeting
  virtual void delivers(int worker) = 0;  // its gradient is there
  virtual void meet_soon() = 0;           // all shall meet as soon as the updates that are under way are applied
  virtual std::optional<ServerAction> next() = 0;  // nothing: a worker must ask or deliver first
};

// Whether all ranks meet after so many updates; a function of the number alone. Asked for numbers after the last
// meeting.
using MeetsAfter = std::function<bool(std::int64_t updates)>;

// Updates are applied when they arrive. `max_staleness` s >= 0 (stale synchronous parallel, Ho et al. 2013): no worker
// starts its step k before all have finished step k - 1 - s, so that the staleness is at most (N - 1) (2 s + 1); below
// 0: no bound. Workers ask for what they find next, so a slow one takes fewer updates and holds up nobody but at
// meetings. `begin`: updates that were applied before.
std::unique_ptr<UpdateOrder> make_arrival_order(int workers, std::int64_t begin, std::int64_t max_staleness,
                                                MeetsAfter meets);

// One line of arrivals.csv.
struct Arrival {
  std::int64_t step = 0;     // updates in the weights with this one
  std::int64_t update = 0;   // whose samples it has taken
  std::int64_t worker = 0;   // from 0
  std::int64_t version = 0;  // updates in the weights that it was computed from
  std::int64_t staleness() const { return step - 1 - version; }
  bool operator==(const Arrival&) const = default;
};

// The order of arrival of an earlier run again. `arrivals`: of the steps after `begin`, in their order. Throws Error
// where they are no order that `workers` workers can have had, and from next() where they end before the run.
std::unique_ptr<UpdateOrder> make_replayed_order(int workers, std::int64_t begin, std::vector<Arrival> arrivals,
                                                 MeetsAfter meets);

// Synchronous steps with backup workers (Chen et al. 2016): step k takes the first `workers - backups` gradients of the
// weights after k updates; the others are dropped when they come, and their workers go on with the newest step.
std::unique_ptr<UpdateOrder> make_backup_order(int workers, std::int64_t begin, int backups, MeetsAfter meets);

}  // namespace ringtrain
