// `ringtrain bench utilisation` measures training steps of growing batches, up to the largest that fits.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/table.h"
#include "base/version.h"
#include "bench/benchmarks.h"
#include "bench/synthetic_step.h"
#include "run/memory.h"
#include "run/passes.h"
#include "run/start.h"
#include "run/task.h"

namespace ringtrain {

namespace {

constexpr std::int64_t most_batch = 1 << 24;

// The results for one batch size.
struct UtilisationRow {
  std::int64_t batch = 0;         // samples per rank and step, in one pass
  double seconds = 0;             // a training step with the sum of gradients; 0: does not fit
  double samples_per_second = 0;  // all ranks together
  double flops = 0;               // floating-point operations per second of a rank, in convolutions and dense layers
  double share = 0;               // flops divided by the matrix rate
  std::int64_t memory_bytes = 0;  // memory of a training run on a rank, as `plan` prints it; 0: not known
  bool fits = true;
};

struct Utilisation {
  double matrix_rate = 0;        // floating-point operations per second of a rank with dense layers only
  std::int64_t limit_bytes = 0;  // memory limit of a rank
  std::vector<UtilisationRow> rows;
};

std::int64_t free_host_bytes() {
  if (const std::optional<HostMemory> memory = host_memory()) return memory->available;
  throw Error("/proc/meminfo does not say what memory is free", "state it with --limit-gib");
}

std::int64_t memory_limit(const BenchContext& context, double limit_gib) {
  double bytes = limit_gib * static_cast<double>(1 << 30);
  if (limit_gib == 0 && context.machine.device)
    bytes = 0.9 * static_cast<double>(context.machine.device->facts().free_bytes);
  else if (limit_gib == 0)
    bytes = 0.9 * static_cast<double>(free_host_bytes()) / context.session.node_size();
  // The smallest value over the ranks decides.
  const std::vector<double> all = gather_to_0(*context.machine.host, bytes);
  const double least = all.empty() ? 0 : *std::ranges::min_element(all);
  return static_cast<std::int64_t>(of_rank_0(*context.machine.host, least));
}

// Returns the plan of the experiment with `batch` samples in one pass of each rank. It has only the keys that decide
// the work of a step.
RunPlan plan_of_batch(const Experiment& experiment, std::int64_t batch, int ranks, Backend& backend) {
  Experiment e = experiment;
  e.batch = {};
  e.batch.global = batch * ranks;
  e.batch.worker = e.batch.micro = batch;
  e.noise = {};
  e.noise.every_steps = 0;
  e.evaluate = {};
  e.parallel = {};                                          // every rank computes the whole model
  if (!chooses_recomputation(e)) e.memory.limit_gib = 1e6;  // the plan of a batch that does not fit is made, too
  e.learning_rate = {};
  e.optimizer.adascale = false;
  e.test = {};
  e.stop = {};
  e.stop.steps = 1;
  e.data.validation.clear();
  e.data.train_samples = 0;
  return make_run_plan(e, stated_index(e, "random pictures", batch * ranks), nullptr, ranks, backend);
}

std::int64_t memory_of(const RunPlan& plan, Backend& backend) {
  return limited_bytes(rank_memory(plan, backend), backend);
}

// Returns the memory of a rank that trains with this batch. Returns 0 if memory.recompute: auto cannot make the batch
// fit.
std::int64_t memory_of_batch(const Experiment& experiment, std::int64_t batch, int ranks, Backend& backend) {
  try {
    return memory_of(plan_of_batch(experiment, batch, ranks, backend), backend);
  } catch (const Error&) {
    if (!chooses_recomputation(experiment)) throw;
    Experiment without_limit = experiment;
    without_limit.memory.limit_gib = 1e6;
    plan_of_batch(without_limit, batch, ranks, backend);  // throws if the limit is not the reason
    return 0;
  }
}

// A network of large matrix products. It runs as a program of the backend, so that its rate is one that a network can
// reach. Programs of images begin with a convolution, so it begins with a very small one.
Graph dense_network(std::int64_t width) {
  Graph g;
  int x = g.image(8, 8, {0.5, 0.5, 0.5}, {0.25, 0.25, 0.25});
  x = g.flatten(g.relu(g.convolution(x, 16, 1, 1, 0, "convolution", true)));
  for (int layer = 0; layer < 3; ++layer) x = g.relu(g.dense(x, width, cat("dense", layer)));
  g.cross_entropy(g.dense(x, 10, "classes"));
  return g;
}

// Returns a plan like this one, for a network without batch norm that has no data set.
RunPlan plan_of_network(const RunPlan& like, Graph network) {
  const RunTask task{.experiment = like.experiment, .parameters = network.parameters(), .precision = like.precision};
  const RunSplit split{.shares = like.shares};
  return {task, like, split, passes_of(task, like, split, std::move(network), like.micro_batch_choice)};
}

double matrix_rate(const BenchContext& context, const RunPlan& like) {
  Backend& backend = *context.machine.backend;
  const RunPlan plan = plan_of_network(like, dense_network(backend.on_device() ? 8192 : 2048));
  const std::int64_t batch = backend.on_device() ? 8192 : 512;
  SyntheticPasses passes(plan, backend, batch);
  const Runs runs =
      timed_runs(*context.machine.host, context.seconds / 4, 1000, TooSlow::run_anyway, [&] { passes.pass(); });
  const double operations = static_cast<double>(batch * plan.graph.training_flops_per_sample());
  if (!context.root()) return 0;
  // The machine's rate is the rate of the slowest rank in its fastest run.
  double slowest = 0;
  for (const std::vector<double>& of_rank : runs.of_rank)
    slowest = std::max(slowest, *std::ranges::min_element(of_rank));
  return operations / slowest;
}

UtilisationRow measure(const BenchContext& context, const RunPlan& plan, double seconds, double rate) {
  UtilisationRow row{.batch = plan.batch.micro_batch, .memory_bytes = memory_of(plan, *context.machine.backend)};
  RandomInput input(plan, plan.batch.micro_batch);
  StillSteps steps(context, plan, input);
  const Runs runs = timed_runs(*context.machine.host, seconds, 1000, TooSlow::run_anyway, [&] { steps.step(); });
  if (!context.root()) return row;
  row.seconds = runs.slowest();
  row.samples_per_second = static_cast<double>(plan.batch.global) / row.seconds;
  row.flops = static_cast<double>(row.batch * plan.graph.training_flops_per_sample()) / row.seconds;
  row.share = row.flops / rate;
  return row;
}

std::string mib(std::int64_t bytes) {
  return printed("%.1f", static_cast<double>(bytes) / (1 << 20));
}

void print(const UtilisationRow& row) {
  if (row.fits)
    log_info(printed("  %9lld %12.0f samples/s %9.3f ms %9.1f GFLOP/s %5.1f %% of it %10s MiB",
                     static_cast<long long>(row.batch), row.samples_per_second, 1e3 * row.seconds, 1e-9 * row.flops,
                     100 * row.share, mib(row.memory_bytes).c_str()));
  else
    log_info(printed("  %9lld does not fit%s", static_cast<long long>(row.batch),
                     row.memory_bytes > 0 ? cat(": ", mib(row.memory_bytes), " MiB").c_str() : ""));
}

std::string csv_of(const BenchContext& context, const Utilisation& u) {
  const Experiment& e = context.experiment;
  std::ostringstream csv;
  csv << "model,image_size,precision,ranks,threads,batch_per_rank,fits,seconds,samples_per_second,gflops,"
         "share_of_matrix_rate,memory_mib,matrix_gflops,limit_mib,machine,commit\n";
  for (const UtilisationRow& row : u.rows) {
    csv << e.model.kind << ',' << e.data.image_size << ',' << e.precision << ',' << context.session.size() << ','
        << context.threads << ',' << row.batch << ',' << (row.fits ? "yes" : "no") << ',';
    if (row.fits)
      csv << row.seconds << ',' << row.samples_per_second << ',' << 1e-9 * row.flops << ',' << row.share;
    else
      csv << ",,,";
    csv << ',' << (row.memory_bytes > 0 ? mib(row.memory_bytes) : "") << ',' << 1e-9 * u.matrix_rate << ','
        << mib(u.limit_bytes) << ",\"" << context.machine.backend->describe() << "\"," << build_commit() << '\n';
  }
  return csv.str();
}

// The batches to measure, and the first batch that is too large (0: `largest` was reached before).
struct Batches {
  std::vector<std::int64_t> fitting;
  std::int64_t too_large = 0;
};

Batches find_batches(const BenchContext& context, const Experiment& e, std::int64_t limit, std::int64_t largest) {
  Backend& backend = *context.machine.backend;
  const int ranks = context.session.size();
  const std::int64_t end = largest > 0 ? largest : most_batch;
  const auto fits = [&](std::int64_t batch) {
    const std::int64_t bytes = memory_of_batch(e, batch, ranks, backend);
    return bytes > 0 && bytes <= limit;
  };
  Batches found;
  for (std::int64_t batch = 1; batch <= end && found.too_large == 0; batch *= 2)
    if (fits(batch))
      found.fitting.push_back(batch);
    else
      found.too_large = batch;
  if (found.fitting.empty())
    throw Error(cat("a batch of 1 does not fit into ", mib(limit), " MiB"), "a larger --limit-gib, or a smaller model");
  if (found.too_large == 0 || backend.on_device()) return found;
  std::int64_t low = found.fitting.back();
  while (found.too_large - low > 1) {
    const std::int64_t middle = low + (found.too_large - low) / 2;
    (fits(middle) ? low : found.too_large) = middle;
  }
  if (low > found.fitting.back()) found.fitting.push_back(low);
  return found;
}

}  // namespace

Experiment small_cnn_experiment() {
  Experiment e;
  e.name = "utilisation";
  e.model.kind = "cnn";
  e.data.train = "random pictures";
  e.data.image_size = 32;
  e.data.resize = 0;
  e.data.augmentation = "pad_crop";
  e.data.classes = 10;
  e.optimizer.kind = "sgd";
  return e;
}

OutputKind utilisation_table() {
  return table_output("table of ringtrain bench utilisation",
                      "model,image_size,precision,ranks,threads,batch_per_rank,");
}

void bench_utilisation(const BenchContext& context, double limit_gib, std::int64_t largest, const std::string& csv) {
  Experiment e = context.experiment;
  Communicator& host = *context.machine.host;
  Backend& backend = *context.machine.backend;
  if (e.model.kind == "char_lstm")
    throw Error("model.kind is char_lstm, expected a model of pictures: bench utilisation feeds random ones",
                "leave the experiment out to measure the three-convolution CNN");
  if (e.data.classes == 0) e.data.classes = std::ssize(shared_index(e.data.train, host).image.class_ids);

  Utilisation u;
  u.limit_bytes = memory_limit(context, limit_gib > 0 ? limit_gib : e.memory.limit_gib);
  // memory.recompute: auto obeys the limit, and 0 would mean that there is none.
  e.memory.limit_gib = static_cast<double>(std::max<std::int64_t>(u.limit_bytes, 1)) / (1 << 30);
  Batches batches;
  context.machine.agree_on_fusions([&] { batches = find_batches(context, e, u.limit_bytes, largest); });
  const int ranks = context.session.size();
  u.matrix_rate = matrix_rate(context, plan_of_batch(e, 1, ranks, backend));
  log_info("utilisation: ", e.model.kind, " on pictures of ", e.data.image_size, " x ", e.data.image_size, ", ",
           e.precision, "; dense layers reach ", std::llround(1e-9 * u.matrix_rate),
           " GFLOP/s a rank, and a rank may take ", mib(u.limit_bytes), " MiB");
  const double seconds = context.seconds / static_cast<double>(batches.fitting.size());
  for (const std::int64_t batch : batches.fitting) {
    u.rows.push_back(measure(context, plan_of_batch(e, batch, ranks, backend), seconds, u.matrix_rate));
    if (context.root()) print(u.rows.back());
  }
  if (batches.too_large > 0) {
    const std::int64_t bytes = memory_of_batch(e, batches.too_large, ranks, backend);
    u.rows.push_back({.batch = batches.too_large, .memory_bytes = bytes, .fits = false});
    if (context.root()) print(u.rows.back());
  }
  if (!context.root() || csv.empty()) return;
  write_output(csv, utilisation_table(), csv_of(context, u));
  log_info("wrote ", csv);
}

}  // namespace ringtrain
