// A folder with a folder per class, or a tar file per class.
#pragma once

#include <string>
#include <vector>

#include "data_prep/images/listing.h"

namespace ringtrain {

struct ClassFolders {
  std::string folder;
  std::vector<std::string> ids;               // sorted by byte, as torchvision does
  std::vector<std::vector<ImageItem>> items;  // of each class, sorted by key
  std::vector<std::string> archives;          // below root; items' archive counts these
  std::uint64_t ignored = 0;
  std::string ignored_example;
};

// `below`: the folder's path below `root` ("" for root itself). Links are followed. Throws Error when a folder cannot
// be read or holds neither class folders nor tar files, or both.
ClassFolders list_class_folders(const std::string& root, const std::string& below, int threads);

}  // namespace ringtrain
