// `ringtrain bench components` takes a training pipeline of images apart. It removes each part in turn. The gain in
// throughput is the cost of that part while all other parts run at the same time:
//
//   storage ─► decode ─► augment ─► copy ─► compute ─► all-reduce

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/table.h"
#include "base/version.h"
#include "bench/measure.h"
#include "bench/preflight.h"
#include "bench/reduced_source.h"
#include "bench/synthetic_step.h"
#include "parallel/synchronizer.h"
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

struct ComponentRow {
  std::string removed;            // "nothing", "storage", ...
  double samples_per_second = 0;  // over all ranks
  double seconds = 0;             // per step
  double cost_seconds = 0;        // how much shorter a step is without the part; noise can make it negative
};

// The input of a variant.
class Reading : public BatchInput {
 public:
  Reading(Backend& backend, const std::shared_ptr<const Dataset>& dataset, const LoaderPlan& plan,
          const Variant& variant)
      : loader_(dataset, plan, variant.input ? make_reduced_source(dataset, plan, *variant.input) : nullptr),
        pinned_(backend, loader_.ring()),
        copies_(variant.copies),
        of_two_steps_(2 * plan.rows / plan.micro_batch) {}
  void seek(std::int64_t epoch, std::int64_t offset, std::int64_t batch) override {
    loader_.seek(epoch, offset, batch);
    read_ = 0;
  }
  // Without copies, only the first two steps copy their input to the device.
  const MicroBatch& next() override {
    batch_ = loader_.next();
    if (!copies_ && read_++ >= of_two_steps_) batch_.inputs = {}, batch_.targets = {};
    return batch_;
  }
  std::vector<std::span<const std::byte>> ring() const override { return {}; }  // it is pinned already

 private:
  Loader loader_;
  Pinned pinned_;
  bool copies_;
  std::int64_t of_two_steps_, read_ = 0;
  MicroBatch batch_;
};

// Every rank keeps its own gradients and counters.
class NoSums : public Synchronizer {
 public:
  void begin(BeforeBucket) override {}
  void ready(std::int64_t) override {}
  void poll() override {}
  void all_ready() override {}
  void agree(std::span<double>) override {}
};

// The trainer's step, or its step without one of the parts.
class Pipeline {
 public:
  Pipeline(const BenchContext& context, const RunPlan& plan, const Variant& first)
      : plan_(plan),
        host_(*context.machine.host),
        backend_(*context.machine.backend),
        dataset_(shared_dataset(plan.train, context.session.job())),
        reading_(reading_of(first)),
        steps_(context, plan, *reading_) {}

  // Returns the seconds per step over `steps` steps. Steps whose input the loader has prepared before do not count.
  double seconds_per_step(const Variant& variant, std::int64_t steps) {
    if (variant.input != InputPart::storage) forget_files(plan_.train);
    std::unique_ptr<Reading> reading = reading_of(variant);
    steps_.trainer().passes().read_from(*reading);
    steps_.restart();
    reading_ = std::move(reading);  // not before: a copy to the device may still have read the last one's memory
    if (!variant.sums) std::swap(steps_.trainer().synchronizer(), no_sums_);
    const std::int64_t ahead = (plan_.train_loader.prefetch + plan_.batch.accumulation) / plan_.batch.accumulation;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(2, ahead); ++i) step(variant);
    host_.barrier();
    const double begin = now_seconds();
    for (std::int64_t i = 0; i < steps; ++i) step(variant);
    host_.barrier();
    const double seconds = (now_seconds() - begin) / static_cast<double>(steps);
    if (!variant.sums) std::swap(steps_.trainer().synchronizer(), no_sums_);
    return seconds;
  }

 private:
  std::unique_ptr<Reading> reading_of(const Variant& variant) const {
    return std::make_unique<Reading>(backend_, dataset_, for_rank(plan_.train_loader, host_.rank()), variant);
  }

  void step(const Variant& variant) {
    if (variant.computes) return steps_.step();
    Synchronizer& sums = *steps_.trainer().synchronizer();
    sums.begin();
    for (std::int64_t i = 0; i < plan_.batch.accumulation; ++i) reading_->next();
    sums.all_ready();
    StepCounters().sum_with([&](std::span<double> all) { sums.agree(all); });
  }

  const RunPlan& plan_;
  Communicator& host_;
  Backend& backend_;
  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<Reading> reading_;
  std::unique_ptr<Synchronizer> no_sums_ = std::make_unique<NoSums>();
  StillSteps steps_;
};

// Returns the number of steps that take about `seconds`, the same on all ranks.
std::int64_t steps_in(Communicator& host, double seconds, double seconds_per_step) {
  auto steps = static_cast<std::int64_t>(seconds / std::max(seconds_per_step, 1e-6));
  steps = std::clamp<std::int64_t>(steps, 2, 1000);
  return of_rank_0(host, steps);
}

void print(const std::vector<ComponentRow>& rows) {
  for (const ComponentRow& row : rows) {
    std::string text = printed("  without %-10s %10.1f samples/s %10.3f ms a step", row.removed.c_str(),
                               row.samples_per_second, 1e3 * row.seconds);
    if (&row != &rows.front()) {
      text += printed("  it costs %8.3f ms (%.1f %%)", 1e3 * row.cost_seconds,
                      100 * row.cost_seconds / rows.front().seconds);
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

void bench_components(const BenchContext& context, const std::string& csv) {
  refuse_other_kinds(context.experiment.parallel, "bench components takes the steps of a ring apart");
  Communicator& host = *context.machine.host;
  const DatasetIndex index = shared_index(context.experiment.data.train, host);
  if (!index.is_image())
    throw Error(cat("data.train ", index.prefix, " holds ", index.kind,
                    ", expected images: bench components measures the parts of an image pipeline"),
                "use an experiment with images, such as configs/imagenet_alexnet_lars.yaml");
  const RunPlan plan = compiled_plan(context, index);
  const std::vector<Variant> all = variants(plan, context.machine.backend->on_device(), host.size());
  Pipeline pipeline(context, plan, all.front());
  const double share = context.seconds / static_cast<double>(measured_rounds * all.size());
  std::vector<std::vector<double>> seconds(all.size());
  const std::int64_t steps = steps_in(host, share, pipeline.seconds_per_step(all.front(), 1));
  for (int round = 0; round < measured_rounds; ++round)
    for (std::size_t v = 0; v < all.size(); ++v) seconds[v].push_back(pipeline.seconds_per_step(all[v], steps));
  std::vector<ComponentRow> rows;
  for (std::size_t v = 0; v < all.size(); ++v) {
    const double without = median(seconds[v]);
    const double whole = rows.empty() ? without : rows.front().seconds;
    rows.push_back({all[v].removed, static_cast<double>(plan.batch.global) / without, without, whole - without});
  }
  if (!context.root()) return;
  log_info("components: ", plan.experiment.model.kind, ", ", to_string(plan.batch), "; each part is removed in turn");
  print(rows);
  if (!context.machine.backend->on_device())
    log_info("  copy: not measured, because a CPU reads the loader's memory directly");
  if (csv.empty()) return;
  write_file_atomically(csv, csv_of(context, plan, rows));
  log_info("wrote ", csv);
}

}  // namespace ringtrain
