#include "run/plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/table.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "data/shard_files.h"
#include "models/models.h"
#include "nn/parameters.h"
#include "parallel/synchronizer.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/memory.h"
#include "run/passes.h"
#include "run/split.h"

namespace ringtrain {

namespace {

TextOrder text_order(const Experiment& e, const DatasetIndex& index) {
  if (index.is_image() || !index.text.running_text) return TextOrder::rows;
  return e.data.order == "streams" ? TextOrder::streams : TextOrder::windows;
}

ImageTransform image_transform(const DataConfig& data) {
  ImageTransform t;
  t.size = data.image_size;
  t.channels = data.channels;
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

SampleShape sample_shape(const Experiment& e, const DatasetIndex& train) {
  if (!train.is_image())
    return {train.text.running_text ? e.data.sequence : train.text.context_length,
            static_cast<std::int64_t>(train.text.vocabulary.size())};
  // The statistics of grey pictures are three times the same. Those of colours are weighted as grey_of() weights them;
  // for the deviation, that is an approximation.
  const auto of_channels = [&](const std::vector<double>& stated, const std::vector<double>& own) {
    if (!stated.empty() || e.data.channels == 3 || own.size() != 3) return stated.empty() ? own : stated;
    if (own[0] == own[1] && own[1] == own[2]) return std::vector{own[0]};
    return std::vector{0.299 * own[0] + 0.587 * own[1] + 0.114 * own[2]};
  };
  const std::vector<double> mean = of_channels(e.data.mean, train.image.mean),
                            std = of_channels(e.data.std, train.image.std);
  if (std::ssize(mean) != e.data.channels || std::ssize(std) != e.data.channels)
    throw Error(cat("data.mean and data.std need ", e.data.channels, e.data.channels == 1 ? " value" : " values",
                    ", one per channel (data.channels); there are ", mean.size(), " and ", std.size()));
  return {0, 0, e.data.image_size, std::ssize(train.image.class_ids), mean, std};
}

// Throws Error if the keys and the data sets do not fit together.
void check_data(const Experiment& e, const DatasetIndex& train, const DatasetIndex* validation) {
  // This check comes before the keys are checked, because with the wrong model or data most keys would be wrong.
  check_model_fits(e.model, train.is_image());
  if (validation != nullptr) {
    check_same_kind(train, *validation);
    check_stated("data.validation_samples", e.data.validation_samples, validation->total, validation->prefix);
  }
  check_keys_apply(e, train);
  check_stated("data.classes", e.data.classes, std::ssize(train.image.class_ids), train.prefix);
}

// Returns the model, with the blocks marked that memory.recompute names.
Graph model_of(const Experiment& e, const DatasetIndex& train) {
  Graph graph = build_model(e.model, sample_shape(e, train), e.loss);
  mark_named_blocks(e, graph);
  return graph;
}

RunTask task_of(const Experiment& e, const DatasetIndex& train, const DatasetIndex* validation, const Graph& model) {
  return {.experiment = e,
          .train = train,
          .validation = validation != nullptr ? *validation : DatasetIndex{},
          .has_validation = validation != nullptr,
          .parameters = model.parameters(),
          .precision = precision_of(e.precision),
          .carries_state = text_order(e, train) == TextOrder::streams};
}

// Throws Error if no tensor of the run can be the one that test.flip_bit_in names.
void check_flipped_tensor(const Experiment& experiment, const ParameterTable& parameters) {
  const std::string& name = experiment.test.flip_bit_in;
  if (name.empty()) return;
  const auto is_of = [&](const Parameter& p) { return name == weight_array(p) || is_state_array(name, p); };
  if (std::ranges::any_of(parameters.all(), is_of)) return;
  const Parameter& example = parameters.all().front();
  throw Error(cat("test.flip_bit_in is ", name, ", expected a tensor like ", weight_array(example), " or ",
                  state_array("momentum", example)),
              "Tensors are named as in checkpoints.");
}

}  // namespace

RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, const MicroBatchChoice& known,
                      const std::optional<BranchPoint>& branch) {
  const std::optional<ServerPlan> servers = server_plan(experiment, ranks, backend.on_device());
  check_data(experiment, train, validation);
  check_stated("data.train_samples", experiment.data.train_samples, train.total, train.prefix);
  const Experiment of_update = experiment_of_update(experiment, servers);
  const Graph model = model_of(experiment, train);

  const RunTask task = task_of(experiment, train, validation, model);
  check_servers(experiment.parallel, ranks, task.parameters.trained());
  const RunCourse course = plan_course(of_update, train, model.sequence(), branch);
  const RunSplit split = plan_split(experiment, of_update.batch, model, ranks, servers);
  check_norm_values(experiment, course, split, model);
  check_flipped_tensor(experiment, task.parameters);
  const RunPasses passes = plan_passes(task, course, split, model, backend, known);
  const RunPlan plan = {task, course, split, passes};
  check_fixed_order(plan);
  return plan;
}

RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch) {
  check_data(experiment, train, validation);
  const Graph model = model_of(experiment, train);
  const RunTask task = task_of(experiment, train, validation, model);
  BatchConfig batch = experiment.batch;
  batch.schedule.clear();
  batch.follow_noise = 0;
  if (batch.micro == 0 && has_fixed_order(experiment)) batch.micro = batch.worker;  // as in training
  const auto used = static_cast<int>(task.carries_state ? dividing_ranks(batch, ranks) : ranks);
  if (!task.carries_state) batch = evaluation_batch(batch, ranks, recorded_micro_batch);
  const RunCourse course{.batches = {batch.global}};
  const RunSplit split = plan_evaluation_split(batch, model, used);
  const MicroBatchChoice micro_batch =
      preferred_choice(task, split, model, backend, micro_batch_of_checkpoint(recorded_micro_batch));
  return {task, course, split, passes_of(task, course, split, model, micro_batch)};
}

