// `ringtrain bench step` measures where the time of a step goes, with the experiment's model and batch. It measures
// passes alone, steps with sums on the same input, and training steps with the data set.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <thread>

#include "backend/backend.h"
#include "backend/cpu/processor.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/system_limits.h"
#include "base/table.h"
#include "bench/benchmarks.h"
#include "bench/preflight.h"
#include "bench/synthetic_step.h"
#include "checkpoint/snapshot.h"
#include "cluster/binding.h"
#include "cluster/waiting.h"
#include "run/split.h"
#include "run/start.h"
#include "train/trainer.h"

namespace ringtrain {

std::vector<int> half_of_cores(const std::vector<int>& cpus, const std::vector<int>& core_of) {
  const std::set<int> cores(core_of.begin(), core_of.end());
  if (cores.size() % 2 != 0) return {};
  const std::set<int> kept(cores.begin(), std::next(cores.begin(), static_cast<std::ptrdiff_t>(cores.size() / 2)));
  std::vector<int> half;
  for (std::size_t i = 0; i < cpus.size(); ++i)
    if (kept.contains(core_of[i])) half.push_back(cpus[i]);
  return half;
}

namespace {

// ---- States of the node in which passes are measured: all cores are busy, or two ranks run on the same cores. A state
// ends with its object

bool on_all(Communicator& host, bool mine) {
  double without = mine ? 0 : 1;
  host.sum(std::span(&without, 1));
  return without == 0;
}

// Binds all threads of this process to the CPUs, including those of OpenMP.
void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    sched_setaffinity(std::stoi(thread.path().filename()), sizeof set, &set);
}

// Loads the node: threads compute passes of the same kind on the CPUs that this rank may use but does not need. Memory
// bandwidth, caches and clock frequency are then as on a node full of ranks. There are no such threads if they would
// take more than half of the free memory. `bytes_each` is the memory of one thread. Throws Error if the system refuses
// a thread. Collective.
class NodeLoad {
 public:
  NodeLoad(const Session& session, Communicator& host, const RunPlan& plan, int threads, std::int64_t bytes_each) {
    const std::optional<HostMemory> memory = host_memory();
    const std::int64_t free_bytes = memory ? memory->available : 0;
    const std::int64_t fit = free_bytes / 2 / session.node_size() / std::max<std::int64_t>(1, bytes_each);
    const int room = session.available_threads() / std::max(1, threads) - 1;
    const int count = fit < room ? 0 : room;  // a partial load would show little
    is_there_ = !on_all(host, count < 1);
    const auto load = [this, &plan, threads] {
      try {
        cpu::expect_threads(threads);
        const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
        SyntheticPasses passes(plan, *backend, plan.batch.micro_batch);
        for (++started_; !ending_.load(std::memory_order_relaxed);) passes.pass();
      } catch (const std::exception& e) {  // too little memory for all threads, so fewer run
        log_warning("a thread that keeps the other cores busy during the measurement has failed: ", e.what());
        ++started_;
      }
    };
    try {
      while (std::ssize(threads_) < count) threads_.push_back(start_thread("keeps the other cores busy", load));
    } catch (...) {
      end();
      throw;
    }
    while (started_ < count) std::this_thread::yield();
  }

  ~NodeLoad() { end(); }
  NodeLoad(const NodeLoad&) = delete;
  NodeLoad& operator=(const NodeLoad&) = delete;
  bool is_there() const { return is_there_; }  // whether any rank has such threads; the same on all ranks

 private:
  // Ends all threads.
  void end() {
    ending_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  std::atomic<bool> ending_{false};
  std::atomic<int> started_{0};
  std::vector<std::thread> threads_;
  bool is_there_ = false;
};

// Binds ranks 2i and 2i + 1 of each node to half of their cores, so that two threads take turns on each. Collective.
class SharedCores {
 public:
  SharedCores(const Session& session, Communicator& host) : own_(own_cpus()) {
    const std::vector<std::string> of_node = session.job().gather_on_node(cpu_list(own_));
    std::vector<int> shared;
    if (of_node.size() % 2 == 0 && !session.oversubscribed()) {
      const std::size_t first = static_cast<std::size_t>(session.node_rank()) / 2 * 2;
      std::set<int> cpus;
      for (const std::string& text : {of_node[first], of_node[first + 1]})
        for (const int cpu : parse_cpu_list(text)) cpus.insert(cpu);
      const std::vector<int> both(cpus.begin(), cpus.end());
      std::vector<int> core_of;
      for (const int cpu : both) core_of.push_back(cores_of({cpu}).front());
      shared = half_of_cores(both, core_of);
    }
    are_shared_ = on_all(host, !shared.empty());
    if (!are_shared_) return;
    bind_to(shared);
    node_is_oversubscribed.store(true, std::memory_order_relaxed);
  }

