#include "data_prep/images/file_tree.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "data_prep/common/input_file.h"
#include "data_prep/images/tar.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

using Start = std::array<std::uint8_t, 8>;

Start read_start(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  Start start{};
  try {
    const InputFile file(path);
    if (bytes >= start.size() && offset + start.size() <= file.bytes()) file.read(offset, start);
  } catch (const Error&) {  // whoever needs the file reports it
  }
  return start;
}

class DiskTree : public FileTree {
 public:
  explicit DiskTree(const std::string& path) : FileTree(path.ends_with("/") ? path : path + "/", "") {}

  std::vector<TreeEntry> entries(const std::string& folder) const override {
    std::vector<TreeEntry> found;
    std::error_code failed;
    for (fs::directory_iterator at(root() + folder, failed), end; !failed && at != end; at.increment(failed)) {
      std::error_code unknown, lost;
      TreeEntry& entry = found.emplace_back();
      entry.name = at->path().filename().string();
      entry.link = at->is_symlink(unknown);
      if (at->is_directory(lost)) entry.kind = TreeEntry::Kind::folder;
      if (entry.link && !at->exists(lost)) {
        entry.kind = TreeEntry::Kind::lost_link;
        entry.problem = cat("is a link to '", fs::read_symlink(at->path(), unknown).string(), "', which is not there");
      }
    }
    if (failed) throw Error(cat(root(), folder, ": cannot read the folder: ", failed.message()));
    std::ranges::sort(found, {}, &TreeEntry::name);
    return found;
  }

  std::string real_path(const std::string& folder) const override {
    std::error_code failed;
    return fs::weakly_canonical(root() + folder, failed).string();
  }

  Start start_of(const std::string& path, const TreeEntry&) const override {
    return read_start(root() + path, 0, Start().size());
  }
};

class TarTree : public FileTree {
 public:
  explicit TarTree(const std::string& path) : FileTree(path + "/", path) {
    nodes_.emplace_back();
    for (const TarMember& member : list_tar(path)) add(member);
  }

  std::vector<TreeEntry> entries(const std::string& folder) const override {
    const std::size_t at = find(folder);
    std::vector<TreeEntry> found;
    for (const auto& [name, child] : nodes_[at].children) {
      TreeEntry& entry = found.emplace_back();
      entry.name = name;
      entry.link = nodes_[child].kind == TarMember::Kind::soft_link;
      int links = 0;
      const std::optional<std::size_t> end = follow(child, links);
      if (!end) {
        entry.kind = TreeEntry::Kind::lost_link;
        entry.problem = cat("is a link to '", nodes_[child].target, "', which is not in the tar file");
        continue;
      }
      const Node& node = nodes_[*end];
      if (node.kind == TarMember::Kind::folder) entry.kind = TreeEntry::Kind::folder;
      if (node.kind == TarMember::Kind::special) entry.problem = "is not a regular file";
      entry.offset = node.offset;
      entry.bytes = node.bytes;
    }
    return found;
  }

  std::string real_path(const std::string& folder) const override {
    std::string path;
    for (std::size_t at = find(folder); at != 0; at = nodes_[at].parent) path.insert(0, "/" + nodes_[at].name);
    return path;
  }

  Start start_of(const std::string&, const TreeEntry& entry) const override {
    return read_start(archive(), entry.offset, entry.bytes);
  }

 private:
  struct Node {
    TarMember::Kind kind = TarMember::Kind::folder;
    std::map<std::string, std::size_t> children;
    std::string name, target;
    std::size_t parent = 0;
    std::uint64_t offset = 0, bytes = 0;
  };

  static std::vector<std::string> parts_of(const std::string& path) {
    std::vector<std::string> parts = split(path, '/');
    std::erase_if(parts, [](const std::string& part) { return part.empty() || part == "."; });
    return parts;
  }

  void add(const TarMember& member) {
    std::size_t at = 0;
    bool made = false;  // whether the last part of the name is new
    for (const std::string& part : parts_of(member.name)) {
      if (part == "..")
        throw Error(cat(archive(), ": the member '", member.name, "' lies outside the tar file's folder"),
                    "make the tar file again");
      if (nodes_[at].kind != TarMember::Kind::folder) twice(member.name);
      const auto [child, is_new] = nodes_[at].children.try_emplace(part, nodes_.size());
      const std::size_t parent = at;
      at = child->second;
      made = is_new;
      if (!made) continue;
      nodes_.emplace_back();
      nodes_.back().name = part;
      nodes_.back().parent = parent;
    }
    if (member.kind == TarMember::Kind::folder) {
      if (nodes_[at].kind != TarMember::Kind::folder) twice(member.name);
      return;
    }
    if (!made) twice(member.name);
    Node& node = nodes_[at];
    node.kind = member.kind;
    node.target = member.target;
    node.offset = member.offset;
    node.bytes = member.bytes;
  }

  [[noreturn]] void twice(const std::string& name) const {
    throw Error(cat(archive(), "/", name, ": this name occurs twice in the tar file"), "make the tar file again");
  }

  // Returns the node that a path leads to from the folder `at`, or nothing.
  std::optional<std::size_t> walk(std::size_t at, const std::string& path, int& links) const {
    for (const std::string& part : parts_of(path)) {
      if (part == "..") {
        if (at == 0) return std::nullopt;
        at = nodes_[at].parent;
        continue;
      }
      const auto child = nodes_[at].children.find(part);
      if (child == nodes_[at].children.end()) return std::nullopt;
      const std::optional<std::size_t> next = follow(child->second, links);
      if (!next) return std::nullopt;
      at = *next;
    }
    return at;
  }

