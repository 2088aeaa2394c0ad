#include "run/plan.h"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/table.h"
#include "cluster/nccl_communicator.h"
#include "config/branch.h"
#include "config/schema.h"
#include "models/models.h"
#include "optim/optimizer.h"
#include "parallel/owners.h"
#include "parallel/pass_order.h"
#include "run/adascale_plan.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/memory_plan.h"
#include "run/norm_plan.h"
#include "run/points.h"
#include "run/rank_checks.h"
#include "run/server_plan.h"
#include "run/stage_plan.h"

namespace ringtrain {

namespace {

TextOrder text_order(const Experiment& e, const DatasetIndex& index) {
  if (index.is_image() || !index.text.running_text) return TextOrder::rows;
  return e.data.order == "streams" ? TextOrder::streams : TextOrder::windows;
}

ImageTransform image_transform(const DataConfig& data) {
  ImageTransform t;
  t.size = data.image_size;
  t.resize = data.resize;
  t.augmentation = data.augmentation == "none"       ? Augmentation::none
                   : data.augmentation == "pad_crop" ? Augmentation::pad_crop
                                                     : Augmentation::random_resized_crop;
  t.scale_low = data.crop_area[0];
  t.scale_high = data.crop_area[1];
  t.ratio_low = data.crop_ratio[0];
  t.ratio_high = data.crop_ratio[1];
  t.pad = data.pad;
  t.flip = data.flip;
  return t;
}

LoaderPlan loader_plan(const RunPlan& plan, const DatasetIndex& index, bool evaluation) {
  const Experiment& e = plan.experiment;
  LoaderPlan l;
  l.seed = e.seed;
  l.order = text_order(e, index);
  l.sequence = plan.graph.sequence();
  l.mask_blanks = e.data.blanks == "masked";
  l.image = image_transform(e.data);
  l.reads = e.data.reads;
  l.global_batch = plan.batch.global;
  l.rows = plan.batch.rows_per_rank;
  l.micro_batch = plan.batch.micro_batch;
  l.evaluation = evaluation;
  l.share = evaluation ? 1 : e.data.share;
  l.threads = e.data.loader_threads;
  l.prefetch = e.data.prefetch;
  return l;
}

void check_same_kind(const DatasetIndex& train, const DatasetIndex& validation) {
  if (train.kind != validation.kind)
    throw Error(cat("data.validation ", validation.prefix, " is of kind ", validation.kind, ", data.train ",
                    train.prefix, " of kind ", train.kind),
                "both must be images, or both text");
  if (train.image.class_ids != validation.image.class_ids)
    throw Error(cat("data.validation ", validation.prefix, " has other classes than data.train ", train.prefix),
                "convert both in one run of ringtrain-data, or with the same --class-list");
  if (train.text.vocabulary != validation.text.vocabulary ||
      train.text.context_length != validation.text.context_length ||
      train.text.running_text != validation.text.running_text)
    throw Error(cat("data.validation ", validation.prefix, " has another vocabulary or context length than data.train ",
                    train.prefix),
                "convert both in one run of ringtrain-data");
}

// Throws Error for keys that have no effect on this kind of data.
void check_keys_apply(const Experiment& e, const DatasetIndex& index) {
  const Experiment plain;
  for (const Field& field : schema())
    if (!has_effect_on(field, index.content()) && value_text(field, e) != value_text(field, plain))
      throw Error(
          cat(field.key, ": ", value_text(field, e), " has no effect: ", index.prefix, " holds ", index.content()),
          "leave the key out");
}

void check_stated(const char* key, std::int64_t stated, std::int64_t found, const std::string& prefix) {
  if (stated > 0 && stated != found)
    throw Error(cat(key, " is ", stated, ", but ", prefix, " has ", found),
                cat("give the data set that the experiment means, or correct ", key));
}

// Returns the bytes of weights, averaged weights, gradients, optimizer state and Muon's vectors, and of the vector that
// the noise scale needs when passes are accumulated.
std::int64_t vector_bytes(const ParameterTable& parameters, const Experiment& e) {
  const std::int64_t states =
      std::ssize(Optimizer::state_names(e.optimizer, e.average)) + (e.noise.every_steps > 0 ? 1 : 0);
  const std::int64_t full = Optimizer::averages(e.optimizer, e.average) ? 3 : 2;
  const std::int64_t muons = e.optimizer.kind == "muon" ? 2 * muon_layout(parameters, 1).size : 0;  // the largest size
  const std::int64_t elements = full * parameters.size() + states * parameters.trained() + muons;
  return elements * static_cast<std::int64_t>(sizeof(float));
}

SampleShape sample_shape(const Experiment& e, const DatasetIndex& train) {
  if (!train.is_image())
    return {train.text.running_text ? e.data.sequence : train.text.context_length,
            static_cast<std::int64_t>(train.text.vocabulary.size())};
  const std::vector<double>& mean = e.data.mean.empty() ? train.image.mean : e.data.mean;
  const std::vector<double>& std = e.data.std.empty() ? train.image.std : e.data.std;
  if (mean.size() != 3 || std.size() != 3)
    throw Error(
        cat("data.mean and data.std need 3 values, one per channel; there are ", mean.size(), " and ", std.size()));
  return {0, 0, e.data.image_size, std::ssize(train.image.class_ids), mean, std};
}

}  // namespace

namespace {

// Returns the common part of a plan for training and for evaluation. `small_batch` is noise.small_batch if it matters,
// otherwise 0. `batch` contains the changes of the batch that this run may have. `stages` is the number of stages of a
// pipeline; 1: every rank computes the whole model.
RunPlan make_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation, int ranks,
                  Backend& backend, std::int64_t recorded_micro_batch, std::int64_t small_batch, BatchConfig batch,
                  std::int64_t stages = 1) {
  // This check comes before the keys are checked, because with the wrong model or data most keys would be wrong.
  check_model_fits(experiment.model, train.is_image());
  RunPlan p;
  p.experiment = experiment;
  p.train = train;
  if (validation != nullptr) {
    check_same_kind(train, *validation);
    check_stated("data.validation_samples", experiment.data.validation_samples, validation->total, validation->prefix);
    p.validation = *validation;
    p.has_validation = true;
  }
  check_keys_apply(experiment, train);
  check_stated("data.classes", experiment.data.classes, std::ssize(train.image.class_ids), train.prefix);
  p.precision = precision_of(experiment.precision);
  p.graph = build_model(experiment.model, sample_shape(experiment, train), experiment.loss);
  p.parameters = p.graph.parameters();
  mark_named_blocks(experiment, p.graph);
  if (stages > 1) {
    plan_stages(p, stages, ranks);
    ranks = static_cast<int>(ranks / stages);
  }

  p.batches = batches_on_course(batch);
  std::int64_t common = 0;
  for (const std::int64_t b : p.batches) common = std::gcd(common, b);
  const std::int64_t rows = small_batch > 0 ? small_batch : std::max<std::int64_t>(1, common / std::max(1, ranks));
  if (p.graph.has_batch_norm()) p.norm_group = batch.worker;
  // If ranks share batch norm's workers, the micro-batch cannot be chosen.
  const bool shares = p.norm_group > 0 && ranks_per_worker(batch, ranks) > 1;
  if (batch.micro == 0 && !shares) batch.micro = stated_micro_batch(experiment);
  if (batch.micro == 0 && !shares && recorded_micro_batch > 0 && rows % recorded_micro_batch == 0 &&
      (p.norm_group == 0 || recorded_micro_batch % p.norm_group == 0))
    batch.micro = recorded_micro_batch;
  std::int64_t preferred =
      batch.micro > 0 ? batch.micro
      : shares        ? 1
                      : backend.preferred_micro_batch(p.graph, p.precision,
                                                      {.rows = rows,
                                                       .group = p.norm_group,
                                                       .vector_bytes = vector_bytes(p.parameters, experiment),
                                                       .evaluates = p.has_validation,
                                                       .measures_norms = experiment.evaluate.norm_samples > 0});
  if (batch.micro == 0) preferred = std::max<std::int64_t>(1, std::min(preferred, rows / passes_that_fill(stages)));
  p.batch = batch_plan(batch, ranks, preferred, p.graph.has_batch_norm(), small_batch);
  p.train_loader = loader_plan(p, train, false);
  p.train_loader.span = p.batch.span;
  if (p.has_validation) p.validation_loader = loader_plan(p, p.validation, true);
  p.carries_state = p.train_loader.order == TextOrder::streams;
  return p;
}

}  // namespace

RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch) {
  BatchConfig batch = experiment.batch;
  batch.schedule.clear();
  batch.follow_noise = 0;
  batch.micro = stated_micro_batch(experiment);
  if (text_order(experiment, train) == TextOrder::streams)
    ranks = static_cast<int>(dividing_ranks(batch, ranks));
  else
    batch = evaluation_batch(batch, ranks, recorded_micro_batch);
  return make_plan(experiment, train, validation, ranks, backend, recorded_micro_batch, 0, batch);
}

RunPlan make_equal_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                        int ranks, Backend& backend, std::int64_t recorded_micro_batch,
                        const std::optional<BranchPoint>& branch) {
  const NoiseConfig& noise = experiment.noise;
  check_parallel(experiment, ranks);
  RunPlan p = make_plan(experiment, train, validation, ranks, backend, recorded_micro_batch, noise.small_batch,
                        experiment.batch, stages_of(experiment.parallel));
  if (branch) p.branch = *branch;
  check_stated("data.train_samples", experiment.data.train_samples, train.total, train.prefix);
  p.samples_per_epoch = samples_per_epoch(train, p.train_loader);
  check_norm_values(p);
  plan_norms(p);
  p.measures_noise = noise.every_steps > 0 && p.batch.small_batch < p.batches.back();
  p.noise_half_life =
      static_cast<double>(noise.half_life > 0 ? noise.half_life : 100 * source_experiment(experiment).batch.global);
  p.patience = experiment.batch.patience > 0 ? experiment.batch.patience : std::llround(p.noise_half_life);
  plan_course(p);
  if (experiment.optimizer.adascale) measure_by_base_batch(p);
  learning_rate(experiment.learning_rate, rate_schedule(p), 0);  // an incomplete schedule throws Error here
  const bool recorded = recorded_micro_batch > 0 && p.batch.micro_batch == recorded_micro_batch;
  const std::int64_t stated = stated_micro_batch(experiment);
  plan_memory(p, backend, stated > 0 ? stated : recorded ? recorded_micro_batch : 0);
  check_fixed_order(p);
  return p;
}

RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, std::int64_t recorded_micro_batch,
                      const std::optional<BranchPoint>& branch) {
  const std::optional<ServerPlan> servers = server_plan(experiment, ranks, backend.on_device());
  const Experiment planned = servers ? experiment_of_update(experiment, *servers) : experiment;
  const int equal_ranks = !servers ? ranks : servers->async ? 1 : servers->workers;
  RunPlan p = make_equal_plan(planned, train, validation, equal_ranks, backend, recorded_micro_batch, branch);
  check_ranks(experiment, p.batch, ranks, servers.has_value(), p.stages());
  check_flipped_tensor(experiment, p.parameters);
  if (const std::int64_t count = experiment.parallel.servers, weights = p.parameters.trained(); count > weights)
    throw Error(cat("parallel.servers is ", count, ", but the model has ", weights,
                    " weights, expected at most as many servers as weights"),
                "lower parallel.servers");
  if (!servers) return p;
  p.experiment = experiment;
  p.servers = servers;
  p.measures_noise = false;
  p.train_loader.on_request = true;
  if (servers->async && p.has_validation) p.validation_loader.global_batch *= servers->workers;
  return p;
}

DatasetIndex stated_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples) {
  if (samples == 0 || experiment.data.classes == 0)
    throw Error(cat(prefix, ": there is no data set, and the experiment does not state its size"),
                "convert the data with bin/ringtrain-data, or state data.train_samples, data.validation_samples and "
                "data.classes to plan without it");
  DatasetIndex index;
  index.prefix = prefix;
  index.kind = "image";
  index.total = samples;
  index.image.class_ids.resize(static_cast<std::size_t>(experiment.data.classes));
  index.image.mean = {0.485, 0.456, 0.406};
  index.image.std = {0.229, 0.224, 0.225};
  index.shards.resize(1);
  index.shards[0].count = samples;
  return index;
}

std::string experiment_id(const RunPlan& plan) {
  std::string text;
  for (const Field& field : schema())
    if (decides_what_is_learned(field, plan.experiment))
      text += cat(field.key, "=", value_text(field, plan.experiment), "\n");
  text += cat("data.train=", plan.train.dataset_uuid, " ", plan.train.split, "\n");
  if (plan.has_validation)
    text += cat("data.validation=", plan.validation.dataset_uuid, " ", plan.validation.split, "\n");
  if (plan.servers) text += cat("parallel.workers=", plan.servers->workers, "\n");
  if (is_branch(plan.experiment)) text += cat("branch.from=", plan.branch.source, "\n");
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return digits;
}

std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch) {
  std::int64_t steps = 0;
  if (stop.epochs > 0)
    steps = std::max<std::int64_t>(1, std::llround(stop.epochs * static_cast<double>(steps_per_epoch)));
  if (stop.steps > 0) steps = steps > 0 ? std::min(steps, stop.steps) : stop.steps;
  return steps;
}