  ~SharedCores() {
    if (!are_shared_) return;
    node_is_oversubscribed.store(false, std::memory_order_relaxed);
    bind_to(own_);
  }

  SharedCores(const SharedCores&) = delete;
  SharedCores& operator=(const SharedCores&) = delete;
  // The same on all ranks. False if a node has an odd number of ranks, if its ranks share cores anyway, or if two ranks
  // together have an odd number of cores.
  bool are_shared() const { return are_shared_; }

 private:
  std::vector<int> own_;
  bool are_shared_ = false;
};

// ---- The measurements

// Returns up to four sizes: the micro-batch, a quarter of it, and so on, down to one group of batch norm. On a device
// it returns the micro-batch only, because every size would need plans of its own.
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

// Runs the first training steps of the experiment with its data set, and returns their times.
TrainingSteps training_steps(const BenchContext& context, const RunPlan& plan, double estimate) {
  Communicator& host = *context.machine.host;
  std::int64_t steps = steps_in(host, context.seconds / 4, estimate, 5, 200);
  if (plan.updates > 0) steps = std::min(steps, plan.updates);

  Watchdog watchdog(context.session.job(), plan.experiment.communication.timeout_seconds);
  Loader loader(shared_dataset(plan.train, context.session.job()), for_rank(plan.train_loader, host.rank()));
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

double slowest_of(const BenchContext& context, double seconds, int most, const std::function<void()>& work) {
  return timed_runs(*context.machine.host, seconds, most, TooSlow::run_anyway, work).slowest();
}

// Measures passes alone. On a CPU, the largest ones are measured again while other threads load the node, and while two
// ranks share their cores, if this node allows it. Returns the median seconds of the largest passes of each rank, on
// rank 0.
std::vector<double> measure_passes(const BenchContext& context, const RunPlan& plan, StepMeasurement& s) {
  Communicator& host = *context.machine.host;
  Backend& backend = *context.machine.backend;
  const std::vector<std::int64_t> sizes = micro_batches(plan, backend.on_device());
  const double share = context.seconds / 2 / static_cast<double>(sizes.size());
  std::vector<double> of_rank;
  std::optional<SyntheticPasses> passes;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    passes.reset();  // frees its memory first
    passes.emplace(plan, backend, *size, &context.machine.communicator());
    // The two kinds of runs alternate, so that a disturbance of the machine affects both.
    std::vector<double> forward, pass;
    const Runs both = timed_runs(host, share, 1000, TooSlow::run_anyway, [&] {
      const double begin = now_seconds();
      passes->forward();
      const double between = now_seconds();
      passes->pass();
      forward.push_back(between - begin);
      pass.push_back(now_seconds() - between);
    });
    const double f = median(forward), p = std::max(median(pass), f), slowest = both.slowest() / (f + p);
    s.passes.push_back({static_cast<double>(*size), slowest * f, slowest * (p - f)});
    s.jitter = both.jitter();
    of_rank = both.rank_medians();
  }
  s.forward = s.passes.back().forward;
  s.backward = s.passes.back().backward;
  if (backend.on_device()) return of_rank;
  s.watermark = passes->watermark();
  const auto pass = [&] { passes->pass(); };
  if (const NodeLoad load(context.session, host, plan, context.threads, backend.allocated_bytes()); load.is_there())
    s.full_node_pass = slowest_of(context, context.seconds / 8, 1000, pass);
  if (const SharedCores sharing(context.session, host); sharing.are_shared())
    s.shared_pass = slowest_of(context, context.seconds / 8, 1000, pass);
  return of_rank;
}

// Measures steps with sums on random input. On a CPU, also while two ranks share their cores, if this node allows it.
void measure_steps(const BenchContext& context, const RunPlan& plan, StepMeasurement& s) {
  RandomInput input(plan, plan.batch.micro_batch);
  StillSteps steps(context, plan, input);
  s.seconds = slowest_of(context, context.seconds / 4, 1000, [&] { steps.step(); });
  s.update = slowest_of(context, context.seconds / 20, 100, [&] { steps.update(); });
  if (s.on_device) return;
  if (const SharedCores sharing(context.session, *context.machine.host); sharing.are_shared())
    s.shared_step = slowest_of(context, context.seconds / 8, 1000, [&] { steps.step(); });
}

void print(const StepMeasurement& s, const RunPlan& plan) {
  const auto percent = [](double part, double whole) { return 100 * part / whole; };
  const double alone = static_cast<double>(s.accumulation) * (s.forward + s.backward) + s.update;
  log_info("step: ", to_string(plan.batch));
  for (const PassTime& p : s.passes) {
    log_info(printed("  a pass of %5.0f samples: forward %9.3f ms, backward %9.3f ms, %9.0f samples/s", p.micro_batch,
                     1e3 * p.forward, 1e3 * p.backward, p.micro_batch / (p.forward + p.backward)));
  }
  const double pass = s.forward + s.backward;
  if (s.full_node_pass > 0) {
    log_info(printed("  a pass while the whole node computes: %.3f ms (%+.1f %%)", 1e3 * s.full_node_pass,
                     percent(s.full_node_pass - pass, pass)));
  }
  if (s.shared_pass > 0) {
    log_info(printed("  two ranks on one core: a pass %.3f ms (twice the time of one rank %+.1f %%), a step %.3f ms",
                     1e3 * s.shared_pass, percent(s.shared_pass - 2 * pass, 2 * pass), 1e3 * s.shared_step));
  }
  log_info(printed("  a step: %.3f ms of computing (update %.3f), %.3f ms with its sums (%+.1f %%): %.0f samples/s",
                   1e3 * alone, 1e3 * s.update, 1e3 * s.seconds, percent(s.seconds - alone, alone),
                   static_cast<double>(plan.batch.global) / s.seconds));
  if (s.input_seconds == 0) return;
  log_info(printed("  a training step with the data set: %.3f ms (%.1f %% waiting for input): %.0f samples/s",
                   1e3 * s.input_seconds, percent(s.input_wait, s.input_seconds),
                   static_cast<double>(plan.batch.global) / s.input_seconds));
}

}  // namespace

void bench_step(const BenchContext& context, Preflight& result) {
  refuse_other_kinds(context.experiment.parallel, "bench step measures steps of a ring");
  Communicator& host = *context.machine.host;
  Backend& backend = *context.machine.backend;
  const Experiment& e = context.experiment;
  const DatasetIndex index = shared_index(e.data.train, host);
  const RunPlan plan = compiled_plan(context, index);

  StepMeasurement s;
  s.model = model_keys(e);
  s.micro_batch = plan.batch.micro_batch;
  s.accumulation = plan.batch.accumulation;
  s.rows_per_rank = plan.batch.rows_per_rank;
  s.parameters = plan.parameters.count();
  s.elements = plan.parameters.size();
  s.bucket_mib =
      static_cast<double>(bucket_elements(e.communication, backend.on_device(), host.size()) * 4) / (1 << 20);
  s.element_bytes = backend.on_device() && e.communication.gradient_type != "fp32" ? 2 : 4;
  s.ranks = host.size();
  s.ranks_per_node = result.ranks_per_node;
  s.threads = context.threads;
  s.cores_per_node = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  s.on_device = backend.on_device();
  s.whole_workers = plan.graph.has_batch_norm();

  const std::vector<double> pass_of_rank = measure_passes(context, plan, s);
  measure_steps(context, plan, s);
  const TrainingSteps training = training_steps(context, plan, s.seconds);
  s.input_seconds = training.seconds;
  s.input_wait = training.waited;
  if (!context.root()) return;
  print(s, plan);
  result.add_slow_hosts(largest_by_host(context, pass_of_rank), slow_computing, true);
  result.step = s;
  result.has_step = true;
}

}  // namespace ringtrain
