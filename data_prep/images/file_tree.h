// Shows a folder on disk and a tar file in the same way, so that both give the same data set.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
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

}  // namespace ringtrain
