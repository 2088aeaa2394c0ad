#include "run/owner_plan.h"

#include "base/error.h"
#include "base/table.h"
#include "optim/optimizer.h"
#include "parallel/owners.h"
#include "run/memory_plan.h"

namespace ringtrain {
namespace {

struct Owned {
  std::int64_t elements = 0;
  std::vector<ElementRange> ranges;
};

std::vector<Owned> owned_of_ranks(const RunPlan& plan, bool on_device) {
  const std::int64_t trained = plan.parameters.trained();
  std::vector<OwnedRange> all;
  int ranks = static_cast<int>(plan.batch.ranks);
  if (plan.servers) {
    ranks = plan.servers->servers + plan.servers->workers;
    for (int server = 0; server < plan.servers->servers; ++server)
      all.push_back({served_range(trained, server, plan.servers->servers), server});
  } else {
    all = owners(plan.experiment.parallel, trained,
                 bucket_elements(plan.experiment.communication, on_device, plan.batch.ranks), ranks);
  }
  std::vector<Owned> of_rank(all.empty() ? 0 : static_cast<std::size_t>(ranks));
  for (const auto& [elements, rank] : all) {
    Owned& owned = of_rank[static_cast<std::size_t>(rank)];
    owned.elements += elements.end - elements.begin;
    owned.ranges.push_back(elements);
  }
  return of_rank;
}

std::string describe_elements(const RunPlan& plan, const Owned& owned, bool is_one_rank) {
  if (owned.elements == 0) return plan.servers ? "computes" : "updates nothing";
  const std::string verb = plan.experiment.parallel.kind == "server" ? "serves " : "updates ";
  std::string where;
  if (is_one_rank && owned.ranges.size() == 1)
    where = cat(", ", owned.ranges.front().begin, " to ", owned.ranges.front().end - 1);
  if (owned.ranges.size() > 1) where = cat(" in ", owned.ranges.size(), " buckets");
  return cat(verb, with_thousands(owned.elements), " elements", where);
}

}  // namespace

std::string describe_owners(const RunPlan& plan) {
  const ParallelConfig& p = plan.experiment.parallel;
  const std::string trained = with_thousands(plan.parameters.trained());
  if (servers_work(p))
    return cat(p.servers == 1 ? "rank 0 holds" : cat("ranks 0 to ", p.servers - 1, " hold"), " and ",
               p.servers == 1 ? "updates" : "update", " the ", trained, " weights; all ", plan.batch.ranks,
               plan.batch.ranks == 1 ? " rank computes" : " ranks compute");
  if (p.kind == "ring" && p.shard_state)
    return cat("each of ", plan.batch.ranks, " ranks updates a part of the ", trained,
               " weights, and keeps the optimizer state of this part");
  return "";
}

std::string owner_table(const RunPlan& plan, Backend& backend) {
  const std::vector<Owned> of_rank = owned_of_ranks(plan, backend.on_device());
  if (of_rank.empty()) return "";
  Table t;
  t.section(plan.experiment.parallel.kind == "server" ? "parameter servers" : "sharded optimizer state");
  // Rank 0 has a row of its own, because it also writes checkpoints. Other neighbouring ranks with the same number of
  // elements share a row.
  for (std::size_t first = 0, end = 0; first < of_rank.size(); first = end) {
    for (end = first + 1; first > 0 && end < of_rank.size() && of_rank[end].elements == of_rank[first].elements;) ++end;
    std::int64_t state = 0;
    const std::vector<MemoryItem> memory = rank_memory(plan, backend, static_cast<int>(first));
    for (const MemoryItem& item : memory)
      if (item.what.starts_with("optimizer state ")) state += item.bytes;
    const bool is_one_rank = end == first + 1;
    t.row(is_one_rank ? cat("rank ", first) : cat("ranks ", first, " to ", end - 1),
          cat(is_one_rank ? "" : "each ", describe_elements(plan, of_rank[first], is_one_rank), "; ",
              readable_bytes(static_cast<double>(state)), " of optimizer state; ",
              readable_bytes(static_cast<double>(limited_bytes(memory, backend))),
              backend.on_device() ? " of the GPU's memory in all" : " in all"));
  }
  return t.str();
}

}  // namespace ringtrain
