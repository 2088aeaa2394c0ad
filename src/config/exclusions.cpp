#include "config/exclusions.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "config/batch_plan.h"
#include "config/schema.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

// A row of the table. The parts below have the rows.
struct Exclusion {
  bool is_broken;
  std::string_view feature, key;
  std::string expected;
  std::string hint = {};         // as in Contradiction
  std::string_view also = {};    // a key without which the feature would not need this
  std::string_view key_is = {};  // what the message says of `key` in place of its value
};

// Returns the first broken row, as wrong_pair().
std::optional<Contradiction> first_broken(const std::vector<Exclusion>& rows, const Experiment& e) {
  for (const Exclusion& row : rows) {
    if (!row.is_broken) continue;
    Contradiction found = wrong_pair(e, row.feature, row.key, row.expected, row.hint, row.key_is);
    if (!row.also.empty()) found.keys.push_back(row.also);
    return found;
  }
  return std::nullopt;
}

bool is_set(std::string_view key, const Experiment& e) {
  return !is_default(*find_field(key), e);
}

std::vector<Exclusion> of_whole_batches(const Experiment& e) {
  const BatchConfig& batch = e.batch;
  const auto values_near = [&batch](std::int64_t wanted) {
    return cat("Values that do: ", nearest_divisors(batch.global, wanted), ".");
  };
  return {
      {batch.global % batch.worker != 0, "batch.worker", "batch.global", "a worker that divides global",
       values_near(batch.worker)},
      {batch.micro > 0 && batch.global % batch.micro != 0, "batch.micro", "batch.global", "a micro that divides global",
       values_near(std::max<std::int64_t>(1, batch.micro))},
  };
}

// communication.algorithm names ways to sum on all ranks. Gradients take other ways to servers and to sharded state.
std::vector<Exclusion> of_sums(const Experiment& e) {
  const std::string& algorithm = e.communication.algorithm;
  const bool fixed = e.communication.order == "fixed";
  return {
      {e.parallel.kind == "server" && algorithm != "auto", "communication.algorithm", "parallel.kind",
       "auto: gradients are sent to the servers, which add them"},
      {e.parallel.shard_state && algorithm != "auto" && algorithm != "ring", "communication.algorithm",
       "parallel.shard_state", "auto or ring: each rank gets the sums of its own part around a ring"},
      {fixed && e.run.threads == 0, "communication.order", "run.threads",
       "a number: 0 is a share of the cores, and the sums within a pass depend on the threads of a rank",
       "Set run.threads to the number of threads of each rank, for example run.threads=1. The bits are the same on any "
       "number of ranks with that number of threads."},
      {fixed && e.parallel.kind != "ring", "communication.order", "parallel.kind",
       "ring, because servers and pipelines add gradients in another order"},
      {fixed && e.parallel.shard_state, "communication.order", "parallel.shard_state",
       "false: its gradients are added around a ring"},
      {fixed && algorithm != "auto" && algorithm != "halving", "communication.order", "communication.algorithm",
       "auto or halving, which adds in the binary tree"},
      {fixed && e.communication.gradient_type != "fp32", "communication.order", "communication.gradient_type",
       "fp32: each addition would be rounded to 16 bits"},
  };
}

std::vector<Exclusion> of_server_ranks(const Experiment& e) {
  const ParallelConfig& p = e.parallel;
  if (!has_server_ranks(p)) return {};
  const bool async = p.mode == "async";
  const std::string_view mode = async ? "parallel.mode" : "parallel.backup_workers";
  return {
      {async && p.backup_workers > 0, mode, "parallel.backup_workers",
       "only one of them: an asynchronous update waits for nobody"},
      {e.precision == "fp16", mode, "precision",
       "fp32 or bf16: a loss scale could change between the time when a worker gets weights and its update"},
      {e.data.order == "streams", mode, "data.order",
       "windows: the hidden state of streams would have to pass from update to update"},
      {e.optimizer.kind == "muon", mode, "optimizer.kind",
       "another optimizer: Muon needs whole matrices on every rank"},
      {e.optimizer.adascale, mode, "optimizer.adascale", "false: servers do not see the gradients of small batches"},
      {e.batch.follow_noise > 0, mode, "batch.follow_noise", "0: servers do not measure the noise scale"},
      {e.noise.small_batch > 0, mode, "noise.small_batch", "0: servers do not measure the noise scale"},
      {e.noise.groups != "none", mode, "noise.groups", "none: servers do not measure the noise scale"},
      {e.communication.check_every_steps > 0, mode, "communication.check_every_steps",
       "-1 (these ranks compare their copies when all of them meet, at evaluations and checkpoints) or 0 (never)"},
      {!e.branch.from.empty(), mode, "branch.from", "a run that begins by itself"},
      {p.servers > 1 && e.optimizer.record_trust_every_steps > 0, mode, "optimizer.record_trust_every_steps",
       "0, or parallel.servers: 1: each server knows the ratios of its part only"},
  };
}

