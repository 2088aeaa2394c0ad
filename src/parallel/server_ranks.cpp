#include "parallel/server_ranks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "parallel/owners.h"
#include "parallel/server_messages.h"

namespace ringtrain {

ServerRanks::ServerRanks(std::unique_ptr<Mailbox> mailbox, int ranges, int replicas, std::int64_t trained,
                         std::int64_t elements)
    : mailbox_(std::move(mailbox)), ranges_(ranges), replicas_(replicas), trained_(trained), elements_(elements) {}

std::vector<int> ServerRanks::holders(int range) const {
  std::vector<int> servers;
  for (int server = range; server < ranges_ * replicas_; server += ranges_) servers.push_back(server);
  return servers;
}

void ServerRanks::check_deaths() const {
  check_server_deaths(mailbox_->dead(), ranges_, replicas_);
}

ElementRange ServerRanks::range_of(int server) const {
  return served_range(trained_, server % ranges_, ranges_);
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
  return with_statistics(range_of(server), server % ranges_ == 0);
}

// Server 0 adds the values in the order of the ranges and sends the sum to all servers.
void ServerRanks::sum(std::span<double> values) {
  if (mailbox_->rank() != 0) {
    mailbox_->send(0, server_sum_tag, std::as_bytes(values));
    if (!mailbox_->receive(0, server_sum_tag, std::as_writable_bytes(values))) check_deaths();
    return;
  }
  std::vector<double> theirs(values.size());
  for (int range = 0; range < ranges_; ++range) {
    for (const int server : holders(range))
      if (server != 0 && !mailbox_->receive(server, server_sum_tag, std::as_writable_bytes(std::span(theirs))))
        check_deaths();
    if (range == 0) continue;  // server 0 has its own values
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
  for (int server = 1; server < servers(); ++server) mailbox_->send(server, server_sum_tag, std::as_bytes(values));
}

void check_server_deaths(const std::vector<int>& dead, int ranges, int replicas) {
  const char* const hint = "look for its last message above, then go on with --resume";
  const auto has_died = [&](int rank) { return std::ranges::find(dead, rank) != dead.end(); };
  if (has_died(0))
    throw Error(
        "rank 0 has died: it decides the order of the updates and writes the run's files, which no other rank can",
        hint);
  for (const int rank : dead) {
    if (rank >= ranges * replicas)
      throw Error(cat("rank ", rank, ", worker ", rank - ranges * replicas, ", has died"), hint);
    bool is_held = false;
    for (int server = rank % ranges; server < ranges * replicas; server += ranges) is_held |= !has_died(server);
    if (!is_held)
      throw Error(cat("rank ", rank, " has died, and with it the last server of range ", rank % ranges, " of ", ranges),
                  hint);
  }
}

UpdateShare ServerRanks::update_share() {
  if (!is_server() || ranges_ == 1) return {};
  return {.own = std::vector<ElementRange>{range_of(mailbox_->rank())},
          .sum = [this](std::span<double> values) { sum(values); },
          .whole_state = true};
}

}  // namespace ringtrain
