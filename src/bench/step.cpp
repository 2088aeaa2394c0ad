// `ringtrain bench step`: where the time of a step goes, with the experiment's model and batch: passes alone, a step on
// the same input again and again with its sums, and training steps with the data set.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "bench/experiment_keys.h"
#include "bench/measure.h"
#include "cluster/gradient_reducer.h"
#include "optim/optimizer.h"
#include "train/snapshot.h"
#include "train/start.h"
#include "train/trainer.h"

namespace ringtrain {

namespace {

constexpr std::size_t watermark_points = 64;

// The parts of a step as the trainer has them, on random input.
class SyntheticStep {
 public:
  SyntheticStep(const RunPlan& plan, const Machine& machine)
      : plan_(plan),
        backend_(*machine.backend),
        weights_(backend_.make_vector(plan.parameters.size())),
        gradients_(backend_.make_vector(plan.parameters.size(), true)),
        optimizer_(plan.experiment.optimizer, plan.parameters, backend_),
        reducer_(machine.communicator(), {gradients_->data(), static_cast<std::size_t>(gradients_->size())},
                 bucket_elements(plan.experiment.communication, backend_.on_device())) {
    std::vector<float> flat(static_cast<std::size_t>(weights_->size()));
    initialize(plan.parameters, plan.experiment.seed, flat);
    backend_.copy_from_host(flat, *weights_, 0);
    context_.loss_scale = 1.0f / static_cast<float>(plan.batch.global * plan.graph.sequence());
    context_.statistic_scale = 1.0f / static_cast<float>(plan.batch.workers);
    context_.dropout_key = random_key(plan.experiment.seed, RandomPurpose::dropout);
  }

  void compile(std::int64_t micro_batch) {
    program_.reset();  // its memory first
    program_ = backend_.compile(plan_.graph, micro_batch, plan_.precision, PassMode::training, plan_.norm_group);
    program_->allocate();
    program_->set_weights(*weights_);
    const auto* tokens = std::get_if<TokenInput>(&plan_.graph.nodes().front().operation);
    const int values = tokens != nullptr ? static_cast<int>(tokens->vocabulary) : 256;
    inputs_.resize(static_cast<std::size_t>(micro_batch * plan_.graph.input_bytes()));
    targets_.resize(static_cast<std::size_t>(micro_batch * plan_.graph.sequence()));
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      inputs_[i] = static_cast<std::uint8_t>(static_cast<int>(random_uniform(1, i) * values));
    for (std::size_t i = 0; i < targets_.size(); ++i)
      targets_[i] = static_cast<std::int32_t>(random_uniform(2, i) * static_cast<double>(plan_.graph.classes()));
    state_.assign(static_cast<std::size_t>(plan_.carries_state ? micro_batch * plan_.graph.state_size() : 0), 0.0f);
    context_.state = state_.empty() ? nullptr : state_.data();
  }

  void forward() {
    program_->stage({inputs_.data(), targets_.data()});
    program_->forward(context_);
  }
  void forward_alone() {
    forward();
    program_->take_sums();
  }
  void pass(const BackwardHooks& hooks = {}) {
    forward();
    program_->backward(*gradients_, false, hooks);
    program_->take_sums();
  }
  // At a rate that moves no weight: the work is the same. Not 0, which momentum correction would divide by.
  void update() {
    const auto momentum = static_cast<float>(plan_.experiment.model.norm_momentum);
    optimizer_.update(*weights_, *gradients_, {1e-30, 1e-30}, 0, 1, momentum, program_.get());
  }
  void step() {
    reducer_.begin();
    for (std::int64_t i = 0; i < plan_.batch.accumulation; ++i) {
      const bool last = i + 1 == plan_.batch.accumulation;
      forward();
      program_->backward(*gradients_, i > 0, last ? overlap_ : BackwardHooks{});
    }
    program_->take_sums();
    double counters[7] = {};
    reducer_.finish(counters);
    update();
  }
  // How the watermark rises over one backward pass.
  std::vector<WatermarkPoint> watermark() {
    std::vector<WatermarkPoint> points;
    forward_alone();
    const double begin = now_seconds();
    BackwardHooks hooks{[&](std::int64_t mark) {
                          points.push_back({now_seconds() - begin,
                                            static_cast<double>(mark) / static_cast<double>(gradients_->size())});
                        },
                        [] {}};
    program_->backward(*gradients_, false, hooks);
    program_->take_sums();
    const double seconds = now_seconds() - begin;
    for (WatermarkPoint& p : points) p.time = std::min(1.0, p.time / seconds);
    // Of neighbours the later stays: no bucket is promised too early.
    while (points.size() > watermark_points) {
      std::vector<WatermarkPoint> fewer;
      for (std::size_t i = 1; i < points.size(); i += 2) fewer.push_back(points[i]);
      if (fewer.back().share < points.back().share) fewer.push_back(points.back());
      points = fewer;
    }
    return points;
  }

