#include "config/contradictions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "config/batch_plan.h"
#include "config/exclusions.h"
#include "config/rate_scaling.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {

Contradiction wrong_pair(const Experiment& e, std::string_view key, std::string_view other, std::string_view expected,
                         const std::string& hint, std::string_view other_is) {
  const std::string other_statement = other_is.empty() ? statement(other, e) : cat(other, " is ", other_is);
  return {{key, other},
          cat(statement(key, e), expected.starts_with(only_one) ? " and " : " but ", other_statement, ", expected ",
              expected),
          hint};
}

namespace {

Contradiction wrong_value(const Experiment& e, std::string_view key, std::string_view expected) {
  return {{key}, cat(statement(key, e), ", expected ", expected)};
}

std::optional<Contradiction> effect_contradiction(const Experiment& e) {
  const Experiment defaults;
  for (const Field& field : schema()) {
    if (has_effect(field, e) || is_default(field, e)) continue;
    if (const Field* other = replacement_of(field, e)) return wrong_pair(e, field.key, other->key, only_one);
    const std::string other = value_text(*find_field(field.only_with_), e);
    return {{{field.key, field.only_with_},
             cat(statement(field.key, e), " but ", field.only_with_, " is ", other, "; ", field.key,
                 " may be set only with ", joined(field.only_words_, " or ")),
             cat("Set ", field.key, "=", value_text(field, defaults), ", or choose another ", field.only_with_, ".")}};
  }
  return std::nullopt;
}

// Batch norm has seen no sample with averaged weights.
std::optional<Contradiction> averaged_norm_contradiction(const Experiment& e) {
  if (!has_batch_norm(e.model) || e.evaluate.norm_statistics == "recomputed") return std::nullopt;
  const std::string cannot =
      cat(" evaluates averaged weights, whose batch norm has seen no sample, but ",
          statement("evaluate.norm_statistics", e), ", expected evaluate.norm_statistics: recomputed");
  if (e.optimizer.schedule_free)
    return {{{"optimizer.schedule_free", "model.kind", "evaluate.norm_statistics"},
             cat("optimizer.schedule_free", cannot)}};
  if (e.average.half_life > 0 && e.average.evaluate)
    return {{{"average.half_life", "average.evaluate", "model.kind", "evaluate.norm_statistics"},
             cat("average.evaluate", cannot, ", or average.evaluate: false")}};
  return std::nullopt;
}

Contradiction wrong_scheduled_batch(const Experiment& e, const EpochFactor& change, std::string_view key,
                                    std::string_view expected) {
  return {{"batch.schedule", key, "batch.global"},
          cat(statement("batch.schedule", e), ", and ", change.factor, " x batch.global is ",
              scheduled_batch(e.batch, change), ", but ", statement(key, e), ", expected ", expected)};
}

// Checks each batch of the schedule by itself, because the number of ranks is not known here.
std::optional<Contradiction> batch_schedule_contradiction(const Experiment& e) {
  const BatchConfig& batch = e.batch;
  EpochFactor before;
  for (const EpochFactor& change : batch.schedule) {
    if (change.epoch <= before.epoch || change.factor < before.factor)
      return wrong_value(e, "batch.schedule", "increasing epochs above 0, with times that do not fall below 1");
    if (e.stop.epochs > 0 && change.epoch >= e.stop.epochs)
      return wrong_pair(e, "batch.schedule", "stop.epochs", "changes before the end");
    before = change;
    const double wanted = scheduled_batch(batch, change);
    if (batch.largest > 0 && wanted > static_cast<double>(batch.largest)) continue;
    if (wanted > 2147483647) return wrong_scheduled_batch(e, change, "batch.largest", "a batch.largest");
    const std::int64_t size = std::llround(wanted);
    if (std::abs(wanted - static_cast<double>(size)) > 1e-6 || size % batch.worker != 0)
      return wrong_scheduled_batch(e, change, "batch.worker", "a multiple of batch.worker");
    if (e.noise.small_batch > 0 && size % e.noise.small_batch != 0)
      return wrong_scheduled_batch(e, change, "noise.small_batch", "a multiple of noise.small_batch");
  }
  return std::nullopt;
}

std::optional<Contradiction> batch_course_contradiction(const Experiment& e) {
  const BatchConfig& batch = e.batch;
  if (batch.follow_noise > 0) return std::nullopt;
  if (batch.largest > 0 && batch.schedule.empty())
    return {{{"batch.largest", "batch.schedule", "batch.follow_noise"},
             cat(statement("batch.largest", e),
                 " but the batch does not change, expected batch.schedule or batch.follow_noise")}};
  return batch_schedule_contradiction(e);
}

std::optional<Contradiction> image_contradiction(const Experiment& e) {
  const DataConfig& data = e.data;
  for (const auto& [key, range] :
       {std::pair<std::string_view, const std::vector<double>&>{"data.crop_area", data.crop_area},
        {"data.crop_ratio", data.crop_ratio}})
    if (range.size() != 2 || range[0] > range[1]) return wrong_value(e, key, "two numbers, the smaller one first");
  if (data.channels == 2) return wrong_value(e, "data.channels", "1 or 3");
  if (data.mean.size() != data.std.size())
    return {{{"data.mean", "data.std"},
             cat(statement("data.mean", e), " and ", statement("data.std", e), ", expected lists of the same length")}};
  if (e.model.kind == "resnet" && e.model.width % 16 != 0) return wrong_value(e, "model.width", "a multiple of 16");
  if (e.model.kind == "resnet" && !is_cifar_depth(e.model.depth) && !has_bottlenecks(e.model.depth) &&
      e.model.depth != 18 && e.model.depth != 34)
    return wrong_value(e, "model.depth", resnet_depths);
  return std::nullopt;
}

// The channels of a layer that has a norm.
struct NormLayerSize {
  std::string layer;
  std::int64_t channels;
};
// Returns the layers whose norms differ in their number of channels. All channels of a resnet are multiples of its
// width.
std::vector<NormLayerSize> layers_with_norms(const ModelConfig& model) {
  if (model.kind == "resnet") return {{"conv1", model.width}};
  const bool cnn = model.kind == "cnn";
  std::vector<NormLayerSize> layers;
  for (const std::int64_t channels : cnn ? model.channels : model.widths)
    layers.push_back({cat(cnn ? "conv" : "fc", layers.size() + 1), channels});
  return layers;
}

std::optional<Contradiction> group_norm_contradiction(const Experiment& e) {
  const ModelConfig& model = e.model;
  if (normalization(model) != "group") return std::nullopt;
  const std::vector<NormLayerSize> layers = layers_with_norms(model);
  std::int64_t common = 0;
  for (const NormLayerSize& l : layers) common = std::gcd(common, l.channels);
  for (const NormLayerSize& l : layers) {
    if (l.channels % model.norm_groups == 0) continue;
    return {{{"model.norm_groups", "model.normalization",
              model.kind == "resnet" ? "model.width"
              : model.kind == "cnn"  ? "model.channels"
                                     : "model.widths"},
             cat(statement("model.norm_groups", e), " but layer ", l.layer, " has ", l.channels,
                 " channels, expected a number of groups that divides the channels of every layer with a norm"),
             cat("Values that do: ", nearest_divisors(common, model.norm_groups), ".")}};
  }
  return std::nullopt;
}

std::optional<Contradiction> model_contradiction(const Experiment& e) {
  const ModelConfig& model = e.model;
  if (model.kind == "cnn" && model.kernel % 2 == 0) return wrong_value(e, "model.kernel", "an odd number");
  if (model.kind == "cnn" && model.channels.empty())
    return wrong_value(e, "model.channels", "at least one convolution");
  if (model.kind == "mlp" && model.widths.empty())
    return {{{"model.widths"},
             cat(statement("model.kind", e), " but ", statement("model.widths", e),
                 ", expected at least one hidden layer, such as [800]")}};
  if (model.kind == "mlp" && model.widths[0] % 16 != 0)
    return wrong_value(e, "model.widths", "a first layer of a multiple of 16");
  return std::nullopt;
}

std::optional<Contradiction> statistics_contradiction(const Experiment& e) {
  if (e.evaluate.norm_statistics == "running" || has_batch_norm(e.model)) return std::nullopt;
  const bool chooses = e.model.kind == "resnet" || e.model.kind == "cnn" || e.model.kind == "mlp";
  return {{{"evaluate.norm_statistics", "model.kind", "model.norm", "model.normalization"},
           cat(statement("evaluate.norm_statistics", e), " but ", statement("model.kind", e),
               chooses ? cat(" and ", statement("model.normalization", e)) : "",
               ", expected a model with batch norm: resnet, alexnet with model.norm, or model.normalization: batch")}};
}

std::optional<Contradiction> warmup_contradiction(const Experiment& e) {
  const LearningRateConfig& lr = e.learning_rate;
  if (lr.warmup_epochs == 0 && lr.warmup_steps == 0) return std::nullopt;
  if (lr.scaling != "none" || lr.warmup_from != "base") return std::nullopt;
  return {{{"learning_rate.warmup_epochs", "learning_rate.warmup_steps", "learning_rate.scaling",
            "learning_rate.warmup_from"},
           "warm-up from the base rate without scaling changes nothing, expected learning_rate.warmup_from: zero, a "
           "learning_rate.scaling, or no warm-up"}};
}

// Only one of the lists has an effect, and only that one may be set.
std::optional<Contradiction> order_contradiction(const Experiment& e) {
  const std::vector<double>& milestones = e.learning_rate.milestones;
  for (std::size_t i = 1; i < milestones.size(); ++i)
    if (milestones[i] <= milestones[i - 1]) return wrong_value(e, "learning_rate.milestones", "increasing epochs");
  const std::vector<EpochFactor>& points = e.learning_rate.points;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (points[i].epoch < points[i - 1].epoch)
      return wrong_value(e, "learning_rate.points", "epochs that do not decrease");
    if (i >= 2 && points[i].epoch == points[i - 2].epoch)
      return wrong_value(e, "learning_rate.points",
                         cat("at most two points at epoch ", points[i].epoch, ": before and after a jump"));
  }
  const bool all_zero = std::ranges::all_of(points, [](const EpochFactor& p) { return p.factor == 0; });
  if (!points.empty() && all_zero) return wrong_value(e, "learning_rate.points", "a factor above 0");
  return std::nullopt;
}

