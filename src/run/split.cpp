#include "run/split.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "nn/graph.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"
#include "run/memory.h"

namespace ringtrain {
namespace {

std::int64_t share_of(std::string_view key, std::int64_t batch, int workers) {
  if (batch % workers != 0)
    throw Error(cat(key, " is ", batch, ", but ", workers, " workers share it, expected a multiple of ", workers),
                cat("Numbers of workers that divide it: ", nearest_divisors(batch, workers), "; or set another ", key));
  return batch / workers;
}

// Returns the first node of each stage after the first.
std::vector<int> cuts_of(const ParallelConfig& parallel, const Graph& model, int ranks) {
  const std::int64_t stages = stages_of(parallel);
  if (stages == 1) return {};
  if (ranks % stages != 0)
    throw Error(cat("parallel.stages ", stages, " does not divide the ", ranks, ranks == 1 ? " rank" : " ranks"),
                cat("start a multiple of ", stages, " ranks: each replica of the model takes ", stages));
  const std::vector<ModelLayer> layers = layers_of(model);
  const bool automatic = parallel.cuts == std::vector<std::string>{"auto"};
  std::vector<int> cuts;
  for (const std::size_t layer :
       automatic ? fastest_cuts(layers, stages) : named_cuts(layers, model, parallel.cuts, stages))
    cuts.push_back(layers[layer].first);
  return cuts;
}

void check_ranks(const Experiment& experiment, const RunSplit& split, int ranks) {
  const BatchShares& batch = split.shares;
  const std::int64_t workers = batch.global / batch.worker;
  if (batch.span > 1 && split.servers)
    throw Error(cat(batch.ranks, " workers of parallel.kind: server would share the virtual workers of batch.worker ",
                    batch.worker, ", ", batch.span,
                    " ranks for each, but a worker that is late or dropped would leave an incomplete group"),
                cat("Numbers of workers that divide the ", workers,
                    " virtual ones: ", nearest_divisors(workers, batch.ranks), "; or parallel.kind=ring."));
  if (batch.span > 1 && split.stages() > 1)
    throw Error(cat(batch.ranks, " replicas of a pipeline would share the virtual workers of batch.worker ",
                    batch.worker, ", ", batch.span, " replicas for each, but a replica computes whole workers"),
                cat("Numbers of replicas that divide the ", workers,
                    " virtual workers: ", nearest_divisors(workers, batch.ranks), "; or parallel.kind=ring."));
  const auto check_rank = [&](const char* key, std::int64_t rank, const char* without) {
    if (rank >= ranks)
      throw Error(cat(key, " is ", rank, ", but the ranks are 0 to ", ranks - 1),
                  cat("Expected at most ", ranks - 1, "; -1: ", without, "."));
  };
  check_rank("test.slow_rank", experiment.test.slow_rank, "no rank is slow");
  check_rank("test.flip_bit_rank", experiment.test.flip_bit_rank, "no bit flips");
}

// The nodes [first, last) of the whole model that a stage computes.
struct StageNodes {
  int first = 0, last = 0;
};
StageNodes nodes_of(const RunPlan& plan, std::int64_t stage) {
  const auto at = static_cast<std::size_t>(stage);
  return {stage == 0 ? 0 : plan.cuts[at - 1],
          stage + 1 == plan.stages() ? static_cast<int>(plan.graph.nodes().size()) : plan.cuts[at]};
}

}  // namespace

std::optional<ServerPlan> server_plan(const Experiment& e, int ranks, bool on_device) {
  const ParallelConfig& p = e.parallel;
  if (!has_server_ranks(p)) return std::nullopt;
  const bool async = p.mode == "async";
  const std::string what = async ? "parallel.mode: async" : cat("parallel.backup_workers: ", p.backup_workers);
  if (on_device)
    throw Error(cat(what, " needs servers that update parts of the weights, which only CPUs do in this version"),
                "set machine.device=cpu, or parallel.kind=ring");
  const std::int64_t servers = p.servers, workers = ranks - servers, needed = async ? 1 : p.backup_workers + 1;
  if (workers < needed)
    throw Error(
        cat(what, " has parallel.servers: ", servers, " on ranks of their own, which leaves ",
            std::max<std::int64_t>(0, workers), " of ", ranks, " ranks as workers, expected ", needed, " or more"),
        cat("start ", servers + needed, " ranks or more"));
  const ServerPlan plan{.servers = static_cast<int>(p.servers), .workers = static_cast<int>(workers), .async = async};
  share_of("batch.global", e.batch.global, plan.workers);
  return plan;
}

Experiment experiment_of_update(const Experiment& experiment, const std::optional<ServerPlan>& servers) {
  Experiment update = experiment;
  if (!servers || !servers->async) return update;
  update.batch.global = share_of("batch.global", experiment.batch.global, servers->workers);
  if (experiment.batch.largest > 0)
    update.batch.largest = share_of("batch.largest", experiment.batch.largest, servers->workers);
  for (const std::int64_t batch : batches_on_course(experiment.batch))
    if (batch % servers->workers != 0)
      throw Error(cat("batch.schedule has a batch of ", batch, ", but ", servers->workers,
                      " workers share it, expected a multiple of ", servers->workers),
                  cat("Numbers of workers that divide it: ", nearest_divisors(batch, servers->workers),
                      "; or set another batch.schedule"));
  return update;
}

RunSplit plan_split(const Experiment& experiment, const BatchConfig& batch, const Graph& model, int ranks,
                    const std::optional<ServerPlan>& servers) {
  const int equal = !servers ? ranks : servers->async ? 1 : servers->workers;
  const std::int64_t replicas = equal / stages_of(experiment.parallel);
  const RunSplit split{.servers = servers,
                       .cuts = cuts_of(experiment.parallel, model, equal),
                       .shares = batch_shares(batch, replicas, model.has_batch_norm(), experiment.noise.small_batch),
                       .norm_group = model.has_batch_norm() ? batch.worker : 0};
  check_ranks(experiment, split, ranks);
  return split;
}

RunSplit plan_evaluation_split(const BatchConfig& batch, const Graph& model, int ranks) {
  return {.shares = batch_shares(batch, ranks, model.has_batch_norm()),
          .norm_group = model.has_batch_norm() ? batch.worker : 0};
}

std::int64_t stages_of(const ParallelConfig& parallel) {
  return parallel.kind == "pipeline" ? parallel.stages : 1;
}

LoaderPlan for_rank(const RunPlan& plan, LoaderPlan loader, int rank) {
  const auto stages = static_cast<int>(plan.stages());
  loader.has_pixels = rank % stages == 0;
  return for_rank(std::move(loader), rank / stages);
}

LoaderPlan for_rank(LoaderPlan plan, int rank) {
  plan.member = rank % plan.span;
  plan.first_row = (rank - plan.member) * plan.rows;
  return plan;
}

LoaderPlan train_loader_of(const RunPlan& plan, int rank) {
  const bool whole = plan.servers && (plan.servers->async || rank < plan.servers->servers);
  return for_rank(plan, plan.train_loader, whole ? 0 : rank - first_worker(plan));
}

ModelPart part_of(const RunPlan& plan, int rank) {
  ModelPart part;
  part.stages = plan.stages();
  if (part.is_whole()) {
    part.graph = plan.graph;
    part.parameters = plan.parameters;
    return part;
  }
  part.stage = rank % part.stages;
  const StageNodes nodes = nodes_of(plan, part.stage);
  part.graph = plan.graph.part(nodes.first, nodes.last);
  part.parameters = part.graph.parameters();
  const std::int64_t most = largest_batch(plan).accumulation;
  part.slots = stage_slots(plan.experiment.parallel.schedule, part.stage, part.stages, most);
  return part;
}

std::unique_ptr<Program> compile_part(const RunPlan& plan, const ModelPart& part, Backend& backend, PassMode mode,
                                      std::int64_t micro_batch) {
  const std::int64_t group = mode == PassMode::inference ? 0 : plan.norm_group;
  const std::int64_t slots = mode == PassMode::training ? part.slots : 1;
  return backend.compile(part.graph, micro_batch, plan.precision, mode, group, static_cast<int>(slots));
}

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
