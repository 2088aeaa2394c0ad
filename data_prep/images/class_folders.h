// Lists the images of a folder that has one folder, or one tar file, per class.
#pragma once

#include <string>
#include <vector>

#include "data_prep/images/class_list.h"
#include "data_prep/images/file_tree.h"
#include "data_prep/images/listing.h"

namespace ringtrain {

// What a folder holds, without the files that systems make.
struct FolderContent {
  std::vector<std::string> folders, tars, images, others;  // names
};

FolderContent content_of(const FileTree& tree, const std::string& folder);

// Returns all that is called like an image, without labels. Keys are paths below the tree's root.
std::vector<ImageItem> all_items(const FileTree& tree);
// Leaves out the files that lie directly in a folder, and those that systems made there. Images are given a reason too.
void leave_out_beside(const FileTree& tree, const std::string& folder, LeftOuts& left_out);

struct ClassFolders {
  std::string folder;
  std::vector<std::string> ids;               // sorted by byte, as torchvision does
  std::vector<std::vector<ImageItem>> items;  // one list per class, sorted by key
  std::vector<std::string> archives;          // paths of tar files; ImageItem::archive is an index here
  std::vector<LeftOuts> left_out;             // of each class
  LeftOuts left_out_beside;                   // files that are in no class folder
  // What lies directly in each class. Splits that are taken for classes can be recognized by it.
  std::vector<FolderContent> contents;
  std::vector<std::string> paths;  // of the folder or tar file of each class, below the tree's root
};

// `below` is the path of the folder below the tree's root ("" for the root itself). Throws Error if a folder cannot be
// read, or if it holds neither class folders nor tar files, or both.
ClassFolders list_class_folders(const FileTree& tree, const std::string& below, int threads);

// Finds out which folder is which split, and whether folders that look like classes are something else.
struct SplitFolders {
  std::string train, validation;  // names of folders; "" for train: the root holds the classes itself
  LeftOuts left_out;              // folders that are no split
};

// Makes the tree's root the folder that holds the data set, if the tree is only a wrapper of it: a tar file of one
// folder, or a folder whose only folder holds the splits. A class of the list is no wrapper.
void skip_wrappers(FileTree& tree, const ClassList& classes);

// Folders that are called like classes of the list are classes. Throws Error if the names contradict each other: two
// training splits, a validation split without a training split, a split in the same folder as classes. `out` is the
// prefix of the data set, for the advice.
SplitFolders find_split_folders(const FileTree& tree, const ClassList& classes, const std::string& out);

// Throws Error if the classes look like splits or parts of a data set: all of them hold the same folders, or there is
// only one and it holds folders, or the splits lie in the classes.
void check_classes(const ClassFolders& found, bool from_root);

}  // namespace ringtrain