std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks) {
  // The value is in MiB. Smaller messages spend more time waiting than travelling.
  const double own_share = communication.order == "fixed" ? 0 : static_cast<double>(ranks) * 4 / 1024;
  const double mib =
      communication.bucket_mib > 0 ? communication.bucket_mib : std::max(on_device ? 16.0 : 1.0, own_share);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(mib * (1 << 20) / sizeof(float)));
}

std::string model_fingerprint(const RunPlan& plan) {
  std::string text = cat(plan.experiment.model.kind, ", ", plan.graph.sequence(), " positions;");
  if (plan.train.is_image()) text = cat(plan.experiment.model.kind, ";");
  for (const Parameter& p : plan.parameters.all()) {
    text += " " + p.name + " [";
    for (std::size_t i = 0; i < p.shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(p.shape[i]);
    text += "]";
  }
  text += plan.train.is_image() ? "; classes:" : "; symbols:";
  for (const std::string& symbol : plan.train.text.vocabulary) text += " '" + symbol + "'";
  for (const std::string& id : plan.train.image.class_ids) text += " '" + id + "'";
  return text;
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
  return values * static_cast<std::int64_t>(sizeof(float));
}

std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank) {
  const ModelPart part = part_of(plan, rank);
  const auto flat_bytes = part.parameters.size() * static_cast<std::int64_t>(sizeof(float));
  const auto state_bytes = part.parameters.trained() * static_cast<std::int64_t>(sizeof(float));
  std::vector<MemoryItem> items = {
      {"weights", flat_bytes},
      {"gradients", gradient_elements(plan, part.parameters) * static_cast<std::int64_t>(sizeof(float))}};
  const auto own =
      owned_by(rank, owners(plan.experiment.parallel, plan.parameters.trained(),
                            bucket_elements(plan.experiment.communication, backend.on_device(), plan.batch.ranks),
                            static_cast<int>(plan.batch.ranks)));
  const std::int64_t own_bytes =
      Optimizer::state_elements(part.parameters, own) * static_cast<std::int64_t>(sizeof(float));
  for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, plan.experiment.average))
    items.push_back({"optimizer state " + name, own_bytes});
  if (plan.servers && !plan.servers->async && rank < plan.servers->servers)
    items.push_back({"gradients of one worker, before they are added up",
                     gradient_elements(plan, part.parameters) * static_cast<std::int64_t>(sizeof(float))});
  const bool averages = Optimizer::averages(plan.experiment.optimizer, plan.experiment.average);
  if (averages) items.push_back({"averaged weights", flat_bytes});
  if (plan.experiment.optimizer.kind == "muon") {
    const MuonLayout layout = muon_layout(plan.parameters, 1);
    items.push_back({"directions of Muon", layout.size * static_cast<std::int64_t>(sizeof(float))});
    items.push_back({"Newton-Schulz", backend.make_orthogonalizer(layout.matrices)->bytes()});
  }
  const std::int64_t nodes = waiting_nodes(plan);
  if (nodes > 0)
    items.push_back({"gradients of passes, added in a fixed order",
                     nodes * gradient_elements(plan, part.parameters) * static_cast<std::int64_t>(sizeof(float))});
  if (has_fixed_order(plan.experiment) && backend.on_device() && plan.batch.ranks > 1 &&
      plan.experiment.communication.library != "mpi")
    items.push_back({"gradients of other ranks, in a fixed order",
                     nccl_arrival_bytes(bucket_elements(plan.experiment.communication, true, plan.batch.ranks))});
  if (plan.measures_noise && !has_fixed_order(plan.experiment) &&
      resized(plan.batch, plan.batches.back()).small_batches() > 1)
    items.push_back({"gradients before a small batch, for the noise scale", state_bytes});
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
    const auto bytes = plan.batch.rows_per_rank * part.graph.state_size() * static_cast<std::int64_t>(sizeof(float));
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

bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs) {
  if (every_steps > 0 && position.step % every_steps == 0) return true;
  if (every_epochs <= 0) return false;
  const double interval = every_epochs * static_cast<double>(plan.schedule.steps_per_epoch);
  const double offset = offset_epochs * static_cast<double>(plan.schedule.steps_per_epoch);
  const auto intervals = [&](const Position& p) {
    return std::floor((plan.schedule.steps(p) - offset) / interval + 1e-9);
  };
  return intervals(position) >= 0 && intervals(position) > intervals(before);
}

std::string source_text(const BranchPoint& point) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(point.source));
  return digits;
}

}  // namespace ringtrain
