// The ranks of a run whose parameter servers have ranks of their own: servers are the first ones, workers the others.
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
  ServerRanks(std::unique_ptr<Mailbox> mailbox, int servers, std::int64_t trained, std::int64_t elements);

  Mailbox& mailbox() { return *mailbox_; }
  int servers() const { return servers_; }
  int workers() const { return mailbox_->size() - servers_; }
  bool is_server() const { return mailbox_->rank() < servers_; }
  int rank_of_worker(std::int64_t worker) const { return servers_ + static_cast<int>(worker); }

  // The trained elements that a server holds: ranges of equal size, whatever tensors they cut.
  ElementRange range_of(int server) const;
  // What a worker sends to a server: the range's gradient and this step's statistics, which lie behind the trained
  // elements. Every server has those.
  std::vector<ElementRange> pushed_to(int server) const;
  // What a worker gets from it: the range's weights, from server 0 the running statistics, too.
  std::vector<ElementRange> pulled_from(int server) const;

  // Sums over the servers; the same bits on all of them. Collective over the servers.
  void sum(std::span<double> values);
  // Of this rank's optimizer. Empty where one server has everything, and on workers, which update nothing.
  UpdateShare update_share();

 private:
  std::vector<ElementRange> with_statistics(ElementRange range, bool statistics) const;

  std::unique_ptr<Mailbox> mailbox_;
  int servers_;
  std::int64_t trained_, elements_;
};

}  // namespace ringtrain
