// The tables that `ringtrain plan` prints of the ranks: servers, owners of weights, stages and the fixed order of sums
// (plan_text.h).
#include <algorithm>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/table.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/memory.h"
#include "run/plan_text.h"
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

namespace {

// Measures the time that the fixed order adds to a rank's step. The rank copies the gradients of every pass but the
// last. For each copy it also adds two nodes of the tree.
double seconds_of_step(const RunPlan& plan, Backend& backend) {
  const std::int64_t elements = gradient_elements(plan, plan.parameters);
  const auto node = backend.make_vector(elements), gradients = backend.make_vector(elements);
  const Vector* const nodes[] = {node.get()};
  double least = 0;
  for (int trial = 0; trial < 3; ++trial) {
    const double begin = now_seconds();
    backend.copy(*gradients, *node);
    backend.add(nodes, {0, elements}, *gradients);
    float first = 0;
    backend.copy_to_host(*gradients, 0, std::span(&first, 1));  // waits for a device
    const double seconds = now_seconds() - begin;
    least = trial == 0 ? seconds : std::min(least, seconds);
  }
  return least * static_cast<double>(plan.batch.accumulation - 1);
}

// Returns the samples of a pass of the same run with communication.order=any.
std::int64_t micro_batch_in_any_order(const RunPlan& plan, Backend& backend) {
  Experiment experiment = plan.experiment;
  experiment.communication.order = "any";
  return make_run_plan(experiment, plan.train, plan.has_validation ? &plan.validation : nullptr,
                       static_cast<int>(plan.batch.ranks), backend, {}, plan.branch)
      .batch.micro_batch;
}

}  // namespace

std::string describe_fixed_order(const RunPlan& plan, Backend& backend, bool measures) {
  if (!has_fixed_order(plan.experiment)) return "";
  const BatchPlan& batch = plan.batch;
  const std::int64_t passes = batch.global / batch.micro_batch, additions = batch.accumulation - 1;
  const auto bytes = static_cast<double>(gradient_elements(plan, plan.parameters)) * sizeof(float);
  Table t;
  t.section("fixed order of sums");
  t.row("tree", cat(passes, " passes of ", batch.micro_batch, " samples; the same bits on ", powers_of_two(passes),
                    passes == 1 ? " rank" : " ranks"));
  t.row("memory of a rank", cat(waiting_nodes(plan), " x ", readable_bytes(bytes), " more"));
  std::string cost = cat(additions, " x an addition and a copy of ", readable_bytes(bytes), " in a step");
  if (additions > 0 && measures)
    cost += cat(": ", with_digits(1000 * seconds_of_step(plan, backend), 3), " ms (measured here, on one rank)");
  t.row("cost of a rank", cost);
  if (!measures) return t.str();
  if (const std::int64_t free = micro_batch_in_any_order(plan, backend); free > batch.micro_batch)
    t.row("not in this cost", cat("passes of ", batch.micro_batch, " samples instead of ", free,
                                  ", which are slower: ringtrain bench step measures passes"));
  return t.str();
}

}  // namespace ringtrain
