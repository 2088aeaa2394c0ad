// The two text files that describe images: the classes, and which image is of which class.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringtrain {

// Label k is ids[k] ("n01440764"), called names[k] ("tench").
struct ClassList {
  std::vector<std::string> ids, names;
  std::unordered_map<std::string, std::int32_t> labels;  // by id

  bool empty() const { return ids.empty(); }
  void add(const std::string& id, const std::string& name);
};

// Lines "n01440764 tench": the id, white space, the name (may hold blanks; the id itself when it is missing).
ClassList read_class_list(const std::string& path);

struct ListedImage {
  std::string path, label;
  std::int64_t line = 0;
};

// Lines "val/ILSVRC2012_val_00000001.JPEG 65": the path (may hold blanks), white space, a label or a class id.
std::vector<ListedImage> read_image_list(const std::string& path);

// Labels of the entries. With classes: ids of them, or numbers below their count. Without: all numbers (which become
// the labels, and the classes' ids too) or all ids (sorted); `classes` is filled. Throws Error naming the line.
std::vector<std::int32_t> labels_of(const std::vector<ListedImage>& entries, const std::string& path,
                                    ClassList& classes);

}  // namespace ringtrain
