// Reads lists of classes and, after a line "==== overrides", lists of images with their class.
#include "data_prep/images/class_list.h"

#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const Parts parts = split_parts(input);
  ClassList classes;
  error_of([&] { classes = read_class_list(write_input("classes.txt", parts.first)); });
  for (const std::string_view text : {parts.first, parts.second}) {
    const std::string path = write_input("images.txt", text);
    error_of([&] {
      const std::vector<ListedImage> images = read_image_list(path);
      for (ClassList known : {classes, ClassList()}) {
        error_of([&] {
          const std::vector<std::int32_t> labels = labels_of(images, path, known);
          expect(labels.size() == images.size(), "every image has a label");
          for (const std::int32_t label : labels)
            expect(label >= 0 && label < std::ssize(known.ids), "every label is of a class");
        });
      }
    });
  }
}

const Registered registered("class_list", read);

}  // namespace
}  // namespace ringtrain::fuzz
