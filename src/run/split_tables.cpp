#include "run/split_tables.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"
#include "nn/graph.h"
#include "optim/optimizer.h"
#include "parallel/owners.h"
#include "parallel/pass_order.h"
#include "run/memory_plan.h"
#include "run/split.h"

namespace ringtrain {
namespace {

std::string stage_layers(const std::vector<ModelLayer>& layers, const StageNodes& nodes) {
  std::string from, to;
  for (const ModelLayer& layer : layers) {
    if (layer.first < nodes.first || layer.first >= nodes.last) continue;
    if (from.empty()) from = layer.name;
    to = layer.name;
  }
  return from == to ? from : from + " to " + to;
}

double predicted_seconds(const std::vector<ModelLayer>& layers, const StageNodes& nodes) {
  const auto place = [&](int node) {
    return static_cast<std::size_t>(
        std::ranges::find_if(layers, [&](const ModelLayer& layer) { return layer.first >= node; }) - layers.begin());
  };
  return stage_seconds(layers, place(nodes.first), place(nodes.last));
}

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
    all = owners(plan.experiment.parallel, trained, bucket_elements(plan, on_device), ranks);
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

std::string describe_ranks(const RunPlan& plan) {
  if (plan.servers) return counted(plan.servers->servers + plan.servers->workers, "rank");
  const std::string ranks = counted(plan.batch.ranks * plan.stages(), "rank");
  if (plan.stages() == 1) return ranks;
  return cat(ranks, " = ", counted(plan.batch.ranks, "replica"), " of ", plan.stages(), " stages");
}

std::string describe_servers(const RunPlan& plan) {
  const ServerPlan& s = *plan.servers;
  const ParallelConfig& p = plan.experiment.parallel;
  std::string text = cat(s.servers, ", and ", s.workers, s.workers == 1 ? " worker; " : " workers; ");
  if (!s.async)
    return text + cat("a step takes the first ", s.workers - p.backup_workers, " of ", s.workers,
                      " gradients; not reproducible bit for bit");
  text += cat("asynchronous, an update is ", plan.batch.global, " samples of one worker; ");
  if (p.max_staleness >= 0)
    text += cat("at most ", p.max_staleness, " steps ahead, so staleness is at most ",
                (s.workers - 1) * (2 * p.max_staleness + 1));
  else
    text += "staleness is not bounded";
  if (p.staleness_rate == "inverse") text += ", the learning rate is divided by the staleness";
  if (!p.replay.empty()) return text + cat("; the order of arrival is that of ", p.replay);
  return text +
         (s.workers == 1 ? "" : "; not reproducible bit for bit (arrivals.csv records the order for parallel.replay)");
}

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
              readable_bytes(state), " of optimizer state; ", readable_bytes(limited_bytes(memory, backend)),
              backend.on_device() ? " of the GPU's memory in all" : " in all"));
  }
  return t.str();
}

std::string describe_stages(const RunPlan& plan, Backend& backend) {
  const std::int64_t stages = plan.stages();
  if (stages == 1) return "";
  const std::vector<ModelLayer> layers = layers_of(plan.graph);
  double all = 0;
  for (std::int64_t s = 0; s < stages; ++s) all += predicted_seconds(layers, nodes_of(plan, s));
  Table t;
  t.section(cat("pipeline, ", plan.experiment.parallel.schedule));
  for (std::int64_t s = 0; s < stages; ++s) {
    const StageNodes nodes = nodes_of(plan, s);
    const ModelPart part = part_of(plan, static_cast<int>(s));
    const std::int64_t bytes = limited_bytes(rank_memory(plan, backend, static_cast<int>(s)), backend);
    const PartBytes crossing =
        compile_part(plan, part, backend, PassMode::training, plan.batch.micro_batch)->part_bytes();
    t.row(cat("stage ", s),
          cat(stage_layers(layers, nodes), ": ", with_thousands(part.parameters.count()), " parameters, ",
              readable_bytes(bytes), backend.on_device() ? " of the GPU's memory per rank, " : " per rank, ",
              with_digits(100 * predicted_seconds(layers, nodes) / all, 3), " % of the predicted time, ", part.slots,
              part.slots == 1 ? " micro-batch" : " micro-batches", " in flight"));
    if (crossing.activations_out > 0)
      t.row("", cat("to stage ", s + 1, ": ", readable_bytes(crossing.activations_out),
                    " of activations a micro-batch, ", readable_bytes(crossing.gradients_in), " of gradients back"));
  }
  const std::int64_t m = plan.batch.accumulation;
  t.row("bubble", cat("(K - 1) / (m + K - 1) = ", stages - 1, " / ", m + stages - 1, " = ",
                      with_digits(100 * bubble_share(stages, m), 3), " % of a step of ", m,
                      m == 1 ? " micro-batch" : " micro-batches"));
  return t.str();
}

}  // namespace ringtrain
