#include "run/class_warnings.h"

#include <algorithm>

#include "base/error.h"
#include "base/table.h"
#include "data/hdf5.h"

namespace ringtrain {
namespace {

std::string name_of(const ImageFormat& image, std::size_t k) {
  return image.class_names[k] == image.class_ids[k] ? cat("'", image.class_ids[k], "'")
                                                    : cat("'", image.class_ids[k], "' (", image.class_names[k], ")");
}

// Returns "3 of 10 classes: 'a', 'b', 'c'".
std::string named(const ImageFormat& image, const std::vector<std::size_t>& classes) {
  std::vector<std::string> names;
  for (const std::size_t k : classes) names.push_back(name_of(image, k));
  return cat(classes.size(), " of ", image.class_ids.size(), " classes: ", first_names(names));
}

}  // namespace

std::vector<std::int64_t> images_per_class(const DatasetIndex& index) try {
  std::vector<std::int64_t> images;
  if (!index.is_image() || index.shards.empty() || index.shards.front().path.empty()) return images;
  images.resize(index.image.class_ids.size());
  for (const DatasetIndex::Shard& shard : index.shards)
    for (const std::int32_t label : h5::File::open(shard.path).read<std::int32_t>("labels")) {
      if (label < 0 || label >= std::ssize(images)) return {};
      ++images[static_cast<std::size_t>(label)];
    }
  return images;
} catch (const Error&) {
  return {};
}

std::vector<std::string> class_warnings(const DatasetIndex& train, const std::vector<std::int64_t>& train_images,
                                        const std::vector<std::int64_t>& validation_images) {
  std::vector<std::string> warnings;
  std::vector<std::size_t> empty, unknown;
  for (std::size_t k = 0; k < train_images.size(); ++k) {
    if (train_images[k] > 0) continue;
    empty.push_back(k);
    if (k < validation_images.size() && validation_images[k] > 0) unknown.push_back(k);
  }
  if (empty.size() == 1 && empty.front() == 0 && train_images.size() > 2)
    warnings.push_back(
        cat("class 0 (", name_of(train.image, 0), ") has no pictures in ", train.prefix,
            ": do the labels count from 1? They must count from 0. Subtract 1 from them and convert again, "
            "or the model has a class too many"));
  else if (!empty.empty())
    warnings.push_back(cat(train.prefix, " has no pictures of ", named(train.image, empty),
                           "; the model has these classes, but cannot learn them"));
  if (!unknown.empty())
    warnings.push_back(cat("validation pictures of ", named(train.image, unknown),
                           " are of classes that have no training pictures: they cannot be predicted right"));
  return warnings;
}

}  // namespace ringtrain