// All ranks compute, and each of them updates its own part of the weights.
std::vector<Exclusion> of_owners(const Experiment& e) {
  const bool muon = e.optimizer.kind == "muon";
  const std::string another = "another optimizer: Muon needs whole matrices, and each rank has only parts of them";
  const std::string hint =
      "Choose another optimizer.kind, or parallel.kind: ring without parallel.shard_state, where the ranks share "
      "Muon's work by matrices.";
  return {
      {muon && servers_work(e.parallel), "parallel.kind", "optimizer.kind", another, hint},
      {muon && e.parallel.shard_state, "parallel.shard_state", "optimizer.kind", another, hint},
  };
}

// A rank of a pipeline has the gradients of its own layers only.
std::vector<Exclusion> of_pipelines(const Experiment& e) {
  if (e.parallel.kind != "pipeline") return {};
  constexpr std::string_view kind = "parallel.kind";
  return {
      {is_set("noise.groups", e), kind, "noise.groups", "none: a rank has the tensors of its own layers only"},
      {e.optimizer.adascale, kind, "optimizer.adascale",
       "false: its gain needs gradients of small batches over all stages"},
      {e.optimizer.kind == "muon", kind, "optimizer.kind",
       "another optimizer: Muon's matrices are shared out among ranks with the whole model"},
      {e.optimizer.record_trust_every_steps > 0, kind, "optimizer.record_trust_every_steps",
       "0: rank 0 has the ratios of its own layers only"},
      {e.evaluate.norm_statistics == "recomputed", kind, "evaluate.norm_statistics",
       "running or last: statistics are recomputed on ranks with the whole model"},
      {e.memory.offload, kind, "memory.offload", "false: stages keep their activations on the GPU"},
  };
}

std::vector<Exclusion> of_noise(const Experiment& e) {
  const std::int64_t small = e.noise.small_batch;
  return {
      {e.noise.groups != "none" && e.noise.every_steps == 0, "noise.groups", "noise.every_steps",
       "a measurement, or groups: none"},
      {small > 0 && small % e.batch.worker != 0, "noise.small_batch", "batch.worker", "a multiple of batch.worker"},
      {small > 0 && (small >= e.batch.global || e.batch.global % small != 0), "noise.small_batch", "batch.global",
       "a smaller number that divides batch.global"},
      {small > 0 && e.batch.micro > 0 && small % e.batch.micro != 0, "noise.small_batch", "batch.micro",
       "a multiple of batch.micro"},
  };
}

std::vector<Exclusion> of_optimizers(const Experiment& e) {
  const OptimizerConfig& o = e.optimizer;
  const bool free = o.schedule_free, sgd = o.kind == "sgd", muon_with_sgd = o.kind == "muon" && o.other_kind != "adamw";
  const std::string_view half_life = sgd ? "optimizer.half_life.momentum" : "optimizer.half_life.beta1";
  const std::string_view weight = sgd ? "optimizer.momentum" : "optimizer.beta1";
  std::vector<Exclusion> rows = {
      {free && o.nesterov, "optimizer.schedule_free", "optimizer.nesterov", only_one},
      {free && o.rate_in_momentum, "optimizer.schedule_free", "optimizer.rate_in_momentum", only_one},
      {free && o.adascale, "optimizer.schedule_free", "optimizer.adascale", only_one},
      {free && is_set(half_life, e), "optimizer.schedule_free", half_life,
       "0: this factor is the weight of the average, not a memory that fades"},
      {free && e.average.half_life > 0, "optimizer.schedule_free", "average.half_life",
       "0: the weights are averaged already"},
      {free && (sgd ? o.momentum : o.beta1) == 0, "optimizer.schedule_free", weight,
       "a value above 0: it is the weight of the average"},
      {free && e.learning_rate.schedule != "constant", "optimizer.schedule_free", "learning_rate.schedule",
       "constant: the averaging replaces the schedule"},
      {o.nesterov && o.momentum == 0 && o.half_life.momentum == 0, "optimizer.nesterov", "optimizer.momentum",
       "a momentum above 0"},
      {o.momentum_correction && !o.rate_in_momentum, "optimizer.momentum_correction", "optimizer.rate_in_momentum",
       "both: the other form needs no correction"},
      {o.clip_norm > 0 && o.clip_value > 0, "optimizer.clip_norm", "optimizer.clip_value", only_one},
      {o.weight_decay_by == "sample" && muon_with_sgd, "optimizer.weight_decay_by", "optimizer.other_kind",
       "adamw: sgd adds the decay to the gradient"},
  };
  for (const std::string_view key : {"optimizer.beta1", "optimizer.beta2", "optimizer.epsilon",
                                     "optimizer.half_life.beta1", "optimizer.half_life.beta2"})
    rows.push_back({muon_with_sgd && is_set(key, e), "optimizer.other_kind", key,
                    cat(value_text(*find_field(key), Experiment()), ": only adamw uses ", key)});
  return rows;
}