LoaderPlan loader_plan(const Experiment& e, const DatasetIndex& index, std::int64_t sequence, const BatchPlan& batch,
                       bool evaluation) {
  LoaderPlan l;
  l.seed = e.seed;
  l.order = text_order(e, index);
  l.sequence = sequence;
  l.mask_blanks = e.data.blanks == "masked";
  l.image = image_transform(e.data);
  l.reads = e.data.reads;
  l.global_batch = batch.global;
  l.rows = batch.rows_per_rank;
  l.micro_batch = batch.micro_batch;
  l.evaluation = evaluation;
  l.share = evaluation ? 1 : e.data.share;
  l.threads = e.data.loader_threads;
  l.prefetch = e.data.prefetch;
  return l;
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

DatasetIndex planned_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples) {
  try {
    find_shards(prefix);
  } catch (const Error& e) {
    if (samples == 0 || experiment.data.classes == 0) throw;
    log_warning(e.what(), "; planning with the size that the experiment states");
    return stated_index(experiment, prefix, samples);
  }
  return read_dataset_index(prefix);
}

std::string experiment_id(const RunPlan& plan) {
  std::string text = deciding_keys(plan.experiment);
  text += cat("data.train=", plan.train.dataset_uuid, " ", plan.train.split, "\n");
  if (plan.has_validation)
    text += cat("data.validation=", plan.validation.dataset_uuid, " ", plan.validation.split, "\n");
  if (plan.servers) text += cat("parallel.workers=", plan.servers->workers, "\n");
  if (is_branch(plan.experiment)) text += cat("branch.from=", plan.branch.source, "\n");
  return printed("%016llx", static_cast<unsigned long long>(fnv1a(text)));
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
  for (const Parameter& p : plan.parameters.all()) text += cat(" ", p.name, " [", joined(p.shape), "]");
  text += plan.train.is_image() ? "; classes:" : "; symbols:";
  for (const std::string& symbol : plan.train.text.vocabulary) text += " '" + symbol + "'";
  for (const std::string& id : plan.train.image.class_ids) text += " '" + id + "'";
  return text;
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
  return printed("%016llx", static_cast<unsigned long long>(point.source));
}

}  // namespace ringtrain
