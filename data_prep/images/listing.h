// Lists the images with their classes and splits, without reading their content.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data_prep/images/class_list.h"

namespace ringtrain {

struct ImagesOptions;

struct ImageItem {
  std::string key;  // the path below the input; for a tar file's member that of the tar file, '/', the member's name
  std::int32_t label = 0;
  std::int32_t archive = -1;            // number in ImageListing::archives; -1: a file of its own
  std::uint64_t offset = 0, bytes = 0;  // in the archive; arrays: offset is the row
};

enum SplitIndex : std::size_t { train_split, validation_split };
inline constexpr std::array<const char*, 2> split_names = {"train", "validation"};

struct ImageListing {
  std::string root;                   // folder of the keys, with '/' at the end
  std::vector<std::string> archives;  // below root
  ClassList classes;
  std::array<std::vector<ImageItem>, 2> splits;
  std::uint64_t ignored = 0;  // files that are not called like images
  std::string ignored_example;

  std::string serialize() const;
  static ImageListing deserialize(const std::string& bytes);
};

// Throws Error when folders cannot be read, when the splits' classes differ, when a class or everything is empty.
ImageListing list_images(const ImagesOptions& options, int threads);

// Moves a share of each class to the validation split: the lowest draws of a hash of seed and key, so that adding
// images moves few others. At least one, and not all, of a class of two or more.
void hold_out_images(ImageListing& listing, std::uint64_t seed, double share);

}  // namespace ringtrain
