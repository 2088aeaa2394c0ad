// The ranks of a run whose parameter servers have their own ranks. The first ranks are servers, the others are workers.
// The weights are cut into ranges. With two replicas, servers r and ranges + r both hold range r. They do the same in
// the same order (state machine replication, Schneider 1990). If one of them dies, the other has the same state.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cluster/mailbox.h"
#include "nn/parameters.h"
#include "optim/update_share.h"

namespace ringtrain {

class ServerRanks {
 public:
  // `mailbox` connects all ranks. `trained` and `elements` are those of the flat vector, as in ParameterTable.
  ServerRanks(std::unique_ptr<Mailbox> mailbox, int ranges, int replicas, std::int64_t trained, std::int64_t elements);

  Mailbox& mailbox() { return *mailbox_; }
  int ranges() const { return ranges_; }
  int servers() const { return ranges_ * replicas_; }
  int workers() const { return mailbox_->size() - servers(); }
  bool is_server() const { return mailbox_->rank() < servers(); }
  int rank_of_worker(std::int64_t worker) const { return servers() + static_cast<int>(worker); }
  std::vector<int> holders(int range) const;  // the servers that hold this range

  // Throws if the run cannot continue without the dead ranks that this rank knows of.
  void check_deaths() const;

  // Returns the trained elements that a server holds. Ranges have equal sizes and may cut tensors.
  ElementRange range_of(int server) const;
  // Returns the elements that a worker sends to a server: the gradient of the server's range, and this step's
  // statistics. The statistics come after the trained elements, and every server has them.
  std::vector<ElementRange> pushed_to(int server) const;
  // Returns the elements that a worker gets from a server: the weights of the server's range. The holders of the first
  // range also send the running statistics.
  std::vector<ElementRange> pulled_from(int server) const;

  // Sums `values` over the ranges. All holders of a range must pass the same values. All servers get the same bits.
  // Collective over the servers.
  void sum(std::span<double> values);
  // Returns the share of the update that this server's optimizer does. The share is empty if one server has everything.
  // It is also empty on workers, which update nothing.
  UpdateShare update_share();

 private:
  std::vector<ElementRange> with_statistics(ElementRange range, bool statistics) const;

  std::unique_ptr<Mailbox> mailbox_;
  int ranges_, replicas_;
  std::int64_t trained_, elements_;
};

// Throws Error if a run with this number of ranges and replicas cannot continue without the ranks `dead`. A run needs
// every worker, a holder of each range, and rank 0. Rank 0 decides the order and writes the run's files.
void check_server_deaths(const std::vector<int>& dead, int ranges, int replicas);

}  // namespace ringtrain
