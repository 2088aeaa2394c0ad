// Lists the images with their classes and splits. It does not read the content of the images.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data_prep/images/class_list.h"
#include "data_prep/images/file_tree.h"

namespace ringtrain {

struct ImagesOptions;

struct ImageItem {
  std::string key;  // path below the input; member of a class's tar file: path of the tar file, '/', name of the member
  std::int32_t label = 0;
  std::int32_t archive = -1;            // index in ImageListing::archives; -1: a file of its own
  std::uint64_t offset = 0, bytes = 0;  // in the archive; arrays: offset is the row
  std::string problem = {};             // why it cannot be read, if that is known already
  std::int64_t line = 0;                // of the list that names it, on rank 0; 0: no list
};

enum SplitIndex : std::size_t { train_split, validation_split };
inline constexpr std::array<const char*, 2> split_names = {"train", "validation"};

struct ImageListing {
  std::string root;                   // folder or tar file that the keys are relative to, with '/' at the end
  std::vector<std::string> archives;  // paths of tar files
  ClassList classes;
  std::array<std::vector<ImageItem>, 2> splits;
  // On rank 0 only: the lists that name the images, what is left out, and what is odd about the images that are used.
  std::array<std::string, 2> lists;
  LeftOuts left_out;
  std::vector<std::string> warnings;
  std::int64_t first_label = 0;  // what was subtracted from the labels of rows
  const char* unit = "files";    // what is counted: files, or the rows of an array

  std::string serialize() const;
  static ImageListing deserialize(const std::string& bytes);
};

// Lists the images of the input, which is a folder or a tar file. Throws Error if folders cannot be read, if there are
// no images, if an image is in both splits, or if --validation is given although there is a validation split. Without a
// class list, it also throws if the classes of the splits differ or a class is empty. With one, it throws for a class
// that is not in the list.
ImageListing list_images(const ImagesOptions& options, int threads);

// Moves a share of each class to the validation split. These are the images with the lowest keyed hash of seed and key,
// so that adding images moves few others. Images in a class's tar file count as if they were in a folder. A class of
// two or more gives at least one image, and not all.
void hold_out_images(ImageListing& listing, std::uint64_t seed, double share);

}  // namespace ringtrain
