#include "train/run_plan.h"

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/table.h"
#include "models/models.h"
#include "optim/optimizer.h"

namespace ringtrain {

namespace {

TextOrder text_order(const Experiment& e, const DatasetIndex& index) {
  if (!index.text.running_text) return TextOrder::rows;
  return e.data.order == "streams" ? TextOrder::streams : TextOrder::windows;
}

LoaderPlan loader_plan(const RunPlan& plan, const DatasetIndex& index, bool evaluation) {
  const Experiment& e = plan.experiment;
  LoaderPlan l;
  l.seed = e.seed;
  l.order = text_order(e, index);
  l.sequence = plan.graph.sequence();
  l.mask_blanks = e.data.blanks == "masked";
  l.global_batch = plan.batch.global;
  l.rows = plan.batch.rows_per_rank;
  l.micro_batch = plan.batch.micro_batch;
  l.evaluation = evaluation;
  l.threads = e.data.loader_threads;
  l.prefetch = e.data.prefetch;
  return l;
}

std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch) {
  std::int64_t steps = 0;
  if (stop.epochs > 0)
    steps = std::max<std::int64_t>(1, std::llround(stop.epochs * static_cast<double>(steps_per_epoch)));
  if (stop.steps > 0) steps = steps > 0 ? std::min(steps, stop.steps) : stop.steps;
  return steps;
}

void check_same_symbols(const DatasetIndex& train, const DatasetIndex& validation) {
  if (train.text.vocabulary != validation.text.vocabulary || train.text.context_length != validation.text.context_length ||
      train.text.running_text != validation.text.running_text)
    throw Error(cat("data.validation ", validation.prefix, " has another vocabulary or context length than data.train ",
                    train.prefix),
                "convert both in one run of ringtrain-data");
}

// Keys that say nothing about this kind of data, and would be ignored.
void check_keys_apply(const Experiment& e, const DatasetIndex& index) {
  const auto refuse = [&](const std::string& key, const char* what) {
    throw Error(cat(key, " has no effect: ", index.prefix, " holds ", what), "leave the key out");
  };
  const DataConfig plain;
  if (index.text.running_text && e.data.blanks != plain.blanks) refuse("data.blanks: " + e.data.blanks, "running text");
  if (index.text.running_text) return;
  if (e.data.order != plain.order) refuse("data.order: " + e.data.order, "names");
  if (e.data.sequence != plain.sequence) refuse(cat("data.sequence: ", e.data.sequence), "names");
}

}  // namespace

RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, std::int64_t recorded_micro_batch) {
  RunPlan p;
  p.experiment = experiment;
  p.train = train;
  if (validation != nullptr) {
    check_same_symbols(train, *validation);
    p.validation = *validation;
    p.has_validation = true;
  }
  check_keys_apply(experiment, train);
  p.precision = experiment.precision == "bf16" ? Precision::bf16 : Precision::fp32;
  const std::int64_t sequence = train.text.running_text ? experiment.data.sequence : train.text.context_length;
  p.graph = build_model(experiment.model, {sequence, static_cast<std::int64_t>(train.text.vocabulary.size())});
  p.parameters = p.graph.parameters();

  BatchConfig batch = experiment.batch;
  const std::int64_t rows = batch.global / std::max(1, ranks);
  if (batch.micro == 0 && recorded_micro_batch > 0 && rows % recorded_micro_batch == 0)
    batch.micro = recorded_micro_batch;
  p.batch = batch_plan(batch, ranks, backend.preferred_micro_batch(p.graph, p.precision), p.graph.has_batch_norm());

  p.train_loader = loader_plan(p, train, false);
  if (p.has_validation) p.validation_loader = loader_plan(p, p.validation, true);
  p.carries_state = p.train_loader.order == TextOrder::streams;
  p.samples_per_epoch = samples_per_epoch(train, p.train_loader);
  p.schedule.global_batch = p.batch.global;
  p.schedule.steps_per_epoch = steps_per_epoch(train, p.train_loader);
  p.schedule.total_steps = total_steps(experiment.stop, p.schedule.steps_per_epoch);
  learning_rate(experiment.learning_rate, p.schedule, 0);  // throws what the schedule lacks, before step 0
  return p;
}

