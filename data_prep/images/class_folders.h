// Lists the images of a folder that has one folder, or one tar file, per class.
#pragma once

#include <string>
#include <vector>

#include "data_prep/images/listing.h"

namespace ringtrain {

struct ClassFolders {
  std::string folder;
  std::vector<std::string> ids;               // sorted by byte, as torchvision does
  std::vector<std::vector<ImageItem>> items;  // one list per class, sorted by key
  std::vector<std::string> archives;          // paths below root; ImageItem::archive is an index here
  std::uint64_t ignored = 0;
  std::string ignored_example;
};

// `below` is the path of the folder below `root` ("" for root itself). Links are followed. Throws Error if a folder
// cannot be read, or if it holds neither class folders nor tar files, or both.
ClassFolders list_class_folders(const std::string& root, const std::string& below, int threads);

}  // namespace ringtrain
