// Says from the name of a file or folder whether it belongs to a data set of images.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace ringtrain {

// Files that are left out for one reason.
struct LeftOut {
  std::uint64_t count = 0;
  std::string example;   // path below INPUT
  bool picture = false;  // the example is a JPEG or PNG by its content, although its name does not say so
};

// The reasons complete the sentence "12 ...": "file(s) with the ending .txt".
using LeftOuts = std::map<std::string, LeftOut>;

void leave_out(LeftOuts& left_out, const std::string& reason, const std::string& path, std::uint64_t count = 1);
void join(LeftOuts& left_out, const LeftOuts& more);
std::string describe(const std::string& reason, const LeftOut& each);  // "12 file(s) ..., such as a/b.txt"

// Returns whether a name ends like that of an image. JPEG and PNG files can be read. The other formats are reported as
// broken images, so that a part of a data set cannot get lost in silence.
bool called_like_an_image(const std::string& name);

// Returns whether programs and systems make files or folders of this name: hidden ones, thumbnails, waste baskets.
bool made_by_a_system(const std::string& name);
// Returns the reason for leaving out what has such a name.
std::string reason_of_system_name(const std::string& name);

// Returns the reason for leaving out a file that is not called like an image: its ending.
inline constexpr const char* reason_of_packed = "packed file(s) beside the classes, which are not opened";
std::string reason_of_ending(const std::string& name);

bool called_like_a_tar(const std::string& name);
bool called_like_a_packed_file(const std::string& name);  // a compressed tar file, zip, 7z or rar

enum class SplitWord { train, validation, test };

// Returns the split that a folder's name says: "train", "Training", "val", "valid", "dev", "TEST", "test_set", ...
std::optional<SplitWord> split_word(const std::string& name);

}  // namespace ringtrain
