#include "run/stage_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"
#include "nn/cuts.h"
#include "parallel/pass_order.h"
#include "run/memory_plan.h"

namespace ringtrain {
namespace {

std::string stage_layers(const std::vector<ModelLayer>& layers, int first, int last) {
  std::string from, to;
  for (const ModelLayer& layer : layers) {
    if (layer.first < first || layer.first >= last) continue;
    if (from.empty()) from = layer.name;
    to = layer.name;
  }
  return from == to ? from : from + " to " + to;
}

int first_node(const RunPlan& plan, std::int64_t stage) {
  return stage == 0 ? 0 : plan.cuts[static_cast<std::size_t>(stage) - 1];
}
int last_node(const RunPlan& plan, std::int64_t stage) {
  return stage + 1 == plan.stages() ? static_cast<int>(plan.graph.nodes().size())
                                    : plan.cuts[static_cast<std::size_t>(stage)];
}

double predicted_seconds(const std::vector<ModelLayer>& layers, int first, int last) {
  const auto place = [&](int node) {
    return static_cast<std::size_t>(
        std::ranges::find_if(layers, [&](const ModelLayer& layer) { return layer.first >= node; }) - layers.begin());
  };
  return stage_seconds(layers, place(first), place(last));
}

}  // namespace

std::int64_t stages_of(const ParallelConfig& parallel) {
  return parallel.kind == "pipeline" ? parallel.stages : 1;
}

std::int64_t passes_that_fill(std::int64_t stages) {
  return stages > 1 ? 4 * stages : 1;
}

void plan_stages(RunPlan& plan, std::int64_t stages, int ranks) {
  if (ranks % stages != 0)
    throw Error(cat("parallel.stages ", stages, " does not divide the ", ranks, ranks == 1 ? " rank" : " ranks"),
                cat("start a multiple of ", stages, " ranks: each replica of the model takes ", stages));
  const ParallelConfig& parallel = plan.experiment.parallel;
  const std::vector<ModelLayer> layers = layers_of(plan.graph);
  const bool automatic = parallel.cuts == std::vector<std::string>{"auto"};
  for (const std::size_t layer :
       automatic ? fastest_cuts(layers, stages) : named_cuts(layers, plan.graph, parallel.cuts, stages))
    plan.cuts.push_back(layers[layer].first);
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
  part.graph = plan.graph.part(first_node(plan, part.stage), last_node(plan, part.stage));
  part.parameters = part.graph.parameters();
  const std::int64_t most = resized(plan.batch, plan.batches.back()).accumulation;
  part.slots = stage_slots(plan.experiment.parallel.schedule, part.stage, part.stages, most);
  return part;
}

std::unique_ptr<Program> compile_part(const RunPlan& plan, const ModelPart& part, Backend& backend, PassMode mode,
                                      std::int64_t micro_batch) {
  const std::int64_t group = mode == PassMode::inference ? 0 : plan.norm_group;
  if (part.is_whole()) return backend.compile(part.graph, micro_batch, plan.precision, mode, group);
  const std::int64_t slots = mode == PassMode::training ? part.slots : 1;
  return backend.compile_part(part.graph, micro_batch, plan.precision, mode, group, static_cast<int>(slots));
}

std::string describe_ranks(const RunPlan& plan) {
  const auto counted = [](std::int64_t count, const char* noun) {
    return cat(count, " ", noun, count == 1 ? "" : "s");
  };
  if (plan.servers) return counted(plan.servers->servers + plan.servers->workers, "rank");
  const std::string ranks = counted(plan.batch.ranks * plan.stages(), "rank");
  if (plan.stages() == 1) return ranks;
  return cat(ranks, " = ", counted(plan.batch.ranks, "replica"), " of ", plan.stages(), " stages");
}

std::string describe_stages(const RunPlan& plan, Backend& backend) {
  const std::int64_t stages = plan.stages();
  if (stages == 1) return "";
  const std::vector<ModelLayer> layers = layers_of(plan.graph);
  double all = 0;
  for (std::int64_t s = 0; s < stages; ++s) all += predicted_seconds(layers, first_node(plan, s), last_node(plan, s));
  Table t;
  t.section(cat("pipeline, ", plan.experiment.parallel.schedule));
  for (std::int64_t s = 0; s < stages; ++s) {
    const int first = first_node(plan, s), last = last_node(plan, s);
    const ModelPart part = part_of(plan, static_cast<int>(s));
    const std::int64_t bytes = limited_bytes(rank_memory(plan, backend, static_cast<int>(s)), backend);
    const PartBytes crossing =
        compile_part(plan, part, backend, PassMode::training, plan.batch.micro_batch)->part_bytes();
    t.row(cat("stage ", s),
          cat(stage_layers(layers, first, last), ": ", with_thousands(part.parameters.count()), " parameters, ",
              readable_bytes(static_cast<double>(bytes)),
              backend.on_device() ? " of the GPU's memory per rank, " : " per rank, ",
              with_digits(100 * predicted_seconds(layers, first, last) / all, 3), " % of the predicted time, ",
              part.slots, part.slots == 1 ? " micro-batch" : " micro-batches", " in flight"));
    if (crossing.activations_out > 0)
      t.row("", cat("to stage ", s + 1, ": ", readable_bytes(static_cast<double>(crossing.activations_out)),
                    " of activations a micro-batch, ", readable_bytes(static_cast<double>(crossing.gradients_in)),
                    " of gradients back"));
  }
  const std::int64_t m = plan.batch.accumulation;
  t.row("bubble", cat("(K - 1) / (m + K - 1) = ", stages - 1, " / ", m + stages - 1, " = ",
                      with_digits(100 * bubble_share(stages, m), 3), " % of a step of ", m,
                      m == 1 ? " micro-batch" : " micro-batches"));
  return t.str();
}

}  // namespace ringtrain
