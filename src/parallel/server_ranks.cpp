#include "parallel/server_ranks.h"

#include <utility>

#include "base/error.h"
#include "parallel/owners.h"

namespace ringtrain {

ServerRanks::ServerRanks(std::unique_ptr<Mailbox> mailbox, int servers, std::int64_t trained, std::int64_t elements)
    : mailbox_(std::move(mailbox)), servers_(servers), trained_(trained), elements_(elements) {}

ElementRange ServerRanks::range_of(int server) const {
  return served_range(trained_, server, servers_);
}

std::vector<ElementRange> ServerRanks::with_statistics(ElementRange range, bool statistics) const {
  if (!statistics || trained_ == elements_) return {range};
  if (range.end == trained_) return {{range.begin, elements_}};
  return {range, {trained_, elements_}};
}

std::vector<ElementRange> ServerRanks::pushed_to(int server) const {
  return with_statistics(range_of(server), true);
}

std::vector<ElementRange> ServerRanks::pulled_from(int server) const {
  return with_statistics(range_of(server), server == 0);
}

// Server 0 adds the values in the order of the ranges and sends the sum to all servers.
void ServerRanks::sum(std::span<double> values) {
  if (mailbox_->rank() != 0) {
    mailbox_->send(0, server_sum_tag, std::as_bytes(values));
    mailbox_->receive(0, server_sum_tag, std::as_writable_bytes(values));
    return;
  }
  std::vector<double> theirs(values.size());
  for (int server = 1; server < servers_; ++server) {
    mailbox_->receive(server, server_sum_tag, std::as_writable_bytes(std::span(theirs)));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  for (int server = 1; server < servers_; ++server) mailbox_->send(server, server_sum_tag, std::as_bytes(values));
}

UpdateShare ServerRanks::update_share() {
  if (!is_server() || servers_ == 1) return {};
  return {.own = std::vector<ElementRange>{range_of(mailbox_->rank())},
          .sum = [this](std::span<double> values) { sum(values); },
          .whole_state = true};
}

}  // namespace ringtrain
