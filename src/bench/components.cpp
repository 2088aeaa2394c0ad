#include "bench/components.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "base/version.h"
#include "bench/only_ring.h"
#include "bench/reduced_source.h"
#include "optim/batch_rules.h"
#include "optim/optimizer.h"
#include "parallel/synchronizer.h"
#include "run/norm_plan.h"
#include "run/split.h"
#include "run/start.h"

namespace ringtrain {

namespace {

constexpr int measured_rounds =
    3;  // each round measures all variants, so that a disturbance of the machine affects all of them

struct Variant {
  std::string removed;
  std::optional<InputPart> input;
  bool copies = true, computes = true, sums = true;
};

std::vector<Variant> variants(const RunPlan& plan, bool on_device, int ranks) {
  std::vector<Variant> all = {{"nothing", {}}, {"storage", InputPart::storage}};
  if (!plan.train.image.raw) all.push_back({"decode", InputPart::decode});
  all.push_back({"augment", InputPart::augment});
  if (on_device) all.push_back({"copy", {}, false});
  all.push_back({"compute", {}, true, false});
  if (ranks > 1) all.push_back({"all-reduce", {}, true, true, false});
  return all;
}

// Asks the kernel to drop the files from its page cache, because a first epoch reads from storage.
void forget_files(const DatasetIndex& index) {
  for (const auto& shard : index.shards) {
    const int descriptor = ::open(shard.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }
}

// The trainer's step with parts that can be left out, and without records.
class Pipeline {
 public:
  Pipeline(const RunPlan& plan, const Machine& machine, std::shared_ptr<const Dataset> dataset)
      : plan_(plan),
        machine_(machine),
        backend_(*machine.backend),
        weights_(backend_.make_vector(plan.parameters.size())),
        gradients_(backend_.make_vector(plan.parameters.size(), true)),
        synchronizer_(make_synchronizer(
            plan.experiment.parallel, machine.communicator(), nullptr,
            {gradients_->data(), static_cast<std::size_t>(gradients_->size())}, plan.parameters.trained(),
            bucket_elements(plan.experiment.communication, backend_.on_device(), plan.batch.ranks),
            backend_.on_device())),
        optimizer_(optimizer_of(plan.experiment, plan.schedule), plan.parameters, backend_, {},
                   synchronizer_->update_share(), plan.experiment.average),
        group_ranks_(plan.batch.span > 1 ? machine.communicator().share_groups(static_cast<int>(plan.batch.span))
                                         : nullptr),
        program_(
            backend_.compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training, plan.norm_group)),
        dataset_(std::move(dataset)),
        loader_plan_(for_rank(plan.train_loader, machine.communicator().rank())) {
    program_->allocate();
    std::vector<float> flat(static_cast<std::size_t>(weights_->size()));
    initialize(plan.parameters, plan.experiment.seed, flat);
    backend_.copy_from_host(flat, *weights_, 0);
    program_->set_weights(*weights_);
    machine.communicator().set_rounding(gradient_rounding(plan.parameters.trained(), plan.batch.global, 1));
    context_.gradient_scale = 1.0f / static_cast<float>(plan.batch.global);
    context_.statistic_scale = 1.0f / static_cast<float>(plan.batch.workers * plan.batch.span);
    context_.dropout_key = random_key(plan.experiment.seed, RandomPurpose::dropout);
    context_.group_ranks = group_ranks_.get();
  }

  // Returns the seconds per step over `steps` steps. Steps whose input the loader has prepared before do not count.
  double seconds_per_step(const Variant& variant, std::int64_t steps) {
    if (variant.input != InputPart::storage) forget_files(plan_.train);
    Loader loader(dataset_, loader_plan_,
                  variant.input ? make_reduced_source(dataset_, loader_plan_, *variant.input) : nullptr);
    const Pinned pinned(backend_, loader.ring());
    loader.seek(0, 0);
    const std::int64_t ahead = (plan_.train_loader.prefetch + plan_.batch.accumulation) / plan_.batch.accumulation;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(2, ahead); ++i) step(loader, variant, i >= 2);
    machine_.host->barrier();
    const double begin = now_seconds();
    for (std::int64_t i = 0; i < steps; ++i) step(loader, variant, true);
    machine_.host->barrier();
    return (now_seconds() - begin) / static_cast<double>(steps);
  }

 private:
  void step(Loader& loader, const Variant& variant, bool warm) {
    if (variant.sums) synchronizer_->begin();
    const BackwardHooks overlap{[&](std::int64_t mark) { synchronizer_->ready(mark); }, [&] { synchronizer_->poll(); }};
    for (std::int64_t i = 0; i < plan_.batch.accumulation; ++i) {
      const MicroBatch& batch = loader.next();
      if (!variant.computes) continue;
      if (variant.copies || !warm)
        program_->stage({batch.inputs.data(), batch.targets.data()});
      else
        program_->stage_again();
      context_.first_row = batch.first_row;
      program_->forward(context_);
      const bool last = i + 1 == plan_.batch.accumulation;
      program_->backward(*gradients_, i > 0, last && variant.sums ? overlap : BackwardHooks{});
    }
    if (variant.sums && !variant.computes) synchronizer_->ready(gradients_->size());
    if (variant.sums) synchronizer_->finish();
    if (variant.computes)
      optimizer_.start(*weights_, *gradients_, {.rate = 1e-30, .samples = static_cast<double>(plan_.batch.global)}, 1,
                       norm_momentum(plan_.experiment), program_.get());
    if (variant.computes) program_->take_sums();
    double counters[7] = {};
    if (variant.sums) synchronizer_->agree(counters);
    if (variant.computes) optimizer_.finish();
    if (variant.computes && variant.sums && optimizer_.is_shared()) {
      synchronizer_->share(*weights_);
      program_->set_weights(*weights_);
    }
    ++context_.step;
  }

