#include "bench/reduced_source.h"

#include <algorithm>

#include "base/error.h"
#include "data/image_dataset.h"
#include "data/jpeg.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

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

}  // namespace ringtrain
