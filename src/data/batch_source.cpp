#include "data/batch_source.h"

#include <algorithm>

#include "base/error.h"
#include "data/image_dataset.h"

namespace ringtrain {
namespace {

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
  sizes.inputs = plan.micro_batch * plan.image.size * plan.image.size * 3;
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
  if (auto images = std::dynamic_pointer_cast<const ImageDataset>(dataset)) return make_image_source(images, plan);
  if (auto text = std::dynamic_pointer_cast<const TextDataset>(dataset)) return make_text_source(text, plan);
  throw Error(cat(dataset->index().prefix, ": the loader knows no data of kind '", dataset->index().kind, "'"));
}

}  // namespace ringtrain