std::vector<Exclusion> of_adascale(const Experiment& e) {
  if (!e.optimizer.adascale) return {};
  const LearningRateConfig& lr = e.learning_rate;
  const bool measures = lr.base_batch != e.batch.global;  // otherwise AdaScale's gain is 1
  constexpr std::string_view adascale = "optimizer.adascale";
  return {
      {lr.base_batch == 0 || lr.base_batch > e.batch.global, adascale, "learning_rate.base_batch",
       "the batch for which learning_rate.base was chosen, at most batch.global"},
      {lr.scaling != "none", adascale, "learning_rate.scaling", "none: the gain takes the place of a scaling"},
      {e.optimizer.momentum_correction, adascale, "optimizer.momentum_correction", "false"},
      {!e.batch.schedule.empty(), adascale, "batch.schedule", "a constant batch"},
      {e.batch.follow_noise > 0, adascale, "batch.follow_noise", "a constant batch"},
      {e.data.last_batch != "drop", adascale, "data.last_batch", "drop: every step has the same batch"},
      {decays_to_end(lr) && e.stop.epochs == 0, adascale, "stop.epochs",
       cat("the length of the ", lr.schedule, " schedule: stop.steps counts updates"), "", "learning_rate.schedule"},
      {measures && e.noise.every_steps != 1, adascale, "noise.every_steps",
       "1: each step's gain follows from its gradients"},
      {measures && e.noise.small_batch == 0, adascale, "noise.small_batch",
       "the batch whose gradients the gain is measured from"},
  };
}

// Malladi et al. 2022, arXiv:2205.10287: a rule for Adam and RMSprop.
std::vector<Exclusion> of_adam_sde(const Experiment& e) {
  if (e.learning_rate.scaling != "adam_sde") return {};
  const OptimizerConfig& o = e.optimizer;
  constexpr std::string_view scaling = "learning_rate.scaling";
  const std::string both = "only one of them: both change the beta with the batch";
  return {
      {o.kind != "adam" && o.kind != "adamw" && o.kind != "rmsprop", scaling, "optimizer.kind",
       "adam, adamw or rmsprop"},
      {o.schedule_free, scaling, "optimizer.schedule_free", "false: its beta1 is the weight of an average"},
      {is_set("optimizer.half_life.beta1", e), scaling, "optimizer.half_life.beta1", both},
      {is_set("optimizer.half_life.beta2", e), scaling, "optimizer.half_life.beta2", both},
  };
}

std::vector<Exclusion> of_averages(const Experiment& e) {
  const AverageConfig& a = e.average;
  return {
      {is_set("average.from_epoch", e) && a.half_life == 0, "average.from_epoch", "average.half_life",
       "a half-life in samples"},
      {is_set("average.evaluate", e) && a.half_life == 0, "average.evaluate", "average.half_life",
       "a half-life in samples"},
      {a.half_life > 0 && e.stop.epochs > 0 && a.from_epoch >= e.stop.epochs, "average.from_epoch", "stop.epochs",
       "an epoch before the end"},
  };
}

std::vector<Exclusion> of_batches(const Experiment& e) {
  const BatchConfig& batch = e.batch;
  const bool follows = batch.follow_noise > 0, changes = follows || !batch.schedule.empty();
  return {
      {changes && e.data.order == "streams", batch.schedule.empty() ? "batch.follow_noise" : "batch.schedule",
       "data.order", "windows: each row of the batch reads a stream of its own, so the batch cannot change"},
      {e.data.last_batch == "smaller" && e.data.order == "streams", "data.last_batch", "data.order",
       "drop: streams end together"},
      {batch.patience > 0 && !follows, "batch.patience", "batch.follow_noise", "batch.follow_noise above 0"},
      {batch.largest > 0 && changes && batch.largest < batch.global, "batch.largest", "batch.global",
       "a largest batch of batch.global or more"},
      {!batch.schedule.empty() && batch.largest % batch.worker != 0, "batch.largest", "batch.worker",
       "a multiple of batch.worker"},
      {follows && !batch.schedule.empty(), "batch.follow_noise", "batch.schedule", only_one},
      {follows && batch.largest < 2 * batch.global, "batch.follow_noise", "batch.largest",
       cat("a largest batch of at least twice batch.global, ", 2 * batch.global)},
      {follows && e.noise.every_steps == 0, "batch.follow_noise", "noise.every_steps",
       "a noise scale that is measured"},
      {follows && e.noise.small_batch == 0, "batch.follow_noise", "noise.small_batch",
       "a number above 0, so that the result does not depend on the number of ranks"},
      {follows && e.stop.steps > 0 && decays_to_end(e.learning_rate), "batch.follow_noise", "stop.steps",
       cat("stop.epochs alone: where ", e.learning_rate.schedule, " ends must not depend on the noise")},
  };
}