std::optional<Contradiction> milestones_contradiction(const Experiment& e) {
  const LearningRateConfig& lr = e.learning_rate;
  if (lr.milestones.empty()) return std::nullopt;
  const std::string milestones = statement("learning_rate.milestones", e);
  const double warmup = warmup_epochs(lr, source_experiment(e).batch.global);
  if (lr.every == "epoch" && e.stop.epochs > 0 && std::ceil(lr.milestones.back()) >= e.stop.epochs)
    return {{{"learning_rate.milestones", "learning_rate.every", "stop.epochs"},
             cat(milestones, ", ", statement("learning_rate.every", e), " and ", statement("stop.epochs", e),
                 ": no epoch begins at or after the last milestone, expected milestones of at most ",
                 std::ceil(e.stop.epochs) - 1, ", the last epoch's beginning")}};
  if (lr.milestones.front() < warmup)
    return {{{"learning_rate.milestones", "learning_rate.warmup_epochs", "learning_rate.scaling"},
             cat(milestones, " but warm-up takes ", warmup, " epochs, expected milestones after it")}};
  return std::nullopt;
}

std::optional<Contradiction> decay_contradiction(const Experiment& e) {
  const LearningRateConfig& lr = e.learning_rate;
  if (!decays_to_end(lr)) return std::nullopt;
  const StopConfig& stop = e.stop;
  const std::string schedule = statement("learning_rate.schedule", e);
  const std::int64_t batch = source_experiment(e).batch.global;
  const double warmup = warmup_epochs(lr, batch), peak = peak_rate(lr, batch);
  if (stop.epochs == 0 && stop.steps == 0)
    return {{{"learning_rate.schedule", "stop.epochs", "stop.steps"},
             cat(schedule, " and needs the length of the run, expected stop.epochs or stop.steps")}};
  if (lr.end > peak)
    return {
        {{"learning_rate.end", "learning_rate.base", "learning_rate.scaling", "batch.global"},
         cat(statement("learning_rate.end", e), " but the peak rate is ", peak, ", expected an end at or below it")}};
  if ((stop.epochs > 0 && warmup >= stop.epochs) || (stop.steps > 0 && lr.warmup_steps >= stop.steps))
    return {{{"learning_rate.schedule", "learning_rate.warmup_epochs", "learning_rate.warmup_steps", "stop.epochs",
              "stop.steps"},
             cat(schedule, " but warm-up lasts as long as the run, expected a shorter warm-up")}};
  return std::nullopt;
}

