// Fills micro-batches of images. A part is a row. The record of a row is a JPEG file or pixels.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/batch_source.h"
#include "data/image_dataset.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

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

}  // namespace

std::unique_ptr<BatchSource> make_image_source(std::shared_ptr<const ImageDataset> dataset, const LoaderPlan& plan) {
  return std::make_unique<ImageSource>(std::move(dataset), plan);
}

}  // namespace ringtrain
