// The files of the input. A folder on disk and a tar file are shown in the same way, so that both give the same data
// set. The names of files and folders say whether they belong to it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

struct TreeEntry {
  enum class Kind { file, folder, lost_link };
  std::string name;
  Kind kind = Kind::file;               // of what a link leads to; lost_link: it leads nowhere
  bool link = false;                    // a symbolic link
  std::uint64_t offset = 0, bytes = 0;  // in the tar file
  std::string problem;                  // why the file cannot be read, if that is known already
};

class FileTree {
 public:
  virtual ~FileTree() = default;

  // Returns what a folder holds, sorted by name, hidden entries included. Links are followed. `folder` is a path below
  // root(), "" for root() itself. Throws Error if it cannot be read.
  virtual std::vector<TreeEntry> entries(const std::string& folder) const = 0;
  // Returns the path of a folder without links in it. Two paths that lead to one folder give the same.
  virtual std::string real_path(const std::string& folder) const = 0;
  // Returns the first bytes of a file, or zeros if they cannot be read.
  virtual std::array<std::uint8_t, 8> start_of(const std::string& path, const TreeEntry& entry) const = 0;

  // Paths are below this folder, which ends with '/'. In a tar file, the path of that file comes first.
  const std::string& root() const { return root_; }
  const std::string& archive() const { return archive_; }  // path of the tar file; "" on disk
  // Makes a folder below root() the new root().
  void enter(const std::string& folder) { root_ += folder + "/"; }

 protected:
  FileTree(std::string root, std::string archive) : root_(std::move(root)), archive_(std::move(archive)) {}
  std::string root_, archive_;
};

std::unique_ptr<FileTree> open_folder(const std::string& path);
// Throws Error if the tar file is damaged, or if two of its members have the same name.
std::unique_ptr<FileTree> open_tar(const std::string& path);

// Says from the name of a file or folder whether it belongs to a data set of images.

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
