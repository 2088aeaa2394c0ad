#include "data/batch_source.h"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "data/image_dataset.h"
#include "data/row_plan.h"
#include "data/text_dataset.h"

namespace ringtrain {

namespace {

// Fills micro-batches of symbols with the inputs row[0:L] and the targets row[1:L+1].
class TextSource : public BatchSource {
 public:
  TextSource(std::shared_ptr<const TextDataset> dataset, const LoaderPlan& plan)
      : dataset_(std::move(dataset)), plan_(plan) {}

  std::unique_ptr<BatchFiller> make_filler() override { return std::make_unique<Filler>(*this); }
  std::int64_t record_bytes(const BatchPart&) const override { return 0; }
  void read(const BatchPart&, std::vector<std::uint8_t>&) const override {}

 private:
  class Filler : public BatchFiller {
   public:
    explicit Filler(TextSource& source)
        : source_(source), scratch_(static_cast<std::size_t>(source.plan_.sequence) + 1) {}
    void fill(const BatchPart& part, std::span<const std::uint8_t>, const BatchSpace& space) override {
      source_.fill(part, space, scratch_);
    }

   private:
    TextSource& source_;
    std::vector<std::uint8_t> scratch_;
  };

  // The counted targets of this rank's share of a step. With masked blanks they depend on the symbols.
  struct StepCount {
    std::int64_t epoch = 0, offset = 0, batch = 0, targets = 0;
  };

  void fill(const BatchPart& part, const BatchSpace& space, std::span<std::uint8_t> scratch) {
    MicroBatch& batch = *space.batch;
    const StepRows rows(dataset_->index(), plan_, part.epoch, part.offset);
    batch.resets_state = rows.resets_state();
    batch.valid_rows = 0;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < plan_.micro_batch; ++i) {
      const StepRows::Row row = rows(part.first_row + i);
      batch.valid_rows += row.targets > 0;
      counted +=
          read_row(row, scratch, space.inputs.data() + i * plan_.sequence, space.targets.data() + i * plan_.sequence);
    }
    const bool is_whole_step = rows_of_rank(plan_, part.batch).count == plan_.micro_batch;
    batch.step_targets = is_whole_step ? counted : targets_of_step(part, rows, scratch);
  }

  // Reads the inputs and targets of a row. Returns the number of targets that count.
  std::int64_t read_row(const StepRows::Row& row, std::span<std::uint8_t> scratch, std::uint8_t* inputs,
                        std::int32_t* targets) const {
    const auto count = static_cast<std::size_t>(row.targets);
    const auto length = static_cast<std::size_t>(plan_.sequence);
    const TextFormat& format = dataset_->index().text;
    if (count > 0 && plan_.order == TextOrder::rows) dataset_->read_row(row.first, scratch);
    if (count > 0 && plan_.order != TextOrder::rows) dataset_->read_text(row.first, scratch.first(count + 1));
    std::fill(scratch.begin() + static_cast<std::ptrdiff_t>(count == 0 ? 0 : count + 1), scratch.end(),
              static_cast<std::uint8_t>(std::max<std::int64_t>(0, format.pad_id)));
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const bool counts = i < count && !(plan_.mask_blanks && scratch[i + 1] == format.pad_id);
      counted += counts;
      if (inputs == nullptr) continue;
      inputs[i] = scratch[i];
      targets[i] = counts ? std::int32_t{scratch[i + 1]} : ignored_target;
    }
    return counted;
  }

  std::int64_t targets_of_step(const BatchPart& part, const StepRows& rows, std::span<std::uint8_t> scratch) {
    const bool masked = plan_.mask_blanks && dataset_->index().text.pad_id >= 0;
    // The targets are counted once per step, so that the time of a pass does not grow with the global batch. Only a few
    // steps are remembered, because the micro-batches of a step follow each other. Other threads wait here for the
    // count.
    const std::lock_guard<std::mutex> lock(step_counts_mutex_);
    for (const StepCount& known : step_counts_) {
      if (known.epoch == part.epoch && known.offset == part.offset && known.batch == part.batch) return known.targets;
    }
    step_counts_.push_back(
        {part.epoch, part.offset, part.batch, sum_targets(part, rows, masked ? scratch : std::span<std::uint8_t>())});
    if (std::ssize(step_counts_) > plan_.prefetch + 1 + plan_.threads) step_counts_.pop_front();
    return step_counts_.back().targets;
  }

  // If `scratch` is empty, no blanks are masked, and nothing needs to be read.
  std::int64_t sum_targets(const BatchPart& part, const StepRows& rows, std::span<std::uint8_t> scratch) const {
    const RowRange mine = rows_of_rank(plan_, part.batch);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < mine.count; ++i) {
      const StepRows::Row row = rows(mine.first + i);
      sum += scratch.empty() ? row.targets : read_row(row, scratch, nullptr, nullptr);
    }
    return sum;
  }

  const std::shared_ptr<const TextDataset> dataset_;
  const LoaderPlan plan_;
  std::mutex step_counts_mutex_;
  std::deque<StepCount> step_counts_;
};

// Fills micro-batches of images. A part is a row. The record of a row is a JPEG file or pixels.
class ImageSource : public BatchSource {
 public:
  ImageSource(std::shared_ptr<const ImageDataset> dataset, const LoaderPlan& plan)
      : dataset_(std::move(dataset)), plan_(plan), samples_(samples_per_epoch(dataset_->index(), plan)) {}

  std::unique_ptr<BatchFiller> make_filler() override { return std::make_unique<Filler>(*this); }

  std::int64_t record_bytes(const BatchPart& part) const override {
    const StepRows::Row row = row_of(part);
    return row.targets == 0 || !plan_.has_pixels ? 0 : dataset_->record(row.first).bytes;
  }