  const RunPlan& plan_;
  const Machine& machine_;
  Backend& backend_;
  std::unique_ptr<Vector> weights_, gradients_;
  std::unique_ptr<Synchronizer> synchronizer_;
  Optimizer optimizer_;
  std::unique_ptr<GroupRanks> group_ranks_;
  std::unique_ptr<Program> program_;
  std::shared_ptr<const Dataset> dataset_;
  LoaderPlan loader_plan_;
  PassContext context_;
};

// Returns the number of steps that take about `seconds`, the same on all ranks.
std::int64_t steps_in(Communicator& host, double seconds, double seconds_per_step) {
  auto steps = static_cast<std::int64_t>(seconds / std::max(seconds_per_step, 1e-6));
  steps = std::clamp<std::int64_t>(steps, 2, 1000);
  host.broadcast(std::as_writable_bytes(std::span(&steps, 1)), 0);
  return steps;
}

void print(const std::vector<ComponentRow>& rows) {
  char line[160];
  for (const ComponentRow& row : rows) {
    std::snprintf(line, sizeof line, "  without %-10s %10.1f samples/s %10.3f ms a step", row.removed.c_str(),
                  row.samples_per_second, 1e3 * row.seconds);
    std::string text = line;
    if (&row != &rows.front()) {
      std::snprintf(line, sizeof line, "  it costs %8.3f ms (%.1f %%)", 1e3 * row.cost_seconds,
                    100 * row.cost_seconds / rows.front().seconds);
      text += line;
    }
    log_info(text);
  }
}

std::string csv_of(const BenchContext& context, const RunPlan& plan, const std::vector<ComponentRow>& rows) {
  std::ostringstream csv;
  csv << "removed,samples_per_second,seconds_per_step,cost_seconds,share_of_step,model,image_size,precision,ranks,"
         "threads,loader_threads,global_batch,micro_batch,machine,commit\n";
  for (const ComponentRow& row : rows)
    csv << row.removed << ',' << row.samples_per_second << ',' << row.seconds << ',' << row.cost_seconds << ','
        << row.cost_seconds / rows.front().seconds << ',' << plan.experiment.model.kind << ','
        << plan.experiment.data.image_size << ',' << plan.experiment.precision << ',' << plan.batch.ranks << ','
        << context.threads << ',' << plan.train_loader.threads << ',' << plan.batch.global << ','
        << plan.batch.micro_batch << ",\"" << context.machine.backend->describe() << "\"," << build_commit() << '\n';
  return csv.str();
}

}  // namespace

std::vector<ComponentRow> bench_components(const BenchContext& context, const std::string& csv) {
  refuse_other_kinds(context.experiment.parallel, "bench components takes the steps of a ring apart");
  Communicator& host = *context.machine.host;
  const DatasetIndex index = shared_index(context.experiment.data.train, host);
  if (!index.is_image())
    throw Error(cat("data.train ", index.prefix, " holds ", index.kind,
                    ", expected images: bench components measures the parts of an image pipeline"),
                "use an experiment with images, such as configs/imagenet_alexnet_lars.yaml");
  RunPlan plan;
  context.machine.agree_on_fusions([&] {
    plan = make_run_plan(context.experiment, index, nullptr, host.size(), *context.machine.backend);
    context.machine.backend->compile(plan.graph, plan.batch.micro_batch, plan.precision, PassMode::training,
                                     plan.norm_group);
  });
  const std::vector<Variant> all = variants(plan, context.machine.backend->on_device(), host.size());
  Pipeline pipeline(plan, context.machine, shared_dataset(plan.train, context.session.job()));
  const double share = context.seconds / static_cast<double>(measured_rounds * all.size());
  std::vector<std::vector<double>> seconds(all.size());
  const std::int64_t steps = steps_in(host, share, pipeline.seconds_per_step(all.front(), 1));
  for (int round = 0; round < measured_rounds; ++round)
    for (std::size_t v = 0; v < all.size(); ++v) seconds[v].push_back(pipeline.seconds_per_step(all[v], steps));
  std::vector<ComponentRow> rows;
  for (std::size_t v = 0; v < all.size(); ++v) {
    std::ranges::sort(seconds[v]);
    const double median = seconds[v][seconds[v].size() / 2];
    const double whole = rows.empty() ? median : rows.front().seconds;
    rows.push_back({all[v].removed, static_cast<double>(plan.batch.global) / median, median, whole - median});
  }
  if (!context.root()) return rows;
  log_info("components: ", plan.experiment.model.kind, ", ", to_string(plan.batch), "; each part is removed in turn");
  print(rows);
  if (!context.machine.backend->on_device())
    log_info("  copy: not measured, because a CPU reads the loader's memory directly");
  if (csv.empty()) return rows;
  write_file_atomically(csv, csv_of(context, plan, rows));
  log_info("wrote ", csv);
  return rows;
}

}  // namespace ringtrain