 private:
  const RunPlan& plan_;
  Backend& backend_;
  std::unique_ptr<Vector> weights_, gradients_;
  Optimizer optimizer_;
  GradientReducer reducer_;
  BackwardHooks overlap_{[this](std::int64_t mark) { reducer_.ready(mark); }, [this] { reducer_.poll(); }};
  std::unique_ptr<Program> program_;
  PassContext context_;
  std::vector<std::uint8_t> inputs_;
  std::vector<std::int32_t> targets_;
  std::vector<float> state_;
};

// Quarters of the micro-batch, down to one group of batch norm. A device would have to find plans for each.
std::vector<std::int64_t> micro_batches(const RunPlan& plan, bool on_device) {
  std::vector<std::int64_t> sizes = {plan.batch.micro_batch};
  const std::int64_t unit = std::max<std::int64_t>(1, plan.norm_group);
  while (!on_device && sizes.size() < 4 && sizes.back() > unit)
    sizes.push_back(std::max(unit, sizes.back() / 4 / unit * unit));
  return sizes;
}

struct TrainingSteps {
  double seconds = 0, waited = 0;
};

// With the data set; the first steps of the run that the experiment describes.
TrainingSteps training_steps(const BenchContext& context, const RunPlan& plan, double estimate) {
  const double budget = context.arguments.seconds / 4;
  std::int64_t steps = static_cast<std::int64_t>(budget / std::max(estimate, 1e-6));
  Communicator& host = *context.machine.host;
  steps = std::clamp<std::int64_t>(steps, 5, 200);
  if (plan.schedule.total_steps > 0) steps = std::min(steps, plan.schedule.total_steps);
  host.broadcast(std::as_writable_bytes(std::span(&steps, 1)), 0);

  Watchdog watchdog(plan.experiment.communication.timeout_seconds);
  Loader loader(make_dataset(plan.train), for_rank(plan.train_loader, host.rank()));
  Trainer trainer(plan, *context.machine.backend, context.machine.communicator(), watchdog, loader);
  load_trainer(nullptr, trainer, plan, {}, context.machine.communicator());
  std::vector<double> seconds, waited;
  for (std::int64_t s = 0; s < steps; ++s) {
    const double begin = now_seconds();
    const StepReport report = trainer.step({});
    seconds.push_back(now_seconds() - begin);
    waited.push_back(report.times.input);
  }
  return {median(seconds), median(waited)};
}

void print(const StepMeasurement& s, const RunPlan& plan) {
  char line[200];
  const auto percent = [](double part, double whole) { return 100 * part / whole; };
  const double alone = static_cast<double>(s.accumulation) * (s.forward + s.backward) + s.update;
  std::snprintf(line, sizeof line, "step: %s", to_string(plan.batch).c_str());
  log_info(std::string(line));
  for (const PassTime& p : s.passes) {
    std::snprintf(line, sizeof line, "  a pass of %5.0f samples: forward %9.3f ms, backward %9.3f ms, %9.0f samples/s",
                  p.micro_batch, 1e3 * p.forward, 1e3 * p.backward, p.micro_batch / (p.forward + p.backward));
    log_info(std::string(line));
  }
  std::snprintf(line, sizeof line,
                "  a step: %.3f ms of computing (update %.3f), %.3f ms with its sums (%+.1f %%): %.0f samples/s",
                1e3 * alone, 1e3 * s.update, 1e3 * s.seconds, percent(s.seconds - alone, alone),
                static_cast<double>(plan.batch.global) / s.seconds);
  log_info(std::string(line));
  if (s.input_seconds == 0) return;
  std::snprintf(line, sizeof line,
                "  a training step with the data set: %.3f ms (%.1f %% waiting for input): %.0f samples/s",
                1e3 * s.input_seconds, percent(s.input_wait, s.input_seconds),
                static_cast<double>(plan.batch.global) / s.input_seconds);
  log_info(std::string(line));
}

}  // namespace

void bench_step(const BenchContext& context, Preflight& result) {
  Communicator& host = *context.machine.host;
  Backend& backend = *context.machine.backend;
  const Experiment& e = context.experiment;
  const DatasetIndex index = shared_index(e.data.train, host);
  RunPlan plan;
  context.machine.agree_on_fusions([&] {
    plan = make_run_plan(e, index, nullptr, host.size(), backend);
    backend.compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training, plan.norm_group);
  });
  const double seconds = context.arguments.seconds;