LoaderPlan for_rank(LoaderPlan plan, int rank) {
  plan.first_row = rank * plan.rows;
  return plan;
}

std::string model_fingerprint(const RunPlan& plan) {
  std::string text = cat(plan.experiment.model.kind, ", ", plan.graph.sequence(), " positions;");
  for (const Parameter& p : plan.parameters.all()) {
    text += " " + p.name + " [";
    for (std::size_t i = 0; i < p.shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(p.shape[i]);
    text += "]";
  }
  text += "; symbols:";
  for (const std::string& symbol : plan.train.text.vocabulary) text += " '" + symbol + "'";
  return text;
}

std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend) {
  const auto vector_bytes = plan.parameters.size() * static_cast<std::int64_t>(sizeof(float));
  std::vector<MemoryItem> items = {{"weights", vector_bytes}, {"gradients", vector_bytes}};
  for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer))
    items.push_back({"optimizer state " + name, vector_bytes});
  const auto add_program = [&](PassMode mode) {
    for (const MemoryItem& item : backend.compile(plan.graph, plan.batch.micro_batch, plan.precision, mode)->memory())
      items.push_back(item);
  };
  add_program(PassMode::training);
  if (plan.has_validation) add_program(PassMode::inference);
  if (plan.carries_state) {
    const auto bytes = plan.batch.rows_per_rank * plan.graph.state_size() * static_cast<std::int64_t>(sizeof(float));
    items.push_back({"carried state", bytes});
    if (plan.has_validation) items.push_back({"carried state, evaluation", bytes});
  }
  items.push_back({"loader, training", Loader::memory_bytes(plan.train, plan.train_loader)});
  items.push_back({"data set, training", make_dataset(plan.train)->memory_bytes()});
  if (plan.has_validation) {
    items.push_back({"loader, evaluation", Loader::memory_bytes(plan.validation, plan.validation_loader)});
    items.push_back({"data set, evaluation", make_dataset(plan.validation)->memory_bytes()});
  }
  std::int64_t values = plan.parameters.count() * (1 + std::ssize(Optimizer::state_names(plan.experiment.optimizer)));
  if (plan.carries_state) values += plan.batch.global * plan.graph.state_size();
  items.push_back({"checkpoint being written, rank 0", values * static_cast<std::int64_t>(sizeof(float))});
  return items;
}

bool due(double every_epochs, std::int64_t every_steps, std::int64_t steps_per_epoch, std::int64_t finished_steps) {
  if (every_steps > 0 && finished_steps % every_steps == 0) return true;
  if (every_epochs <= 0) return false;
  const double interval = every_epochs * static_cast<double>(steps_per_epoch);
  const auto intervals = [&](std::int64_t step) { return std::floor(static_cast<double>(step) / interval + 1e-9); };
  return intervals(finished_steps) > intervals(finished_steps - 1);
}

namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string describe_data(const DatasetIndex& index, std::int64_t samples) {
  return cat(index.prefix, ": ", with_thousands(samples), " samples in ", index.shards.size(),
             index.shards.size() == 1 ? " shard, " : " shards, ", index.text.vocabulary.size(), " symbols");
}

std::string describe_optimizer(const Experiment& e) {
  const OptimizerConfig& o = e.optimizer;
  std::string text = o.kind;
  if (o.kind == "sgd")
    text += cat(", momentum ", number(o.momentum), o.nesterov ? " (Nesterov)" : "");
  else
    text += cat(", betas ", number(o.beta1), " ", number(o.beta2), ", epsilon ", number(o.epsilon));
  if (o.weight_decay > 0)
    text +=
        cat(", weight decay ", number(o.weight_decay), o.decay_norm_and_bias ? " on everything" : " on weights only");
  if (o.clip_norm > 0) text += cat(", clipped to norm ", number(o.clip_norm));
  return text;
}

