#include "run/task.h"

#include "base/error.h"
#include "base/log.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "data/shard_files.h"
#include "models/models.h"

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

}  // namespace

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

void check_training_data(const Experiment& e, const DatasetIndex& train, const DatasetIndex* validation) {
  check_data(e, train, validation);
  check_stated("data.train_samples", e.data.train_samples, train.total, train.prefix);
}

Graph model_of(const Experiment& e, const DatasetIndex& train) {
  Graph graph = build_model(e.model, sample_shape(e, train), e.loss);
  graph.recompute(named_blocks(e));
  graph.offload(e.memory.offload ? 1 : 0);
  return graph;
}

bool chooses_recomputation(const Experiment& e) {
  return e.memory.recompute == std::vector<std::string>{"auto"};
}

std::vector<std::string> named_blocks(const Experiment& e) {
  if (chooses_recomputation(e) || e.memory.recompute == std::vector<std::string>{"none"}) return {};
  return e.memory.recompute;
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

}  // namespace ringtrain
