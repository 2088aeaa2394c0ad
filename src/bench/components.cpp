// `ringtrain bench components` takes a training pipeline of images apart. It removes each part in turn. The gain in
// throughput is the cost of that part while all other parts run at the same time:
//
//   storage ─► decode ─► augment ─► copy ─► compute ─► all-reduce

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
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
#include "bench/benchmarks.h"
#include "bench/preflight.h"
#include "bench/synthetic_step.h"
#include "data/image_dataset.h"
#include "data/jpeg.h"
#include "data/row_plan.h"
#include "parallel/synchronizer.h"
#include "run/split.h"
#include "run/start.h"

namespace ringtrain {

namespace {

// ---- Input without a part of its work

constexpr std::int64_t pool_pictures = 64;

struct Picture {
  std::vector<std::uint8_t> record;
  Image decoded;  // used if decoding is removed
};

class ReducedSource : public BatchSource {
 public:
  ReducedSource(std::shared_ptr<const ImageDataset> dataset, const LoaderPlan& plan, InputPart removed)
      : dataset_(std::move(dataset)), plan_(plan), removed_(removed) {
    choose_images(*dataset_, plan_);
    const StepRows rows(dataset_->index(), plan_, 0, 0);
    pool_.resize(static_cast<std::size_t>(std::min(pool_pictures, samples_per_epoch(dataset_->index(), plan_))));
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      dataset_->read(rows(static_cast<std::int64_t>(i)).first, pool_[i].record);
      if (removed_ == InputPart::decode) pool_[i].decoded = decode_jpeg(pool_[i].record);
    }
  }

  std::unique_ptr<BatchFiller> make_filler() override { return std::make_unique<Filler>(*this); }
  std::int64_t record_bytes(const BatchPart& part) const override {
    return removed_ == InputPart::storage ? 0 : dataset_->record(row_of(part).first).bytes;
  }
  void read(const BatchPart& part, std::vector<std::uint8_t>& record) const override {
    if (removed_ != InputPart::storage) dataset_->read(row_of(part).first, record);
  }

 private:
  class Filler : public BatchFiller {
   public:
    explicit Filler(const ReducedSource& source) : source_(source), decoder_(source.plan_.image) {}
    void fill(const BatchPart& part, std::span<const std::uint8_t> record, const BatchSpace& space) override {
      if (part.part == 0) {
        space.batch->valid_rows = source_.plan_.micro_batch;
        space.batch->step_targets = source_.plan_.rows;
        space.batch->resets_state = false;
      }
      const std::size_t bytes = space.inputs.size() / space.targets.size();
      const auto pixels = space.inputs.subspan(static_cast<std::size_t>(part.part) * bytes, bytes);
      const ImageDataset::Record facts = source_.dataset_->record(source_.row_of(part).first);
      space.targets[static_cast<std::size_t>(part.part)] = facts.label;
      make(source_.of_pool(part), record, {source_.plan_.seed, part.epoch, facts.sample_id}, pixels);
    }

   private:
    void make(const Picture& instead, std::span<const std::uint8_t> record, const SampleKey& key,
              std::span<std::uint8_t> pixels) {
      const ImageFormat& format = source_.dataset_->index().image;
      const std::span<const std::uint8_t> stored = source_.removed_ == InputPart::storage ? instead.record : record;
      if (source_.removed_ == InputPart::decode) {
        const Image& d = instead.decoded;
        decoder_.training_raw(d.pixels, d.height, d.width, d.channels, key, pixels);
      } else if (source_.removed_ == InputPart::augment && format.raw) {
        std::copy_n(stored.begin(), std::min(stored.size(), pixels.size()), pixels.begin());
      } else if (source_.removed_ == InputPart::augment) {
        decoder_.decoded_only(stored, key, pixels);
      } else if (format.raw) {
        decoder_.training_raw(stored, format.height, format.width, format.channels, key, pixels);
      } else {
        decoder_.training(stored, key, pixels);
      }
    }

    const ReducedSource& source_;
    ImageDecoder decoder_;
  };

  StepRows::Row row_of(const BatchPart& part) const {
    return StepRows(dataset_->index(), plan_, part.epoch, part.offset)(part.first_row + part.part);
  }
  const Picture& of_pool(const BatchPart& part) const {
    const std::int64_t place = part.offset + part.first_row + part.part;
    return pool_[static_cast<std::size_t>(place) % pool_.size()];
  }

  std::shared_ptr<const ImageDataset> dataset_;
  LoaderPlan plan_;
  InputPart removed_;
  std::vector<Picture> pool_;
};

}  // namespace

std::unique_ptr<BatchSource> make_reduced_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan,
                                                 InputPart removed) {
  auto images = std::dynamic_pointer_cast<const ImageDataset>(dataset);
  if (images == nullptr) throw Error(cat(dataset->index().prefix, " holds no images, expected JPEGs or pixels"));
  if (images->index().image.raw && removed == InputPart::decode)
    throw Error(cat(dataset->index().prefix, " holds pixels: there is no decoding to remove"));
  return std::make_unique<ReducedSource>(std::move(images), plan, removed);
}

namespace {

// ---- The measurements

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
    // A trainer's step always computes. Without it, the ranks still read the input and sum gradients and counters.
    Synchronizer& sums = *steps_.trainer().synchronizer();
    sums.begin();
    for (std::int64_t i = 0; i < plan_.batch.accumulation; ++i) reading_->next();
    sums.all_ready();
    StepCounters().sum_over_ranks(sums);
  }

  const RunPlan& plan_;
  Communicator& host_;
  Backend& backend_;
  std::shared_ptr<const Dataset> dataset_;
  std::unique_ptr<Reading> reading_;
  std::unique_ptr<Synchronizer> no_sums_ = std::make_unique<NoSums>();
  StillSteps steps_;
};

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

OutputKind components_table() {
  return table_output("table of ringtrain bench components", "removed,samples_per_second,seconds_per_step,");
}

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
  const std::int64_t steps = steps_in(host, share, pipeline.seconds_per_step(all.front(), 1), 2, 1000);
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
  write_output(csv, components_table(), csv_of(context, plan, rows));
  log_info("wrote ", csv);
}

}  // namespace ringtrain
