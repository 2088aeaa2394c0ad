#include "run/memory.h"

#include <algorithm>
#include <iterator>

#include "cluster/device_communicator.h"
#include "optim/optimizer.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/split.h"

namespace ringtrain {
namespace {

using Items = std::vector<MemoryItem>;

std::int64_t float_bytes(std::int64_t values) {
  return values * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t gradient_bytes(const RunPlan& plan, const ModelPart& part) {
  return float_bytes(gradient_elements(plan, part.parameters));
}

// Adds the weights, the gradients, and what the optimizer keeps of them.
void add_model(const RunPlan& plan, const ModelPart& part, const Backend& backend, int rank, Items& items) {
  const std::int64_t flat_bytes = float_bytes(part.parameters.size());
  items.push_back({"weights", flat_bytes});
  items.push_back({"gradients", gradient_bytes(plan, part)});
  const auto own =
      owned_by(rank, owners(plan.experiment.parallel, plan.parameters.trained(),
                            bucket_elements(plan, backend.on_device()), static_cast<int>(plan.batch.ranks)));
  const std::int64_t own_bytes = float_bytes(Optimizer::state_elements(part.parameters, own));
  for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, plan.experiment.average))
    items.push_back({"optimizer state " + name, own_bytes});
  if (plan.servers && !plan.servers->async && rank < plan.servers->servers)
    items.push_back({"gradients of one worker, before they are added up", gradient_bytes(plan, part)});
  if (Optimizer::averages(plan.experiment.optimizer, plan.experiment.average))
    items.push_back({"averaged weights", flat_bytes});
}

void add_muon(const RunPlan& plan, Backend& backend, Items& items) {
  if (plan.experiment.optimizer.kind != "muon") return;
  const MuonLayout layout = muon_layout(plan.parameters, 1);
  items.push_back({"directions of Muon", float_bytes(layout.size)});
  items.push_back({"Newton-Schulz", backend.make_orthogonalizer(layout.matrices)->bytes()});
}

// Adds the gradients that wait for others in a fixed order, or that the noise scale compares.
void add_other_gradients(const RunPlan& plan, const ModelPart& part, const Backend& backend, Items& items) {
  if (const std::int64_t nodes = waiting_nodes(plan); nodes > 0)
    items.push_back({"gradients of passes, added in a fixed order", nodes * gradient_bytes(plan, part)});
  if (has_fixed_order(plan.experiment) && backend.on_device() && plan.batch.ranks > 1 &&
      plan.experiment.communication.library != "mpi")
    items.push_back({"gradients of other ranks, in a fixed order", nccl_arrival_bytes(bucket_elements(plan, true))});
  if (plan.measures_noise && !has_fixed_order(plan.experiment) && largest_batch(plan).small_batches() > 1)
    items.push_back({"gradients before a small batch, for the noise scale", float_bytes(part.parameters.trained())});
}

// What the programs of a rank need.
struct ProgramMemory {
  Items items;
  std::int64_t crossing = 0;    // activations and gradients at the cuts of a pipeline
  std::int64_t travelling = 0;  // activations that wait in the host's memory

  void add(const Program& program) {
    for (const MemoryItem& item : program.memory()) items.push_back(item);
    crossing += pass_order_bytes(program.part_bytes());
    travelling += program.host_traffic().bytes;
  }
};

ProgramMemory memory_of_programs(const RunPlan& plan, const ModelPart& part, Backend& backend) {
  ProgramMemory memory;
  memory.add(*compile_part(plan, part, backend, PassMode::training, plan.batch.micro_batch));
  if (plan.has_validation) memory.add(*compile_part(plan, part, backend, PassMode::inference, plan.batch.micro_batch));
  if (plan.norm_samples > 0)
    memory.add(*compile_part(plan, part, backend, PassMode::statistics, plan.norm_loader.micro_batch));
  return memory;
}

void add_carried_state(const RunPlan& plan, const ModelPart& part, Items& items) {
  if (!plan.carries_state) return;
  const std::int64_t bytes = float_bytes(plan.batch.rows_per_rank * part.graph.state_size());
  items.push_back({"carried state", bytes});
  if (plan.has_validation) items.push_back({"carried state, evaluation", bytes});
}

// Adds the data sets and the loaders that read them.
void add_data(const RunPlan& plan, int rank, Items& items) {
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
}

}  // namespace

std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank) {
  const ModelPart part = part_of(plan, rank);
  Items items;
  add_model(plan, part, backend, rank, items);
  add_muon(plan, backend, items);
  add_other_gradients(plan, part, backend, items);
  const ProgramMemory programs = memory_of_programs(plan, part, backend);
  std::ranges::copy(programs.items, std::back_inserter(items));
  std::ranges::copy(backend.overhead(), std::back_inserter(items));
  for (MemoryItem& item : items) item.on_device = backend.on_device();

  // The rest is in the host's memory, but for what a stage sends to the next.
  if (programs.travelling > 0)
    items.push_back({"training: activations that wait in the host's memory", programs.travelling});
  if (programs.crossing > 0)
    items.push_back({"activations and gradients at the cuts", programs.crossing, backend.on_device()});
  add_carried_state(plan, part, items);
  add_data(plan, rank, items);
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
