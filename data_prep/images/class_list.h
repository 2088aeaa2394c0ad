// Reads the two text files that describe images: the list of classes, and the list of each image's class.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringtrain {

// Label k is the class with the id ids[k] ("n01440764") and the name names[k] ("tench").
struct ClassList {
  std::vector<std::string> ids, names;
  std::unordered_map<std::string, std::int32_t> labels;  // by id

  bool empty() const { return ids.empty(); }
  void add(const std::string& id, const std::string& name);
};

// Reads lines like "n01440764 tench": id, white space, name (may hold blanks; if it is missing, the id is the name). In
// a line with a tab, the tab ends the id, which may hold blanks then.
// Lines above the first class that begin with "# " are comments. Throws Error that names the line if an id occurs
// twice, and for a table with commas.
ClassList read_class_list(const std::string& path);

// Throws Error if the ids are the labels of arrays, `first_label` and those after it, but in another order. Rows of
// arrays have no ids, so the order of the lines says what their labels mean.
void expect_ids_in_order(const ClassList& classes, const std::string& path, std::int64_t first_label);

// Returns how many classes the labels of so many images may make if every number up to the highest becomes a class. One
// mistyped label must not make a million of them.
std::int64_t most_numbered_classes(std::int64_t images);
// Returns the classes 0 to count - 1, each named by its label.
ClassList numbered_classes(std::int64_t count);

struct ListedImage {
  std::string path, label;
  std::int64_t line = 0;
};

// Reads lines like "val/ILSVRC2012_val_00000001.JPEG 65": path (may hold blanks), white space, label or class id.
// Paths are written in their shortest form. Throws Error that names the line for a path that leads out of INPUT or
// occurs twice.
std::vector<ListedImage> read_image_list(const std::string& path);

// Returns the label of each entry. An entry names its class by the class id, or by a number below the number of
// classes. If `classes` is empty, it is filled: the entries must be all numbers, which are labels and ids at once, or
// all ids. Throws Error that names the line.
std::vector<std::int32_t> labels_of(const std::vector<ListedImage>& entries, const std::string& path,
                                    ClassList& classes);

}  // namespace ringtrain
