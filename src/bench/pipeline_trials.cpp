// Measures cuts and micro-batches of a pipeline, to find the fastest: measure_pipelines() of benchmarks.h.
#include <algorithm>
#include <optional>
#include <ranges>

#include "base/clock.h"
#include "base/error.h"
#include "bench/benchmarks.h"
#include "checkpoint/snapshot.h"
#include "cluster/watchdog.h"
#include "nn/graph.h"
#include "run/split.h"
#include "run/start.h"
#include "train/trainer.h"

namespace ringtrain {
namespace {

std::vector<std::size_t> cut_layers(const RunPlan& plan, const std::vector<ModelLayer>& layers) {
  std::vector<std::size_t> cuts;
  for (const int node : plan.cuts)
    cuts.push_back(static_cast<std::size_t>(std::ranges::find(layers, node, &ModelLayer::first) - layers.begin()));
  return cuts;
}

// Returns the cuts of the plan, and variants in which one cut is moved by one layer in either direction.
std::vector<std::vector<std::string>> cuts_nearby(const RunPlan& plan) {
  const std::vector<ModelLayer> layers = layers_of(plan.graph);
  const std::vector<std::size_t> own = cut_layers(plan, layers);
  std::vector<std::vector<std::size_t>> all = {own};
  for (std::size_t i = 0; i < own.size(); ++i)
    for (const bool later : {false, true}) {
      std::vector<std::size_t> moved = own;
      moved[i] += later ? 1 : std::size_t(-1);
      const std::size_t low = i > 0 ? moved[i - 1] : 0, high = i + 1 < own.size() ? moved[i + 1] : layers.size();
      if (moved[i] > low && moved[i] < high) all.push_back(std::move(moved));
    }
  std::vector<std::vector<std::string>> names;
  for (const std::vector<std::size_t>& cuts : all) {
    names.emplace_back();
    for (const std::size_t cut : cuts) names.back().push_back(layers[cut].name);
  }
  return names;
}

struct Measured {
  double seconds = 0;
  StageWaits waits;
};

// Returns medians over the steps after the first.
Measured measure(const RunPlan& plan, Machine& machine, const RankGroup& group, double seconds) {
  Communicator& host = *machine.host;
  Watchdog watchdog(group, plan.experiment.communication.timeout_seconds);
  Loader loader(shared_dataset(plan.train, group), for_rank(plan, plan.train_loader, host.rank()));
  Trainer trainer(plan, *machine.backend, machine.communicator(), watchdog, loader, std::nullopt, machine.stages.get());
  load_trainer(nullptr, trainer, plan, {}, machine.communicator(), machine.stages.get());
  std::vector<double> times, bubbles, boundaries;
  const double begin = now_seconds();
  for (bool more = true; more;) {
    const double step_begin = now_seconds();
    const StepReport report = trainer.step({});
    double own = now_seconds() - step_begin;
    host.sum(std::span<double>(&own, 1));
    times.push_back(own / host.size());
    bubbles.push_back(report.stage_waits.bubble);
    boundaries.push_back(report.stage_waits.boundary);
    double enough = times.size() > 1 && now_seconds() - begin > seconds ? 1 : 0;
    host.sum(std::span<double>(&enough, 1));
    more = enough == 0 && (plan.updates == 0 || std::ssize(times) < plan.updates);
  }
  const auto settled = [](std::vector<double> values) {
    if (values.size() > 1) values.erase(values.begin());
    return median(std::move(values));
  };
  return {settled(times), {settled(bubbles), settled(boundaries)}};
}

// Returns nothing if a run cannot have this plan, for example because it needs too much memory. The plan with the
// experiment's own size and cuts has been made before, so the other keys are valid.
std::optional<RunPlan> plan_that_fits(const Experiment& experiment, const DatasetIndex& train,
                                      const DatasetIndex* validation, int ranks, Backend& backend) {
  try {
    return make_run_plan(experiment, train, validation, ranks, backend);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::int64_t> micro_batches_to_try(const BatchShares& shares, std::size_t most) {
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : shares.micro_batches | std::views::reverse)
    if (sizes.size() < most && (sizes.empty() || 2 * size <= sizes.back() + sizes.back() / 3)) sizes.push_back(size);
  std::ranges::reverse(sizes);
  return sizes;
}

std::vector<PipelineTrial> measure_pipelines(const Experiment& experiment, const DatasetIndex& train,
                                             const DatasetIndex* validation, Machine& machine, const RankGroup& group,
                                             double seconds, bool only_sizes) {
  if (stages_of(experiment.parallel) == 1)
    throw Error("bench split measures pipelines, and every rank of this experiment computes the whole model",
                "give an experiment with parallel.kind: pipeline, or add parallel.kind=pipeline");
  const RunPlan first = make_run_plan(experiment, train, validation, group.size(), *machine.backend);
  const std::vector<std::int64_t> sizes = micro_batches_to_try(first.shares, only_sizes ? 6 : 10);
  std::vector<std::vector<std::string>> cuts = cuts_nearby(first);
  if (only_sizes) cuts.resize(1);
  std::vector<PipelineTrial> trials;
  for (const std::vector<std::string>& cut : cuts)
    for (const std::int64_t size : sizes) {
      Experiment candidate = experiment;
      candidate.batch.micro = size;
      candidate.parallel.cuts = cut;
      const auto fitting = plan_that_fits(candidate, train, validation, group.size(), *machine.backend);
      if (!fitting) continue;
      const RunPlan& plan = *fitting;
      const Measured m = measure(plan, machine, group, seconds / static_cast<double>(cuts.size() * sizes.size()));
      trials.push_back({.micro_batch = size,
                        .micro_batches = plan.batch.accumulation,
                        .cuts = cut,
                        .seconds = m.seconds,
                        .samples_per_second = static_cast<double>(plan.batch.global) / m.seconds,
                        .bubble_seconds = m.waits.bubble,
                        .boundary_seconds = m.waits.boundary});
    }
  if (trials.empty())
    throw Error("no split size fits into the memory of a rank", "raise memory.limit_gib, or set memory.recompute=auto");
  return trials;
}

const PipelineTrial& fastest(const std::vector<PipelineTrial>& trials) {
  return *std::ranges::max_element(trials, {}, &PipelineTrial::samples_per_second);
}

OutputKind split_table() {
  return table_output("table of ringtrain bench split", "experiment,ranks,stages,schedule,cuts,split_size,");
}

std::string pipeline_csv(const Experiment& experiment, int ranks, const std::vector<PipelineTrial>& trials) {
  std::string text =
      "experiment,ranks,stages,schedule,cuts,split_size,micro_batches,step_seconds,samples_per_second,"
      "bubble_seconds,boundary_seconds\n";
  const ParallelConfig& parallel = experiment.parallel;
  for (const PipelineTrial& t : trials)
    text += cat(experiment.name, ",", ranks, ",", parallel.stages, ",", parallel.schedule, ",", joined(t.cuts, " "),
                ",", t.micro_batch, ",", t.micro_batches, ",", t.seconds, ",", t.samples_per_second, ",",
                t.bubble_seconds, ",", t.boundary_seconds, "\n");
  return text;
}

}  // namespace ringtrain