  void read(const BatchPart& part, std::vector<std::uint8_t>& record) const override {
    const StepRows::Row row = row_of(part);
    if (row.targets > 0) dataset_->read(row.first, record);
  }

 private:
  class Filler : public BatchFiller {
   public:
    explicit Filler(const ImageSource& source) : source_(source), decoder_(source.plan_.image) {}

    void fill(const BatchPart& part, std::span<const std::uint8_t> record, const BatchSpace& space) override {
      if (part.part == 0) source_.count(part, *space.batch);
      const auto row_bytes = space.inputs.size() / space.targets.size();
      const std::span<std::uint8_t> pixels =
          space.inputs.subspan(static_cast<std::size_t>(part.part) * row_bytes, row_bytes);
      std::int32_t& target = space.targets[static_cast<std::size_t>(part.part)];
      const StepRows::Row row = source_.row_of(part);
      if (row.targets == 0) {  // a padding row at the end of an evaluation
        std::fill(pixels.begin(), pixels.end(), std::uint8_t{0});
        target = ignored_target;
        return;
      }
      const ImageDataset::Record facts = source_.dataset_->record(row.first);
      target = row.counts ? facts.label : ignored_target;
      if (!source_.plan_.has_pixels) return;
      try {
        decode(record, facts, {source_.plan_.seed, part.epoch, facts.sample_id}, pixels);
      } catch (const Error& error) {
        throw Error(cat(source_.dataset_->name_of(row.first), ": ", error.what()),
                    error.hint().empty() ? "convert the data again; the converter lists the images that it leaves out"
                                         : error.hint(),
                    error.where());
      }
    }

   private:
    void decode(std::span<const std::uint8_t> record, const ImageDataset::Record& facts, const SampleKey& key,
                std::span<std::uint8_t> pixels) {
      const ImageFormat& format = source_.dataset_->index().image;
      const bool training = !source_.plan_.evaluation;
      if (format.raw && training) {
        decoder_.training_raw(record, format.height, format.width, format.channels, key, pixels);
      } else if (format.raw) {
        decoder_.evaluation_raw(record, format.height, format.width, format.channels, pixels);
      } else {
        check_shape(training ? decoder_.training(record, key, pixels) : decoder_.evaluation(record, pixels),
                    facts.shape);
      }
    }

    static void check_shape(const JpegHeader& jpeg, const std::array<std::int32_t, 3>& stored) {
      if (const std::string fault = shape_fault(jpeg, stored); !fault.empty())
        throw Error(
            cat("the image ", fault),
            "the file is damaged; bin/ringtrain-data verify lists all faults, and converting the data again mends "
            "it");
    }

    const ImageSource& source_;
    ImageDecoder decoder_;
  };

  StepRows::Row row_of(const BatchPart& part) const {
    return StepRows(dataset_->index(), plan_, part.epoch, part.offset)(part.first_row + part.part);
  }

  void count(const BatchPart& part, MicroBatch& batch) const {
    const auto samples_in = [&](std::int64_t first_row, std::int64_t rows) {
      return std::clamp<std::int64_t>(samples_ - (part.offset + first_row), 0, rows);
    };
    batch.valid_rows = samples_in(part.first_row, plan_.micro_batch);
    const RowRange mine = rows_of_rank(plan_, part.batch);
    batch.step_targets = 0;
    for (std::int64_t pass = 0; pass < mine.count / plan_.micro_batch; ++pass)
      batch.step_targets += samples_in(first_row_of_pass(plan_, mine, pass), plan_.micro_batch);
    batch.resets_state = false;
  }

  const std::shared_ptr<const ImageDataset> dataset_;
  const LoaderPlan plan_;
  const std::int64_t samples_;
};

constexpr std::int64_t least_buffered_bytes = 256 << 10;  // so that readers seldom wait if images are small

}  // namespace

RingSizes ring_sizes(const DatasetIndex& index, const LoaderPlan& plan) {
  RingSizes sizes;
  sizes.slots = plan.prefetch + 1;
  sizes.inputs = sizes.targets = plan.micro_batch * plan.sequence;
  if (!index.is_image()) return sizes;
  sizes.parts = plan.micro_batch;
  sizes.inputs = 0;
  if (!plan.has_pixels) return sizes;
  sizes.inputs = plan.micro_batch * plan.image.size * plan.image.size * plan.image.channels;
  sizes.readers = plan.reads;
  // Each reader may read one record while another one waits, and each decoder works on one record. Buffers have the
  // usual size of a record. The largest photographs may be a hundred times as large, so they are counted separately.
  const std::int64_t largest = std::max<std::int64_t>(1, index.largest_record());
  const std::int64_t mean = (index.image_bytes() + index.total - 1) / std::max<std::int64_t>(1, index.total);
  sizes.buffer_bytes = std::clamp<std::int64_t>(2 * mean, 1, largest);
  sizes.buffers = std::max(2 * plan.reads + plan.threads, least_buffered_bytes / sizes.buffer_bytes);
  sizes.oversize_bytes = largest > sizes.buffer_bytes ? largest : 0;
  return sizes;
}

std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan) {
  if (auto images = std::dynamic_pointer_cast<const ImageDataset>(dataset))
    return std::make_unique<ImageSource>(std::move(images), plan);
  if (auto text = std::dynamic_pointer_cast<const TextDataset>(dataset))
    return std::make_unique<TextSource>(std::move(text), plan);
  throw Error(cat(dataset->index().prefix, ": the loader knows no data of kind '", dataset->index().kind, "'"));
}

}  // namespace ringtrain
