// Fills micro-batches of symbols with the inputs row[0:L] and the targets row[1:L+1].
#include <algorithm>
#include <deque>
#include <mutex>

#include "data/batch_source.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

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

}  // namespace

std::unique_ptr<BatchSource> make_text_source(std::shared_ptr<const TextDataset> dataset, const LoaderPlan& plan) {
  return std::make_unique<TextSource>(std::move(dataset), plan);
}

}  // namespace ringtrain
