// The ranks of a run whose parameter servers have ranks of their own: servers are the first ones, workers the others.
// The weights are cut into ranges. With two replicas each range lies on two servers, r and ranges + r, which do the
// same in the same order (state machine replication, Schneider 1990): when one dies, the other has all that it had.
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
  // `mailbox`: of all ranks. `trained`, `elements`: of the flat vector, as ParameterTable has them.
  ServerRanks(std::unique_ptr<Mailbox> mailbox, int ranges, int replicas, std::int64_t trained, std::int64_t elements);

  Mailbox& mailbox() { return *mailbox_; }
  int ranges() const { return ranges_; }
  int servers() const { return ranges_ * replicas_; }
  int workers() const { return mailbox_->size() - servers(); }
  bool is_server() const { return mailbox_->rank() < servers(); }
  int rank_of_worker(std::int64_t worker) const { return servers() + static_cast<int>(worker); }
  std::vector<int> holders(int range) const;  // servers that have it

  // Throws where the run cannot go on without the ranks of which this one knows that they have died.
  void check_deaths() const;

  // The trained elements that a server holds: ranges of equal size, whatever tensors they cut.
  ElementRange range_of(int server) const;
  // What a worker sends to a server: the range's gradient and this step's statistics, which lie behind the trained
  // elements. Every server has those.
  std::vector<ElementRange> pushed_to(int server) const;
  // What a worker gets from it: the range's weights, from the holders of the first one the running statistics, too.
  std::vector<ElementRange> pulled_from(int server) const;

  // Sums over the ranges, of whose holders each has the same values; the same bits on all servers. Collective over
  // them.
  void sum(std::span<double> values);
  // Of this rank's optimizer. Empty where one server has everything, and on workers, which update nothing.
  UpdateShare update_share();

 private:
  std::vector<ElementRange> with_statistics(ElementRange range, bool statistics) const;

  std::unique_ptr<Mailbox> mailbox_;
  int ranges_, replicas_;
  std::int64_t trained_, elements_;
};

// Throws Error where a run with so many ranges and replicas cannot go on without these ranks: it needs every worker, a
// holder of each range, and rank 0, which decides the order and writes the run's files.
void check_server_deaths(const std::vector<int>& dead, int ranges, int replicas);

}  // namespace ringtrain
