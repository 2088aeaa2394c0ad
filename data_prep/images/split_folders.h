// Finds out which folder is which split, and whether folders that look like classes are something else.
#pragma once

#include <string>

#include "data_prep/images/class_folders.h"
#include "data_prep/images/class_list.h"

namespace ringtrain {

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
