// Warns of classes without pictures. Labels that count from 1, for example, make one class too many.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace ringtrain {

// Returns the number of images of each class of a data set on this machine. Empty: it holds no images, its size was
// only stated, or its labels cannot be read or are no classes. Training then reports the fault itself.
std::vector<std::int64_t> images_per_class(const DatasetIndex& index);

// Returns a sentence for each data set that has classes without images, and one if classes of validation images are
// not in the training images. `validation_images` may be empty. The numbers of images are those of each class of
// `train`.
std::vector<std::string> class_warnings(const DatasetIndex& train, const std::vector<std::int64_t>& train_images,
                                        const std::vector<std::int64_t>& validation_images);

}  // namespace ringtrain
