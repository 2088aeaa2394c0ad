#include "run/split.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "nn/graph.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"

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

std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks) {
  // The value is in MiB. Smaller messages spend more time waiting than travelling.
  const double own_share = communication.order == "fixed" ? 0 : static_cast<double>(ranks) * 4 / 1024;
  const double mib =
      communication.bucket_mib > 0 ? communication.bucket_mib : std::max(on_device ? 16.0 : 1.0, own_share);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(mib * (1 << 20) / sizeof(float)));
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

StageNodes nodes_of(const RunPlan& plan, std::int64_t stage) {
  const auto at = static_cast<std::size_t>(stage);
  return {stage == 0 ? 0 : plan.cuts[at - 1],
          stage + 1 == plan.stages() ? static_cast<int>(plan.graph.nodes().size()) : plan.cuts[at]};
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

}  // namespace ringtrain