// The keys of a run that continues from another run's checkpoint, with a multiple of its batch.
std::vector<Exclusion> of_branches(const Experiment& e) {
  constexpr std::string_view from = "branch.from", factor = "branch.batch_factor";
  if (!is_branch(e)) {
    const std::string expected = "the checkpoint that the run goes on from";
    return {
        {is_set(factor, e), factor, from, expected},
        {is_set("branch.rate_factor", e), "branch.rate_factor", from, expected},
        {is_set("branch.samples", e), "branch.samples", from, expected},
    };
  }
  if (!is_set(factor, e)) return {};
  const std::string multiple = "branch.batch_factor times that of the run which it leaves";
  return {
      {e.batch.follow_noise > 0, factor, "batch.follow_noise", "a batch that the noise does not change"},
      {e.optimizer.adascale, factor, "optimizer.adascale", "false: its gain follows the batch by itself"},
      {e.data.order == "streams", factor, "data.order",
       "windows: each row of the batch reads a stream of its own, so the batch cannot change"},
      {!has_source_batch(e.batch.global, e), factor, "batch.global", multiple},
      {e.batch.largest > 0 && !has_source_batch(e.batch.largest, e), factor, "batch.largest", multiple},
  };
}

std::vector<Exclusion> of_models(const Experiment& e) {
  const ModelConfig& model = e.model;
  const bool lstm = model.kind == "char_lstm", resnet = model.kind == "resnet";
  return {
      {resnet && is_cifar_depth(model.depth) && model.stem != "small", "model.depth", "model.stem",
       "small: the ResNets for CIFAR begin with a 3 x 3 convolution", "Set model.stem=small."},
      {resnet && !model.zero_gamma && !has_norms(model), "model.zero_gamma", "model.normalization",
       "model.zero_gamma left out: there is no gamma"},
      {model.stride_in == "1x1" && !has_bottlenecks(model.depth), "model.stride_in", "model.depth",
       "bottlenecks: model.depth 50, 101 or 152"},
      {model.initial == "truncated_normal" && lstm, "model.initial", "model.kind", "he or uniform"},
      {model.initial == "uniform" && model.initial_range == 0 && !lstm, "model.initial", "model.initial_range",
       "a range above 0", "", "model.kind"},
      {lstm && e.loss.label_smoothing > 0, "loss.label_smoothing", "model.kind", "a model of images"},
      {e.data.resize > 0 && e.data.resize < e.data.image_size, "data.resize", "data.image_size",
       "resize at or above image_size, or 0"},
      {e.evaluate.offset_epochs > 0 && e.evaluate.every_epochs == 0, "evaluate.offset_epochs", "evaluate.every_epochs",
       "every_epochs above 0"},
      {has_batch_norm(model) && e.evaluate.norm_statistics == "last" && is_set("model.norm_momentum", e),
       "evaluate.norm_statistics", "model.norm_momentum", "model.norm_momentum left out: there is no running average"},
      {!e.run.dir.empty() && !e.run.id.empty(), "run.dir", "run.id", only_one},
  };
}

// Returns the milestones before epoch `end`, as text: "[30,60]". If there are none, the text has one milestone at half
// of `end`.
std::string milestones_before(double end, std::vector<double> milestones) {
  std::erase_if(milestones, [end](double epoch) { return epoch >= end; });
  if (milestones.empty()) return cat("[", with_digits(end / 2), "]");
  return cat("[", joined(milestones, ",", [](double epoch) { return with_digits(epoch); }), "]");
}

}  // namespace

std::optional<Contradiction> find_exclusion(const Experiment& e) {
  for (const auto& part : {of_whole_batches, of_sums, of_server_ranks, of_owners, of_pipelines, of_noise, of_optimizers,
                           of_adascale, of_averages, of_batches, of_branches, of_adam_sde, of_models})
    if (auto found = first_broken(part(e), e)) return found;
  return std::nullopt;
}