  StepMeasurement s;
  s.model = model_keys(e);
  s.micro_batch = plan.batch.micro_batch;
  s.accumulation = plan.batch.accumulation;
  s.rows_per_rank = plan.batch.rows_per_rank;
  s.parameters = plan.parameters.count();
  s.elements = plan.parameters.size();
  s.bucket_mib = static_cast<double>(bucket_elements(e.communication, backend.on_device()) * 4) / (1 << 20);
  s.element_bytes = backend.on_device() && e.communication.gradient_type != "fp32" ? 2 : 4;
  s.ranks = host.size();
  s.ranks_per_node = result.ranks_per_node;
  s.threads = context.threads;
  s.cores_per_node = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  s.on_device = backend.on_device();
  s.whole_workers = plan.graph.has_batch_norm();

  std::vector<double> pass_of_rank;
  {
    SyntheticStep step(plan, context.machine);
    const std::vector<std::int64_t> sizes = micro_batches(plan, backend.on_device());
    const double share = seconds / 2 / static_cast<double>(sizes.size());
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      step.compile(*size);
      // By turns, so that what disturbs one disturbs the other.
      std::vector<double> forward, pass;
      const Runs both = timed_runs(host, share, 1000, TooSlow::run_anyway, [&] {
        const double begin = now_seconds();
        step.forward_alone();
        const double between = now_seconds();
        step.pass();
        forward.push_back(between - begin);
        pass.push_back(now_seconds() - between);
      });
      const double f = median(forward), p = std::max(median(pass), f), slowest = both.slowest() / (f + p);
      s.passes.push_back({static_cast<double>(*size), slowest * f, slowest * (p - f)});
      s.jitter = both.jitter();
      pass_of_rank.clear();
      for (std::size_t r = 0; r < both.of_rank.size(); ++r) pass_of_rank.push_back(both.rank_median(r));
    }
    s.update = timed_runs(host, seconds / 20, 100, TooSlow::run_anyway, [&] { step.update(); }).slowest();
    s.seconds = timed_runs(host, seconds / 4, 1000, TooSlow::run_anyway, [&] { step.step(); }).slowest();
    if (!backend.on_device()) s.watermark = step.watermark();
  }
  s.forward = s.passes.back().forward;
  s.backward = s.passes.back().backward;
  const TrainingSteps training = training_steps(context, plan, s.seconds);
  s.input_seconds = training.seconds;
  s.input_wait = training.waited;
  if (!context.root()) return;
  print(s, plan);
  for (const SlowHost& h : slow_hosts(context.hosts, by_host(context, pass_of_rank, true), "computing", true))
    result.slow.push_back(h);
  result.step = s;
  result.has_step = true;
}

}  // namespace ringtrain
