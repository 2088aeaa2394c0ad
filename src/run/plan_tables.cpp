// The tables that `ringtrain plan` prints, and `train` before its first step (plan_text.h).
#include <algorithm>
#include <cmath>

#include "backend/cuda/program/schedule.h"
#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "config/rate_scaling.h"
#include "config/schema.h"
#include "data/row_plan.h"
#include "optim/schedule.h"
#include "run/course.h"
#include "run/fitting_passes.h"
#include "run/plan_text.h"
#include "run/split.h"

namespace ringtrain {

namespace {

std::string describe_data(const DatasetIndex& index, std::int64_t samples) {
  return cat(
      index.prefix, ": ", with_thousands(samples), " samples in ", index.shards.size(),
      index.shards.size() == 1 ? " shard, " : " shards, ",
      index.is_image() ? cat(index.image.class_ids.size(), " classes") : cat(index.text.vocabulary.size(), " symbols"));
}

// A share of running text is counted in characters, because its windows are not those of the whole text.
std::string describe_share(const RunPlan& plan) {
  const std::int64_t used = used_of(plan.train, plan.train_loader);
  if (used == plan.train.total) return "";
  return cat(", share ", with_digits(plan.experiment.data.share), " of ", with_thousands(plan.train.total),
             plan.train.text.running_text ? " characters" : " samples");
}

// The percentage reveals a forgotten data.resize: its default 256 leaves only 2 % of an image to a model of 32 x 32.
std::string describe_images(const DataConfig& data) {
  const auto size = static_cast<double>(data.image_size), resize = static_cast<double>(data.resize);
  return cat("training ", data.augmentation, data.augmentation == "pad_crop" ? cat(" ", data.pad) : "",
             data.flip ? ", flip" : "", "; evaluation the central ", data.image_size, " x ", data.image_size,
             data.resize == 0 ? " of the stored image"
                              : cat(", short side ", data.resize, ": ",
                                    std::llround(100 * size * size / resize / resize), " % of a square image"));
}

std::string describe_model(const RunPlan& plan) {
  const ModelConfig& m = plan.experiment.model;
  std::string text = m.kind;
  if (m.kind == "char_lstm") text += cat(" ", m.layers, " x ", m.hidden, ", dropout ", with_digits(m.dropout));
  if (m.kind == "resnet")
    text += cat("-", m.depth, m.width == 64 ? "" : cat(", width ", m.width), ", stem ", m.stem,
                m.stride_in == "1x1" ? ", stride in the first 1x1" : "",
                m.zero_gamma && has_norms(m) ? ", zero gamma" : "");
  if (m.kind == "alexnet") text += cat(", dropout ", with_digits(m.dropout));
  if (m.initial != "he") text += cat(", initial weights ", m.initial, m.initial_range > 0 ? " +-" : "");
  if (m.initial_range > 0) text += with_digits(m.initial_range);
  if (m.forget_bias != 0) text += cat(", forget bias ", with_digits(m.forget_bias));
  if (plan.train.is_image())
    text += cat(", ", plan.experiment.data.image_size, " px", plan.experiment.data.channels == 1 ? " grey" : "");
  if (plan.norm_group > 0) text += cat(", batch norm over ", plan.norm_group);
  if (normalization(m) == "group")
    text += cat(", group norm with ", m.norm_groups, m.norm_groups > 1 ? " groups" : " group");
  if (plan.experiment.loss.label_smoothing > 0)
    text += cat(", label smoothing ", with_digits(plan.experiment.loss.label_smoothing));
  return cat(text, ", ", with_thousands(plan.parameters.count()), " parameters, ",
             with_digits(static_cast<double>(plan.graph.forward_flops_per_sample()) / 2e9), " GMAC forward");
}

// Returns a text such as " but not on norm and bias".
std::string but_not_on(const std::vector<std::string>& kinds) {
  return kinds.empty() ? " on everything" : " but not on " + joined(kinds, " and ");
}

// The factors are those of a step with the first batch.
std::string describe_optimizer(const RunPlan& plan) {
  const Experiment& e = plan.experiment;
  OptimizerConfig o = optimizer_of(e, plan.schedule);
  const auto samples = static_cast<double>(plan.batch.global);
  o.momentum = step_factor(o.momentum, o.half_life.momentum, samples);
  o.beta1 = step_factor(o.beta1, o.half_life.beta1, samples);
  o.beta2 = step_factor(o.beta2, o.half_life.beta2, samples);
  std::string text = cat(o.schedule_free ? "schedule-free " : "", o.kind);
  const bool adam = o.kind == "adam" || o.kind == "adamw" || o.kind == "lamb";
  if (o.kind == "lars")
    text += cat(" (", o.lars_form, "), trust coefficient ", with_digits(o.trust_coefficient), but_not_on(o.no_trust));
  if (o.kind == "sgd" || o.kind == "lars" || o.kind == "rmsprop_to_sgd")
    text += cat(", momentum ", with_digits(o.momentum), o.nesterov ? " (Nesterov)" : "",
                o.rate_in_momentum ? ", rate in the buffer" : "", o.momentum_correction ? ", corrected" : "");
  if (adam)
    text += cat(", betas ", with_digits(o.beta1), " ", with_digits(o.beta2), ", epsilon ", with_digits(o.epsilon));
  if (o.kind == "muon")
    text += cat(" (", o.muon_rate, "), momentum ", with_digits(o.momentum), ", ", o.other_kind, " x ",
                with_digits(o.other_rate), " for the rest");
  if (o.kind == "muon" && o.other_kind == "adamw")
    text += cat(": betas ", with_digits(o.beta1), " ", with_digits(o.beta2), ", epsilon ", with_digits(o.epsilon));
  if (o.kind == "rmsprop" || o.kind == "rmsprop_to_sgd")
    text += cat(", mean square's decay ", with_digits(o.beta2), ", epsilon ", with_digits(o.epsilon));
  if (o.kind == "rmsprop_to_sgd")
    text += cat(", rate ", with_digits(o.transition_rate), " of RMSprop, half SGD at epoch ",
                with_digits(o.transition_center), ", within ", with_digits(o.transition_length));
  if (o.adascale)
    text += cat(", AdaScale at ", with_digits(batch_ratio(e.learning_rate, e.batch.global)), " x base_batch ",
                e.learning_rate.base_batch);
  const double decay = o.weight_decay * decay_factor(e, plan.schedule, samples, plan.course.stages.front().rate_factor);
  if (o.weight_decay > 0) text += cat(", weight decay ", with_digits(decay), but_not_on(o.no_decay));
  if (o.kind == "lamb" && o.trust_undecayed) text += ", trust ratios on everything";
  if (o.clip_value > 0) text += cat(", elements cut to +-", with_digits(o.clip_value));
  if (o.clip_norm > 0) text += cat(", clipped to norm ", with_digits(o.clip_norm));
  return text;
}

// Returns the first batch and the last one, if the batch changes.
std::vector<std::int64_t> first_and_last(const RunPlan& plan) {
  if (plan.batches.size() == 1) return {plan.batch.global};
  return {plan.batches.front(), plan.batches.back()};
}

// Returns a factor in both forms, such as "momentum 0.9, half-life 1,684 samples in steps of 256 samples".
std::string describe_memory_of(const RunPlan& plan, std::string_view name, double plain, double half_life) {
  std::string text = cat(name, half_life > 0 ? " half-life " : " ",
                         half_life > 0 ? with_thousands(std::llround(half_life)) : with_digits(plain));
  if (half_life > 0) text += " samples";
  if (half_life == 0 && (plain <= 0 || plain >= 1)) return cat(text, " (no memory)");
  for (const std::int64_t batch : first_and_last(plan)) {
    const auto samples = static_cast<double>(batch);
    text += half_life > 0 ? cat(", ", with_digits(step_factor(plain, half_life, samples)))
                          : cat(", half-life ", with_thousands(std::llround(half_life_of(plain, samples))), " samples");
    text += cat(" in steps of ", with_thousands(batch));
  }
  return text;
}

// Describes the memory of the optimizer's averages, by step and by sample. In a schedule-free optimizer, momentum or
// beta1 is no memory.
std::string describe_half_lives(const RunPlan& plan) {
  const OptimizerConfig o = optimizer_of(plan.experiment, plan.schedule);
  const auto has = [&](std::string_view key) { return has_effect(*find_field(key), plan.experiment); };
  const bool has_adam = o.kind != "muon" || o.other_kind == "adamw";
  std::string text;
  const auto add = [&](bool remembers, std::string_view name, double plain, double half_life) {
    if (remembers) text += cat(text.empty() ? "" : "; ", describe_memory_of(plan, name, plain, half_life));
  };
  add(has("optimizer.half_life.momentum") && !o.schedule_free, "momentum", o.momentum, o.half_life.momentum);
  add(has("optimizer.half_life.beta1") && has_adam && !o.schedule_free, "beta1", o.beta1, o.half_life.beta1);
  add(has("optimizer.half_life.beta2") && has_adam, "beta2", o.beta2, o.half_life.beta2);
  return text;
}

// Describes how long decoupled weight decay remembers updates: 1 / (rate x decay) steps, at the peak rate (Wang and
// Aitchison 2024).
std::string describe_decay(const RunPlan& plan) {
  const Experiment& e = plan.experiment;
  std::vector<BatchStage> stages = batch_stages(plan);
  if (stages.size() > 2) stages = {stages.front(), stages.back()};
  std::string text = joined(stages, "; ", [&](const BatchStage& stage) {
    const auto samples = static_cast<double>(stage.batch);
    const double steps = 1 / peak_decay(plan, stage);
    return cat(with_digits(steps * samples / static_cast<double>(plan.samples_per_epoch), 4), " epochs, ",
               with_digits(steps, 4), " steps of ", with_thousands(stage.batch), " samples");
  });
  if (e.optimizer.kind == "muon" && e.optimizer.other_rate != 1)
    text += cat("; for ", e.optimizer.other_kind, "'s tensors x ", with_digits(1 / e.optimizer.other_rate));
  return cat(text, ", at the peak rate", e.optimizer.weight_decay_by == "sample" ? " (the same at every batch)" : "");
}

std::string describe_average(const RunPlan& plan) {
  const AverageConfig& average = plan.experiment.average;
  return cat(describe_memory_of(plan, "weights,", 0, average.half_life),
             average.from_epoch > 0 ? cat(", from epoch ", with_digits(average.from_epoch)) : "",
             average.evaluate ? ", evaluated" : ", not evaluated");
}

std::string describe_noise(const RunPlan& plan) {
  const std::int64_t every = plan.experiment.noise.every_steps;
  if (plan.servers) return "not measured: parameter servers do not see the small batches of a step";
  if (every == 0) return "not measured (noise.every_steps is 0)";
  if (!plan.measures_noise)
    return "not measured: one rank does the whole batch in one pass; noise.small_batch makes smaller passes";
  return cat("from gradients of ", with_thousands(plan.batch.small_batch), " and ", with_thousands(plan.batch.global),
             " samples, ", every == 1 ? "every step" : cat("every ", every, " steps"), ", half-life ",
             with_thousands(std::llround(plan.noise_half_life)), " samples");
}

std::string describe_precision(const Experiment& e) {
  if (e.precision == "fp32" || e.precision == "tf32") return e.precision;
  const LossScaleConfig& s = e.loss_scale;
  return cat(e.precision, ", fp32 weights",
             e.precision == "bf16"
                 ? ""
                 : cat(", loss scale ", with_digits(s.initial), s.growth_steps > 0 ? ", dynamic" : ", static"));
}

// Describes the steps of an epoch in which the batch still has its first size, batch.global.
std::string describe_epoch(const RunPlan& plan) {
  const std::int64_t rest = plan.samples_per_epoch % plan.batch.global;
  const std::int64_t characters = used_of(plan.train, plan.train_loader);
  const bool last = plan.course.keeps_rest && rest > 0;
  const std::string steps = with_thousands(plan.samples_per_epoch / plan.batch.global + (last ? 1 : 0)) + " steps; ";
  const std::int64_t unread = plan.train.text.running_text ? targets_not_read(plan.train, plan.train_loader) : 0;
  if (plan.train.text.running_text && !plan.course.keeps_rest) {
    if (plan.train_loader.order == TextOrder::streams)
      return cat(steps, with_thousands(unread), " of the text's ", with_thousands(characters - 1),
                 " targets are never read, at the ends of the ", plan.batch.global, " streams");
    return cat(steps, with_thousands(unread), " of the text's ", with_thousands(characters - 1),
               " targets are not read in an epoch (", rest, " samples of each epoch's order, and the text's ends)");
  }
  if (!plan.course.keeps_rest) return cat(steps, rest, " samples of each epoch's order are dropped");
  const std::int64_t targets = characters - 1;
  const std::int64_t ends =
      plan.train.text.running_text ? targets - plan.samples_per_epoch * plan.train_loader.sequence : 0;
  return cat(steps, last ? cat("the last one has the ", rest, " samples that are left") : "all samples count",
             ends > 0 ? cat("; ", with_thousands(ends), " of the text's ", with_thousands(targets),
                            " targets are not read in an epoch (the text's ends)")
                      : "");
}

bool data_is_here(const RunPlan& plan) {
  return !plan.train.dataset_uuid.empty() && (!plan.has_validation || !plan.validation.dataset_uuid.empty());
}

// Returns the end of a branch, which differs from the end of its source run. "" if no number of steps is known.
std::string describe_branch_stop(const RunPlan& plan) {
  const std::int64_t samples = plan.experiment.branch.samples;
  const std::string steps = cat(counted(plan.updates - plan.branch.position.step, "step"), " of its own, up to step ",
                                with_thousands(plan.updates));
  if (samples == 0) return plan.updates > 0 ? "after " + steps : "";
  return cat("after ", with_thousands(samples), " samples of its own", plan.updates > 0 ? ", " + steps : "");
}

// Returns the statistics with which batch norm is evaluated, if they are not the running ones.
std::string describe_norm_statistics(const Experiment& e) {
  if (e.evaluate.norm_statistics == "last") return "evaluated with the last step's statistics";
  return cat("evaluated with statistics recomputed on ", with_thousands(e.evaluate.norm_samples), " training samples");
}

std::string describe_stop(const RunPlan& plan) {
  const StopConfig& s = plan.experiment.stop;
  std::string text = is_branch(plan.experiment) ? describe_branch_stop(plan) : "";
  const auto part = [&](const std::string& t) { text += (text.empty() ? "" : " or ") + t; };
  const bool by_stop = !is_branch(plan.experiment);
  if (by_stop && plan.adascale_times > 0 && plan.base_schedule.total_steps > 0) part(describe_adascale_stop(plan));
  const double epochs =
      static_cast<double>(plan.schedule.total_steps) / static_cast<double>(plan.schedule.steps_per_epoch);
  const std::string steps = counted(plan.updates, "step");
  if (by_stop && plan.updates > 0)
    part(plan.schedule.total_steps > 0 ? cat("after ", steps, " (", with_digits(epochs), " epochs)")
                                       : "after " + steps);
  else if (by_stop && plan.schedule.total_steps > 0)  // here the batch follows the noise
    part(cat("after ", with_digits(epochs), " epochs", s.steps > 0 ? " or " + counted(s.steps, "step") : ""));
  if (s.seconds > 0) part(cat("after ", with_digits(s.seconds), " s"));
  if (!s.target_metric.empty()) part(cat(s.target_metric, " reaches ", with_digits(s.target_value)));
  return text;
}

std::string describe_sums(const RunPlan& plan, bool on_device) {
  const std::int64_t all = plan.parameters.size(), bucket = bucket_elements(plan, on_device);
  if (bucket >= all) return cat(with_thousands(all), " gradients at once");
  return cat(with_thousands(all), " gradients in buckets of ", with_thousands(bucket));
}

}  // namespace

std::string describe_run(const RunPlan& plan, const std::string& backend, const std::vector<MemoryItem>& memory) {
  const Experiment& e = plan.experiment;
  std::int64_t host = 0, device = 0;
  for (const MemoryItem& item : memory) (item.on_device ? device : host) += item.bytes;
  Table t;
  t.section(e.name);
  t.row("experiment", cat(experiment_id(plan), data_is_here(plan) ? ""
                                                                  : " (without the data sets, which are not here: a "
                                                                    "run has another)"));
  t.row("model", describe_model(plan));
  t.row("data", cat(describe_data(plan.train, plan.samples_per_epoch), describe_share(plan)));
  if (plan.has_validation)
    t.row("validation", describe_data(plan.validation, samples_per_epoch(plan.validation, plan.validation_loader)));
  if (plan.train.is_image()) t.row("images", describe_images(e.data));
  t.row("precision", describe_precision(e));
  t.row("seed", std::to_string(e.seed));

  t.row("batch", to_string(plan.batch));
  t.row("epoch", describe_epoch(plan));
  if (is_branch(e)) t.row("branch", describe_branch(plan));
  t.row("optimizer", describe_optimizer(plan));
  t.row("memory of a step", describe_half_lives(plan));
  if (decouples_decay(e.optimizer) && e.optimizer.weight_decay > 0) t.row("decay's time scale", describe_decay(plan));
  if (e.average.half_life > 0) t.row("average", describe_average(plan));
  t.row("stop", describe_stop(plan));
  if (!e.checkpoint.keep_at.empty()) t.row("kept for ever", describe_kept(plan));

  t.row("machine", cat(describe_ranks(plan), ", each: ", backend));
  if (plan.servers) t.row("servers", describe_servers(plan));
  if (const std::string owners = describe_owners(plan); !owners.empty())
    t.row(e.parallel.shard_state ? "shards" : "servers", owners);
  if (plan.batch.ranks > 1 && e.parallel.kind == "ring") t.row("sums", describe_sums(plan, device > 0));

  t.row("micro-batch", cat(plan.batch.micro_batch, ": ", plan.micro_batch_choice.reason));
  t.row("noise scale", describe_noise(plan));
  if (e.evaluate.norm_statistics != "running") t.row("batch norm", describe_norm_statistics(e));
  if (const std::vector<std::string> names = recomputed_blocks(plan.graph); !names.empty())
    t.row("recomputed", joined(names));

  t.row("memory",
        cat(device > 0 ? cat(readable_bytes(device), " of the GPU and ") : "", readable_bytes(host), " per rank"));
  return t.str();
}

std::string describe_parameters(const RunPlan& plan) {
  Table t;
  t.section("parameters, in the order in which the backward pass finishes them");
  for (const Parameter& p : plan.parameters.all())
    t.row(p.name, cat(parameter_kind_name(p.kind), "  ", joined(p.shape, " x "), " = ", with_thousands(p.count),
                      "  at ", p.offset));
  t.row("total", cat(with_thousands(plan.parameters.count()), " parameters, ", with_thousands(plan.parameters.size()),
                     " elements with padding"));
  return t.str();
}

std::string describe_memory(const std::vector<MemoryItem>& memory) {
  Table t;
  const auto section = [&](const char* title, bool on_device) {
    std::int64_t total = 0;
    t.section(title);
    for (const MemoryItem& item : memory) {
      if (item.on_device != on_device) continue;
      t.row(item.what, with_thousands(item.bytes));
      total += item.bytes;
    }
    t.row("total", with_thousands(total));
  };
  if (std::any_of(memory.begin(), memory.end(), [](const MemoryItem& item) { return item.on_device; }))
    section("memory of one rank's GPU, bytes", true);
  section("memory of one rank, bytes", false);
  return t.str();
}

std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed) {
  const double forward = traffic.forward_bytes / static_cast<double>(micro_batch),
               backward = traffic.backward_bytes / static_cast<double>(micro_batch),
               weights = traffic.weights_bytes / static_cast<double>(rows_per_rank);
  const auto bytes = [](double value) { return with_thousands(std::llround(value)); };
  Table t;
  t.section(cat("memory traffic of one rank's GPU, bytes per sample, micro-batch ", micro_batch));
  t.row("forward", bytes(forward));
  t.row("backward", bytes(backward));
  t.row("weights' own copies", bytes(weights));
  t.row("total", bytes(forward + backward + weights));
  t.row("FLOPs", bytes(traffic.flops / static_cast<double>(micro_batch)));
  t.row("joined kernels", timed > 0 ? cat(timed, " of ", sites, " sites as they were timed, the others by fewest bytes")
                                    : cat(sites, " sites, nothing timed: the ways that move the fewest bytes"));
  return t.str();
}

}  // namespace ringtrain