// Malladi et al. 2022, arXiv:2205.10287: for k > 1, 1 - k (1 - beta) must be above 0.
std::optional<Contradiction> adam_sde_contradiction(const Experiment& e) {
  const OptimizerConfig& o = e.optimizer;
  if (e.learning_rate.scaling != "adam_sde") return std::nullopt;
  const auto base = static_cast<double>(e.learning_rate.base_batch);
  const double k = batch_ratio(e.learning_rate, source_experiment(e).batch.global);
  if (k <= 1) return std::nullopt;  // every beta stays at least 0
  for (const auto& [key, beta] :
       {std::pair<std::string_view, double>{"optimizer.beta1", o.beta1}, {"optimizer.beta2", o.beta2}}) {
    if (!has_effect(*find_field(key), e) || k * (1 - beta) < 1 - 1e-12) continue;
    const double largest = std::ceil(base / (1 - beta) * (1 - 1e-12)) - 1;
    return {{{"learning_rate.scaling", "batch.global", key},
             cat("learning_rate.scaling is adam_sde with k = batch.global / base_batch = ", with_digits(k), ", but ",
                 statement(key, e), ", and k (1 - beta) is ", with_digits(k * (1 - beta)), ", expected less than 1"),
             cat("The largest batch.global is ", with_digits(largest, 15), "; or take a beta nearer to 1.")}};
  }
  return std::nullopt;
}

