#include "run/memory.h"

#include <algorithm>

#include "cluster/device_communicator.h"
#include "optim/optimizer.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/split.h"

namespace ringtrain {
namespace {

std::int64_t float_bytes(std::int64_t values) {
  return values * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank) {
  const ModelPart part = part_of(plan, rank);
  const std::int64_t flat_bytes = float_bytes(part.parameters.size());
  const std::int64_t gradient_bytes = float_bytes(gradient_elements(plan, part.parameters));
  std::vector<MemoryItem> items = {{"weights", flat_bytes}, {"gradients", gradient_bytes}};
  const auto own =
      owned_by(rank, owners(plan.experiment.parallel, plan.parameters.trained(),
                            bucket_elements(plan, backend.on_device()), static_cast<int>(plan.batch.ranks)));
  const std::int64_t own_bytes = float_bytes(Optimizer::state_elements(part.parameters, own));
  for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, plan.experiment.average))
    items.push_back({"optimizer state " + name, own_bytes});
  if (plan.servers && !plan.servers->async && rank < plan.servers->servers)
    items.push_back({"gradients of one worker, before they are added up", gradient_bytes});
  if (Optimizer::averages(plan.experiment.optimizer, plan.experiment.average))
    items.push_back({"averaged weights", flat_bytes});
  if (plan.experiment.optimizer.kind == "muon") {
    const MuonLayout layout = muon_layout(plan.parameters, 1);
    items.push_back({"directions of Muon", float_bytes(layout.size)});
    items.push_back({"Newton-Schulz", backend.make_orthogonalizer(layout.matrices)->bytes()});
  }
  if (const std::int64_t nodes = waiting_nodes(plan); nodes > 0)
    items.push_back({"gradients of passes, added in a fixed order", nodes * gradient_bytes});
  if (has_fixed_order(plan.experiment) && backend.on_device() && plan.batch.ranks > 1 &&
      plan.experiment.communication.library != "mpi")
    items.push_back({"gradients of other ranks, in a fixed order", nccl_arrival_bytes(bucket_elements(plan, true))});
  if (plan.measures_noise && !has_fixed_order(plan.experiment) && largest_batch(plan).small_batches() > 1)
    items.push_back({"gradients before a small batch, for the noise scale", float_bytes(part.parameters.trained())});
  std::int64_t crossing = 0, travelling = 0;
  const auto add_program = [&](PassMode mode, std::int64_t micro_batch) {
    const std::unique_ptr<Program> program = compile_part(plan, part, backend, mode, micro_batch);
    for (const MemoryItem& item : program->memory()) items.push_back(item);
    crossing += pass_order_bytes(program->part_bytes());
    travelling += program->host_traffic().bytes;
  };
  add_program(PassMode::training, plan.batch.micro_batch);
  if (plan.has_validation) add_program(PassMode::inference, plan.batch.micro_batch);
  if (plan.norm_samples > 0) add_program(PassMode::statistics, plan.norm_loader.micro_batch);
  for (const MemoryItem& item : backend.overhead()) items.push_back(item);
  for (MemoryItem& item : items) item.on_device = backend.on_device();
  if (travelling > 0) items.push_back({"training: activations that wait in the host's memory", travelling});
  if (crossing > 0) items.push_back({"activations and gradients at the cuts", crossing, backend.on_device()});
  if (plan.carries_state) {
    const std::int64_t bytes = float_bytes(plan.batch.rows_per_rank * part.graph.state_size());
    items.push_back({"carried state", bytes});
    if (plan.has_validation) items.push_back({"carried state, evaluation", bytes});
  }
  items.push_back({"loader, training", Loader::memory_bytes(plan.train, for_rank(plan, plan.train_loader, rank))});
  items.push_back({"data set, training (one copy for the ranks of a node)", dataset_bytes(plan.train)});
  if (plan.train.is_image() && plan.samples_per_epoch < plan.train.total) {
    const std::int64_t loaders = plan.norm_samples > 0 ? 2 : 1,
                       bytes = static_cast<std::int64_t>(sizeof(std::uint32_t));
    items.push_back({"samples of data.share", loaders * plan.samples_per_epoch * bytes});
  }
  if (plan.has_validation) {
    items.push_back(
        {"loader, evaluation", Loader::memory_bytes(plan.validation, for_rank(plan, plan.validation_loader, rank))});
    items.push_back({"data set, evaluation (one copy for the ranks of a node)", dataset_bytes(plan.validation)});
  }
  if (plan.norm_samples > 0)
    items.push_back({"loader, batch norm's statistics", Loader::memory_bytes(plan.train, plan.norm_loader)});
  if (rank == 0) items.push_back({"checkpoint being written, rank 0", checkpoint_bytes(plan)});
  return items;
}

std::int64_t limited_bytes(const std::vector<MemoryItem>& memory, const Backend& backend) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : memory)
    if (item.on_device || !backend.on_device()) bytes += item.bytes;
  return bytes;
}

std::int64_t checkpoint_bytes(const RunPlan& plan) {
  const bool averages = Optimizer::averages(plan.experiment.optimizer, plan.experiment.average);
  std::int64_t values = 0;
  for (const Parameter& p : plan.parameters.all()) {
    values += p.count;
    if (p.kind == ParameterKind::statistic && plan.norm_samples > 0) values += p.count;
    if (p.kind == ParameterKind::statistic) continue;
    if (averages) values += p.count;
    for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, p, plan.experiment.average))
      if (!name.empty()) values += p.count;
  }
  if (plan.carries_state) values += plan.batch.global * plan.graph.state_size();
  return float_bytes(values);
}

}  // namespace ringtrain
