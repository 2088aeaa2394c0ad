// A source of micro-batches of images that leaves out one part of the loader's work: reading, decoding or augmentation.
// Without reading or decoding, it gives a few pictures of the data set again and again.
#pragma once

#include <memory>

#include "data/batch_source.h"

namespace ringtrain {

enum class InputPart {
  storage,  // the records are in memory and nothing is read
  decode,   // records are read but not decoded; a few pictures that were decoded at the start are augmented
  augment,  // pictures are decoded, but not resized
};

// Reads and decodes a few dozen pictures in the epoch's order; they replace the work that is removed. `plan` is a
// training plan. Throws Error if the data set has no images, or if decoding is to be removed and it has pixels.
std::unique_ptr<BatchSource> make_reduced_source(std::shared_ptr<const Dataset> dataset, const LoaderPlan& plan,
                                                 InputPart removed);

}  // namespace ringtrain