std::optional<Contradiction> fault_contradiction(const Experiment& e) {
  const TestConfig& test = e.test;
  if ((test.slow_rank >= 0) != (test.slow_seconds > 0))
    return {{{"test.slow_rank", "test.slow_seconds"},
             cat(statement("test.slow_rank", e), " and ", statement("test.slow_seconds", e),
                 ", expected a rank and how long it sleeps in each step, or neither")}};
  if ((test.flip_bit_rank >= 0) != (test.flip_bit_step > 0) || (test.flip_bit_rank >= 0) == test.flip_bit_in.empty())
    return {{{"test.flip_bit_rank", "test.flip_bit_step", "test.flip_bit_in"},
             cat(statement("test.flip_bit_rank", e), ", ", statement("test.flip_bit_step", e), " and ",
                 statement("test.flip_bit_in", e), ", expected a rank, a step and a tensor, or none of them")}};
  return std::nullopt;
}

std::optional<Contradiction> end_contradiction(const Experiment& e) {
  const StopConfig& stop = e.stop;
  const bool ends = stop.epochs > 0 || stop.steps > 0 || stop.seconds > 0 || !stop.target_metric.empty();
  if (ends || e.branch.samples > 0) return std::nullopt;
  return {{{"stop.epochs", "stop.steps", "stop.seconds", "stop.target_metric"},
           "nothing ends the run, expected stop.epochs, stop.steps, stop.seconds or stop.target_metric"}};
}

std::optional<Contradiction> target_contradiction(const Experiment& e) {
  if (e.stop.target_metric.empty() || e.evaluate.every_epochs > 0 || e.evaluate.every_steps > 0) return std::nullopt;
  return {{{"stop.target_metric", "evaluate.every_epochs", "evaluate.every_steps"},
           cat(statement("stop.target_metric", e),
               " but evaluation is off, expected evaluate.every_epochs or evaluate.every_steps")}};
}

}  // namespace

std::optional<Contradiction> find_contradiction(const Experiment& e) {
  // The first check that fails gives the error. Some checks need what an earlier one has found right.
  for (const auto& check : {effect_contradiction,       find_exclusion,         averaged_norm_contradiction,
                            batch_course_contradiction, image_contradiction,    find_momentum_exclusion,
                            group_norm_contradiction,   model_contradiction,    statistics_contradiction,
                            find_statistics_exclusion,  find_scaling_exclusion, warmup_contradiction,
                            find_schedule_exclusion,    order_contradiction,    find_end_exclusion,
                            milestones_contradiction,   decay_contradiction,    adam_sde_contradiction,
                            fault_contradiction,        end_contradiction,      find_target_exclusion,
                            target_contradiction})
    if (auto contradiction = check(e)) return contradiction;
  return std::nullopt;
}

std::string way_out(const Contradiction& contradiction, const Experiment& experiment) {
  if (!contradiction.hint.empty()) return contradiction.hint;
  std::string ways;
  for (const std::string_view key : contradiction.keys) {
    const Field& field = *find_field(key);
    if (field.required_ || is_default(field, experiment)) continue;
    Experiment changed = experiment;
    set_default(field, changed);
    if (!find_contradiction(changed)) ways += cat(ways.empty() ? "Set " : " or ", key, "=", value_text(field, changed));
  }
  return ways.empty() ? "" : ways + ".";
}

}  // namespace ringtrain