  // Returns what a link leads to, or the node itself. `links` counts the links on the way. A soft link begins at its
  // own folder, a hard link at the top.
  std::optional<std::size_t> follow(std::size_t at, int& links) const {
    constexpr int most_links = 40;  // the limit of Linux
    const Node& node = nodes_[at];
    if (node.kind != TarMember::Kind::soft_link && node.kind != TarMember::Kind::hard_link) return at;
    const bool hard = node.kind == TarMember::Kind::hard_link;
    if (++links > most_links || node.target.empty()) return std::nullopt;
    if (!hard && node.target.starts_with("/")) return std::nullopt;
    return walk(hard ? 0 : node.parent, node.target, links);
  }

  std::size_t find(const std::string& folder) const {
    int links = 0;
    const std::optional<std::size_t> at = walk(0, root().substr(archive().size()) + folder, links);
    if (!at) throw Error(cat(root(), folder, ": is not in the tar file"));
    return *at;
  }

  std::vector<Node> nodes_;
};

}  // namespace

std::unique_ptr<FileTree> open_folder(const std::string& path) {
  return std::make_unique<DiskTree>(path);
}

std::unique_ptr<FileTree> open_tar(const std::string& path) {
  return std::make_unique<TarTree>(path);
}

namespace {

using Words = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view word, Words words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string file_name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

// Returns the ending in lower case and without its dot, or "".
std::string ending_of(const std::string& path) {
  const std::string name = file_name_of(path);
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 ? "" : ascii_lower(name.substr(dot + 1));
}

}  // namespace

void leave_out(LeftOuts& left_out, const std::string& reason, const std::string& path, std::uint64_t count) {
  LeftOut& each = left_out[reason];
  if (each.count == 0) each.example = path;
  each.count += count;
}

void join(LeftOuts& left_out, const LeftOuts& more) {
  for (const auto& [reason, found] : more) {
    LeftOut& each = left_out[reason];
    if (each.count == 0 || (found.picture && !each.picture)) {
      each.example = found.example;
      each.picture = found.picture;
    }
    each.count += found.count;
  }
}

std::string describe(const std::string& reason, const LeftOut& each) {
  return cat(each.count, " ", reason, each.example.empty() ? "" : cat(", such as ", each.example),
             each.picture ? ", which is a JPEG or PNG by its content: give such files the ending .jpg or .png" : "");
}

bool called_like_an_image(const std::string& name) {
  if (file_name_of(name).starts_with(".")) return false;
  return is_one_of(ending_of(name),
                   {"jpg",  "jpeg", "jpe", "jif",  "jfif", "jfi", "pjpeg", "pjp",  "png",  "apng",
                    "ppm",  "pgm",  "pbm", "pnm",  "bmp",  "dib", "tif",   "tiff", "webp", "gif",
                    "heic", "heif", "hif", "avif", "jp2",  "j2k", "jpf",   "jpx",  "jxl",  "jpeg2000"});
}

bool made_by_a_system(const std::string& name) {
  return name.starts_with(".") ||
         is_one_of(ascii_lower(name), {"__macosx", "@eadir", "@tmp", "@recycle", "#recycle", "$recycle.bin",
                                       "lost+found", "system volume information", "thumbs.db", "ehthumbs.db",
                                       "desktop.ini", "thumbnails", "thumbnail", "thumbs", "__pycache__"});
}

std::string reason_of_system_name(const std::string& name) {
  if (name.starts_with(".")) return "hidden file(s): a name in the path begins with a dot";
  return "file(s) that programs leave (thumbnails, Thumbs.db, @eaDir, __MACOSX, ...)";
}

std::string reason_of_ending(const std::string& name) {
  const std::string ending = ending_of(name);
  return ending.empty() ? "file(s) without an ending" : cat("file(s) with the ending .", ending);
}

bool called_like_a_tar(const std::string& name) {
  return ending_of(name) == "tar";
}

bool called_like_a_packed_file(const std::string& name) {
  return ascii_lower(name).find(".tar.") != std::string::npos ||
         is_one_of(ending_of(name), {"tgz", "tbz", "tbz2", "txz", "tzst", "zip", "7z", "rar"});
}

std::optional<SplitWord> split_word(const std::string& name) {
  std::string word = ascii_lower(name);
  // "test_set", "train-images" and "train2017" say the same as "test" and "train".
  word.erase(word.find_last_not_of("0123456789") + 1);
  for (const std::string_view more : Words{"set", "data", "dataset", "images", "imgs", "split"}) {
    if (word.size() > more.size() && word.ends_with(more)) {
      word.erase(word.size() - more.size());
      break;
    }
  }
  word.erase(word.find_last_not_of(" _-") + 1);
  if (is_one_of(word, {"train", "training", "trn"})) return SplitWord::train;
  if (is_one_of(word, {"val", "valid", "validate", "validation", "dev", "eval", "evaluation"}))
    return SplitWord::validation;
  if (is_one_of(word, {"test", "tests", "testing", "holdout", "hold-out", "hold_out"})) return SplitWord::test;
  return std::nullopt;
}

}  // namespace ringtrain