std::optional<Contradiction> find_momentum_exclusion(const Experiment& e) {
  const bool has_momentum = e.model.kind == "alexnet" || e.model.kind == "char_lstm" || has_batch_norm(e.model);
  const std::vector<Exclusion> rows = {
      {!has_momentum && is_set("model.norm_momentum", e), "model.norm_momentum", "model.normalization",
       "model.norm_momentum left out: only batch norm has running statistics", "", "model.kind"},
  };
  return first_broken(rows, e);
}

std::optional<Contradiction> find_statistics_exclusion(const Experiment& e) {
  const std::int64_t samples = e.evaluate.norm_samples, worker = e.batch.worker;
  const bool recomputed = e.evaluate.norm_statistics == "recomputed";
  const std::vector<Exclusion> rows = {
      {recomputed && samples == 0, "evaluate.norm_statistics", "evaluate.norm_samples",
       "how many training samples, a multiple of batch.worker",
       cat("Some thousand samples are enough, for example ", round_up<std::int64_t>(8192, worker), ".")},
      {recomputed && samples % worker != 0, "evaluate.norm_samples", "batch.worker", "a multiple of batch.worker",
       cat("The next multiple is ", round_up(samples, worker), ".")},
  };
  return first_broken(rows, e);
}

std::optional<Contradiction> find_scaling_exclusion(const Experiment& e) {
  const LearningRateConfig& lr = e.learning_rate;
  const std::vector<Exclusion> rows = {
      {lr.scaling != "none" && lr.base_batch == 0, "learning_rate.scaling", "learning_rate.base_batch",
       "the batch for which learning_rate.base was chosen", "", "", "not given"},
      {lr.warmup_epochs > 0 && lr.warmup_steps > 0, "learning_rate.warmup_epochs", "learning_rate.warmup_steps",
       only_one},
  };
  return first_broken(rows, e);
}

std::optional<Contradiction> find_schedule_exclusion(const Experiment& e) {
  const LearningRateConfig& lr = e.learning_rate;
  constexpr std::string_view schedule = "learning_rate.schedule";
  const std::vector<Exclusion> rows = {
      {lr.schedule == "step" && lr.milestones.empty(), schedule, "learning_rate.milestones",
       "epochs such as [30, 60, 80]", "", "", "empty"},
      {lr.schedule == "points" && lr.points.empty(), schedule, "learning_rate.points",
       "pairs of epoch and factor such as [[0, 0], [2, 1], [16, 0]]", "", "", "empty"},
  };
  return first_broken(rows, e);
}

std::optional<Contradiction> find_end_exclusion(const Experiment& e) {
  constexpr std::string_view milestones = "learning_rate.milestones", points = "learning_rate.points";
  const LearningRateConfig& lr = e.learning_rate;
  const double end = e.stop.epochs;
  const bool has_milestones = end > 0 && !lr.milestones.empty(), has_points = end > 0 && !lr.points.empty();
  const std::vector<Exclusion> rows = {
      {has_milestones && lr.milestones.back() >= end, milestones, "stop.epochs", "milestones before the end",
       cat("Set learning_rate.milestones=", milestones_before(end, lr.milestones),
           ", or learning_rate.milestones=[] with another learning_rate.schedule.")},
      {has_points && lr.points.back().epoch > end, points, "stop.epochs", "points up to the end",
       cat("Set learning_rate.points to pairs whose epochs are at most ", end,
           ", or learning_rate.points=[] with another learning_rate.schedule.")},
      {has_points && lr.points.back().epoch < end && lr.points.back().factor == 0, points, "stop.epochs",
       "a last factor above 0, or the last point at the end: nothing is learned at a rate of 0"},
  };
  return first_broken(rows, e);
}

std::optional<Contradiction> find_target_exclusion(const Experiment& e) {
  constexpr std::string_view metric = "stop.target_metric", value = "stop.target_value";
  const StopConfig& stop = e.stop;
  const bool has_target = !stop.target_metric.empty(), is_share = stop.target_metric == "validation_accuracy";
  const std::vector<Exclusion> rows = {
      {!has_target && stop.target_value > 0, value, metric, "both or none"},
      {has_target && (stop.target_value == 0 || (is_share && stop.target_value > 1)), metric, value,
       is_share ? "a share above 0 and at most 1" : "a loss above 0"},
      {has_target && e.data.validation.empty(), metric, "data.validation", "validation data"},
  };
  return first_broken(rows, e);
}

}  // namespace ringtrain