std::string describe_stop(const RunPlan& plan) {
  const StopConfig& s = plan.experiment.stop;
  std::string text;
  const auto part = [&](const std::string& t) { text += (text.empty() ? "" : " or ") + t; };
  if (plan.schedule.total_steps > 0)
    part(
        cat("after ", with_thousands(plan.schedule.total_steps), " steps (",
            number(static_cast<double>(plan.schedule.total_steps) / static_cast<double>(plan.schedule.steps_per_epoch)),
            " epochs)"));
  if (s.seconds > 0) part(cat("after ", number(s.seconds), " s"));
  if (!s.target_metric.empty()) part(cat(s.target_metric, " reaches ", number(s.target_value)));
  return text;
}

}  // namespace

std::string describe_run(const RunPlan& plan, const std::string& backend, const std::vector<MemoryItem>& memory) {
  const Experiment& e = plan.experiment;
  std::int64_t bytes = 0;
  for (const MemoryItem& item : memory) bytes += item.bytes;
  Table t;
  t.section(e.name);
  t.row("model", cat(e.model.kind, " ", e.model.layers, " x ", e.model.hidden, ", dropout ", number(e.model.dropout),
                     ", ", with_thousands(plan.parameters.count()), " parameters"));
  t.row("data", describe_data(plan.train, plan.samples_per_epoch));
  if (plan.has_validation)
    t.row("validation", describe_data(plan.validation, samples_per_epoch(plan.validation, plan.validation_loader)));
  t.row("batch", to_string(plan.batch));
  t.row("epoch", cat(with_thousands(plan.schedule.steps_per_epoch), " steps; ",
                     plan.samples_per_epoch - plan.schedule.steps_per_epoch * plan.batch.global,
                     " samples of each epoch's order are dropped"));
  t.row("optimizer", describe_optimizer(e));
  t.row("stop", describe_stop(plan));
  t.row("machine", cat(plan.batch.ranks, plan.batch.ranks == 1 ? " rank" : " ranks", ", each: ", backend));
  t.row("precision", e.precision == "bf16" ? "bf16, fp32 weights" : "fp32");
  t.row("memory", cat(readable_bytes(static_cast<double>(bytes)), " per rank"));
  t.row("seed", std::to_string(e.seed));
  return t.str();
}

std::string describe_learning_rate(const RunPlan& plan) {
  Table t;
  t.section("learning rate");
  for (const LearningRateCorner& c : learning_rate_corners(plan.experiment.learning_rate, plan.schedule))
    t.row(cat("step ", c.step, " (epoch ",
              number(static_cast<double>(c.step) / static_cast<double>(plan.schedule.steps_per_epoch)), ")"),
          cat(number(c.rate), "  ", c.what));
  return t.str();
}

std::string describe_parameters(const RunPlan& plan) {
  Table t;
  t.section("parameters, in the order in which the backward pass finishes them");
  for (const Parameter& p : plan.parameters.all()) {
    std::string shape;
    for (std::int64_t d : p.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(d);
    t.row(p.name, cat(parameter_kind_name(p.kind), "  ", shape, " = ", with_thousands(p.count), "  at ", p.offset));
  }
  t.row("total", cat(with_thousands(plan.parameters.count()), " parameters, ", with_thousands(plan.parameters.size()),
                     " elements with padding"));
  return t.str();
}

std::string describe_memory(const std::vector<MemoryItem>& memory) {
  Table t;
  t.section("memory of one rank, bytes");
  std::int64_t total = 0;
  for (const MemoryItem& item : memory) {
    t.row(item.what, with_thousands(item.bytes));
    total += item.bytes;
  }
  t.row("total", with_thousands(total));
  return t.str();
}

}  // namespace ringtrain
