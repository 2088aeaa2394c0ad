// Converts images (folders, lists, or tar files of JPEG and PNG) into a data set of kind "image".
//
// The work has three parts. listing.h finds the images and their labels, on rank 0; class_folders.h, class_list.h and
// tar.h read the kinds of input. source.h reads the bytes of one image, and record.h turns them into what is stored.
// convert_listing.h runs two passes over the list on all ranks and threads: examine.h finds sizes and checksums, and
// write.h writes the shards. Arrays in HDF5 files (array_import.h) take the same way with another list and source.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "data_prep/images/convert_listing.h"

namespace ringtrain {

// Without a class list, class ids are the sorted folder names. Without a split, train/ and val/ below the input are
// used if they are there.
struct ImagesOptions : ImageOptions {
  std::string input;
  std::string list, validation_list;  // paths of files
};

// Runs the whole conversion. All ranks must call it. On rank 0, `log` gets the messages for the user.
ImagesReport convert_images(const ImagesOptions& options, const Ranks& ranks, std::ostream& log);

}  // namespace ringtrain
