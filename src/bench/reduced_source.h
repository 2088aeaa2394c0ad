// Micro-batches of images whose making lacks one part: what a loader gives when storage, decoding or augmentation cost
// nothing. The pictures are those of a data set, but not all of them.
#pragma once

#include <memory>

#include "data/batch_source.h"

namespace ringtrain {

enum class InputPart {
  storage,  // records lie in memory, and no thread reads
  decode,   // records are read, and pictures that were decoded before are augmented
  augment,  // of every picture the same is decoded, and not resized
};

// Reads and decodes a few dozen pictures of the epoch's order, which take the place of all that is removed. For
// training plans. Throws Error where the data set holds no images, or pixels and decoding is to be removed.
std::unique_ptr<BatchSource> make_reduced_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan,
                                                 InputPart removed);

}  // namespace ringtrain
