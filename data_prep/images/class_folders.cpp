#include "data_prep/images/class_folders.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "data_prep/common/parallel.h"

namespace ringtrain {
namespace {

constexpr int deepest = 32;

bool is_jpeg_or_png(const std::array<std::uint8_t, 8>& start) {
  return (start[0] == 0xFF && start[1] == 0xD8 && start[2] == 0xFF) ||
         (start[0] == 0x89 && start[1] == 'P' && start[2] == 'N' && start[3] == 'G');
}

// Lists one class. Keys begin with `prefix`, and folders are those of `tree`.
class ClassWalk {
 public:
  ClassWalk(const FileTree& tree, std::string prefix, std::int32_t archive, std::vector<ImageItem>& items,
            LeftOuts& left_out, std::vector<std::string> above = {})
      : tree_(tree),
        prefix_(std::move(prefix)),
        archive_(archive),
        items_(items),
        left_out_(left_out),
        above_(std::move(above)) {}

  // `reason` is why everything below is left out, or empty.
  void list(const std::string& folder, const std::string& reason = "") {
    if (above_.size() > deepest)
      throw Error(cat(tree_.root(), folder, ": folders are nested deeper than ", deepest), "move them up");
    above_.push_back(tree_.real_path(folder));
    for (const TreeEntry& entry : tree_.entries(folder)) {
      const std::string path = folder.empty() ? entry.name : cat(folder, "/", entry.name);
      const std::string why =
          reason.empty() && made_by_a_system(entry.name) ? reason_of_system_name(entry.name) : reason;
      if (entry.kind != TreeEntry::Kind::folder) {
        add(path, entry, why);
      } else if (!entry.link || std::ranges::count(above_, tree_.real_path(path)) == 0) {
        list(path, why);
      } else {
        leave_out(left_out_, "link(s) to a folder above them", prefix_ + path);
      }
    }
    above_.pop_back();
  }

 private:
  void add(const std::string& path, const TreeEntry& entry, const std::string& why) {
    if (!why.empty()) return leave_out(left_out_, why, prefix_ + path);
    if (called_like_an_image(entry.name)) {
      items_.push_back({prefix_ + path, 0, archive_, entry.offset, entry.bytes, entry.problem});
      return;
    }
    if (entry.kind == TreeEntry::Kind::lost_link)
      return leave_out(left_out_, "link(s) that lead nowhere", prefix_ + path);
    const std::string reason = reason_of_ending(entry.name);
    const bool is_first = !left_out_.contains(reason);
    leave_out(left_out_, reason, prefix_ + path);
    if (is_first) left_out_[reason].picture = is_jpeg_or_png(tree_.start_of(path, entry));
  }

  const FileTree& tree_;
  const std::string prefix_;
  const std::int32_t archive_;
  std::vector<ImageItem>& items_;
  LeftOuts& left_out_;
  std::vector<std::string> above_;  // the real paths of the folders on the way
};

std::string without_ending(const std::string& tar) {
  return tar.substr(0, tar.rfind('.'));
}

[[noreturn]] void refuse_folder_without_classes(const std::string& folder, const std::string& below,
                                                const FolderContent& content) {
  const auto packed = std::ranges::find_if(content.others, called_like_a_packed_file);
  if (packed != content.others.end()) {
    const std::string path = cat(folder, "/", *packed);
    if (path.ends_with(".zip") || path.ends_with(".ZIP"))
      throw Error(cat(path, ": is a ZIP archive, expected a folder or a tar file per class"),
                  cat("unpack it: ", shell_command({"unzip", path, "-d"}), " FOLDER"));
    const bool tar = packed->find(".tar") != std::string::npos || packed->find(".t") != std::string::npos;
    throw Error(cat(path, ": is a compressed ", tar ? "tar file" : "file"),
                tar ? "uncompress it first (gzip -d, xz -d, zstd -d): its members are read in place"
                    : "unpack it first: INPUT has a folder or a tar file per class");
  }
  const bool flat = !content.images.empty();
  throw Error(
      cat(folder, ": holds ",
          flat ? "images, but no folder (or tar file) per class" : "no folder (or tar file) per class"),
      flat ? cat("say with ",
                 split_word(below).value_or(SplitWord::train) == SplitWord::train ? "--list" : "--validation-list",
                 " FILE which image is of which class",
                 below.empty() ? "" : cat("; if '", below, "' is a class itself, give --split train"))
           : std::string("INPUT is a folder with train/ and val/, or with a folder per class"));
}

// A WebDataset's tar file has images of many classes, and beside each image a .cls file with its label. Throws Error if
// `tar` seems to be one.
void refuse_web_dataset(const std::string& tar, const std::vector<ImageItem>& items, const LeftOuts& left_out) {
  const auto labels = left_out.find(reason_of_ending("x.cls"));
  if (labels == left_out.end() || 2 * labels->second.count < items.size()) return;
  throw Error(cat(tar, ": holds ", labels->second.count, " file(s) with the ending .cls beside its ", items.size(),
                  " image(s): it is a part of a WebDataset, not one class"),
              "unpack the tar files, write a line \"PATH LABEL\" for each .cls file, and give these lines with --list");
}

// Returns the number of files in a folder and below it, of every kind.
std::uint64_t count_files(const FileTree& tree, const std::string& folder) {
  std::vector<ImageItem> items;
  LeftOuts left_out;
  ClassWalk(tree, "", -1, items, left_out).list(folder);
  std::uint64_t count = items.size();
  for (const auto& [reason, each] : left_out) count += each.count;
  return count;
}

}  // namespace

FolderContent content_of(const FileTree& tree, const std::string& folder) {
  FolderContent content;
  for (const TreeEntry& entry : tree.entries(folder)) {
    if (made_by_a_system(entry.name)) continue;
    if (entry.kind == TreeEntry::Kind::folder) {
      content.folders.push_back(entry.name);
    } else if (called_like_a_tar(entry.name)) {
      content.tars.push_back(entry.name);
    } else {
      (called_like_an_image(entry.name) ? content.images : content.others).push_back(entry.name);
    }
  }
  return content;
}

std::vector<ImageItem> all_items(const FileTree& tree) {
  std::vector<ImageItem> items;
  LeftOuts left_out;
  ClassWalk(tree, "", tree.archive().empty() ? -1 : 0, items, left_out).list("");
  return items;
}

void leave_out_beside(const FileTree& tree, const std::string& folder, LeftOuts& left_out) {
  const bool has_folders = !content_of(tree, folder).folders.empty();  // otherwise, tar files are the classes
  for (const TreeEntry& entry : tree.entries(folder)) {
    const std::string path = folder.empty() ? entry.name : cat(folder, "/", entry.name);
    const bool is_folder = entry.kind == TreeEntry::Kind::folder;
    if (made_by_a_system(entry.name)) {
      const std::uint64_t count = is_folder ? count_files(tree, path) : 1;
      if (count > 0) leave_out(left_out, reason_of_system_name(entry.name), path, count);
    } else if (!is_folder && called_like_an_image(entry.name)) {
      leave_out(left_out, "image(s) beside the folders", path);
    } else if (!is_folder && called_like_a_packed_file(entry.name)) {
      leave_out(left_out, reason_of_packed, path);
    } else if (!is_folder && (has_folders || !called_like_a_tar(entry.name))) {
      leave_out(left_out, reason_of_ending(entry.name), path);
    }
  }
}

ClassFolders list_class_folders(const FileTree& tree, const std::string& below, int threads) {
  ClassFolders result;
  result.folder = tree.root() + below;
  if (result.folder.ends_with("/")) result.folder.pop_back();
  const std::string prefix = below.empty() ? "" : below + "/";
  FolderContent content = content_of(tree, below);
  if (!content.folders.empty() && !content.tars.empty()) {
    throw Error(
        cat(result.folder, ": holds both folders ('", content.folders[0], "') and tar files ('", content.tars[0], "')"),
        "keep one kind");
  }
  const bool from_tars = !content.tars.empty();
  if (content.folders.empty() && !from_tars) refuse_folder_without_classes(result.folder, below, content);
  if (from_tars) {
    const auto packed = std::ranges::find_if(content.others, called_like_a_packed_file);
    if (packed != content.others.end()) refuse_folder_without_classes(result.folder, below, content);
    if (!tree.archive().empty())
      throw Error(cat(result.folder, "/", content.tars[0], ": is a tar file within a tar file"),
                  cat("unpack ", tree.archive(), " once: INPUT is a folder with a tar file per class"));
  }
  // Labels follow the order of the ids. With its ending, "pig-iron.tar" would come before "pig.tar".
  std::ranges::sort(content.tars, {}, without_ending);
  const std::vector<std::string>& found = from_tars ? content.tars : content.folders;
  result.items.resize(found.size());
  result.left_out.resize(found.size());
  result.contents.resize(found.size());
  parallel_for(static_cast<std::int64_t>(found.size()), threads, [&](std::int64_t i) {
    const auto c = static_cast<std::size_t>(i);
    const std::string path = prefix + found[c];
    if (from_tars) {
      const std::unique_ptr<FileTree> tar = open_tar(tree.root() + path);
      ClassWalk(*tar, path + "/", static_cast<std::int32_t>(i), result.items[c], result.left_out[c]).list("");
      result.contents[c] = content_of(*tar, "");
    } else {
      ClassWalk(tree, "", tree.archive().empty() ? -1 : 0, result.items[c], result.left_out[c], {tree.real_path(below)})
          .list(path);
      result.contents[c] = content_of(tree, path);
    }
    std::ranges::sort(result.items[c], {}, &ImageItem::key);
    if (from_tars) refuse_web_dataset(tree.root() + path, result.items[c], result.left_out[c]);
  });
  for (const std::string& name : found) {
    result.ids.push_back(from_tars ? without_ending(name) : name);
    result.paths.push_back(prefix + name);
    if (from_tars) result.archives.push_back(tree.root() + prefix + name);
  }
  if (!tree.archive().empty()) result.archives = {tree.archive()};
  leave_out_beside(tree, below, result.left_out_beside);
  return result;
}

namespace {

bool holds_classes(const FolderContent& content) {
  return content.images.empty() && (!content.folders.empty() || !content.tars.empty());
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, names.size()); ++i)
    text += cat(i == 0 ? "'" : ", '", names[i], "'");
  return names.size() > 3 ? text + ", ..." : text;
}

// Returns the one name, or "" if there is none.
std::string only_one(const FileTree& tree, const std::vector<std::string>& names) {
  if (names.size() > 1)
    throw Error(cat(tree.root(), ": has both ", names[0], "/ and ", names[1], "/"), "keep one of them");
  return names.empty() ? "" : names[0];
}

// Returns the command that converts one folder of the input as the validation split.
std::string command_for_part(const FileTree& tree, const std::string& name, const std::string& out) {
  std::error_code failed;
  const bool is_folder = std::filesystem::is_directory(tree.root() + name, failed);
  return cat(is_folder ? "" : "unpack the tar file, then ",
             shell_command({"bin/ringtrain-data", "images", is_folder ? tree.root() + name : name, "--split",
                            "validation", "--out", out}));
}

}  // namespace

void skip_wrappers(FileTree& tree, const ClassList& classes) {
  constexpr int deepest = 8;
  for (int depth = 0; depth < deepest; ++depth) {
    const FolderContent top = content_of(tree, "");
    if (top.folders.size() != 1 || !top.tars.empty() || !top.images.empty() || split_word(top.folders[0]) ||
        classes.labels.contains(top.folders[0]))
      return;
    const FolderContent inner = content_of(tree, top.folders[0]);
    if (!holds_classes(inner) && inner.folders.size() < 2) return;  // images may also lie next to the classes
    const bool has_splits =
        std::ranges::any_of(inner.folders, [](const std::string& name) { return split_word(name).has_value(); });
    const bool is_tar_of_a_folder = !tree.archive().empty() && depth == 0;
    if (!has_splits && !is_tar_of_a_folder) return;
    tree.enter(top.folders[0]);
  }
}

SplitFolders find_split_folders(const FileTree& tree, const ClassList& classes, const std::string& out) {
  const FolderContent top = content_of(tree, "");
  std::vector<std::string> named[3], others;
  for (const std::string& name : top.folders) {
    const auto word = classes.labels.contains(name) ? std::nullopt : split_word(name);
    (word ? named[static_cast<int>(*word)] : others).push_back(name);
  }
  for (const std::string& tar : top.tars) {
    const std::string id = without_ending(tar);
    if (!split_word(id) || classes.labels.contains(id) || !top.folders.empty()) continue;
    throw Error(cat(tree.root(), tar, ": is called like a split, but a tar file beside others is one class"),
                "unpack it: INPUT is a folder with train/ and val/; or convert each alone, with --split");
  }
  const auto& [training, validating, testing] = named;
  SplitFolders found;
  found.train = only_one(tree, training);
  found.validation = only_one(tree, validating);
  if (found.train.empty()) {
    if (validating.empty() && testing.empty()) return found;
    const std::string name = validating.empty() ? testing[0] : validating[0];
    if (!others.empty())
      throw Error(cat(tree.root(), name, ": is called like a split, but lies beside ", quoted(others),
                      "; the input has ", name, "/ but no train/"),
                  cat("if '", name, "' is a class, give --split train, or --class-list FILE with all classes; if it ",
                      "is not, move it away"));
    throw Error(cat(tree.root(), ": has ", name, "/ but no train/"),
                cat("give both, or convert it alone: ", command_for_part(tree, name, out)));
  }
  const auto leave_out_folder = [&](const std::string& name, const std::string& why) {
    if (const std::uint64_t count = count_files(tree, name); count > 0)
      leave_out(found.left_out, cat("file(s) in ", name, "/, which ", why), "", count);
  };
  for (const std::string& name : testing)
    leave_out_folder(name, cat("is neither training nor validation data",
                               holds_classes(content_of(tree, name))
                                   ? cat(" (to validate on it: ", command_for_part(tree, name, out + "-test"),
                                         "; --class-list FILE, given to both conversions, keeps the labels the same)")
                                   : " (it has no folder per class)"));
  for (const std::string& name : others)
    leave_out_folder(name, cat("lies beside ", found.train, "/",
                               found.validation.empty() && holds_classes(content_of(tree, name))
                                   ? " (if this is the validation split, rename it to val)"
                                   : ""));
  return found;
}

namespace {

// Throws Error if the only class seems to be a folder of classes: most of its images lie in two or more folders below
// the folder that holds them all.
void refuse_nested_classes(const ClassFolders& found) {
  const std::vector<ImageItem>& items = found.items[0];
  if (items.empty()) return;
  std::string common = items.front().key.substr(0, items.front().key.rfind('/') + 1);  // ends with '/'
  while (!std::ranges::all_of(items, [&](const ImageItem& item) { return item.key.starts_with(common); }))
    common.erase(common.rfind('/', common.size() - 2) + 1);
  std::set<std::string> folders;
  std::size_t loose = 0;
  for (const ImageItem& item : items) {
    const std::size_t end = item.key.find('/', common.size());
    if (end == std::string::npos) ++loose;
    if (end != std::string::npos) folders.insert(item.key.substr(common.size(), end - common.size()));
  }
  if (folders.size() < 2 || 2 * loose >= items.size()) return;
  common.pop_back();
  const std::string& path = found.paths[0];
  const std::string input = cat(found.folder, "/", path.substr(path.rfind('/') + 1), common.substr(path.size()));
  const std::string inner = found.archives.empty() ? "" : cat(found.archives[0], "/");
  throw Error(cat(found.folder, ": its only class, '", found.ids[0], "', holds ", loose == 0 ? "no" : "few",
                  " images but the folders ", quoted({folders.begin(), folders.end()})),
              cat("if those are the classes, ",
                  !inner.empty() && input.starts_with(inner)
                      ? cat("unpack ", found.archives[0], ": INPUT is its folder ", input.substr(inner.size()))
                      : cat("INPUT is ", input),
                  "; if not, name the class with --class-list FILE"));
}

}  // namespace

void check_classes(const ClassFolders& found, bool from_root) {
  const std::size_t count = found.ids.size();
  std::size_t with_split = 0;
  std::string split;
  for (const FolderContent& content : found.contents) {
    const auto named =
        std::ranges::find_if(content.folders, [](const std::string& name) { return split_word(name).has_value(); });
    if (named == content.folders.end()) continue;
    ++with_split;
    if (split.empty()) split = *named;
  }
  const bool flat = std::ranges::any_of(found.contents, [](const FolderContent& c) { return !c.images.empty(); });
  if (with_split == count && !flat)
    throw Error(cat(found.folder, ": every folder of a class holds a folder that is called like a split ('",
                    found.ids[0], "/.../", split, "')"),
                "move the splits to the top: train/CLASS and val/CLASS; if they are no splits, give --split train");
  if (count == 1) refuse_nested_classes(found);
  if (flat || count == 1 || !from_root) return;
  std::vector<std::string> common = found.contents[0].folders;
  for (const FolderContent& content : found.contents) {
    std::vector<std::string> both;
    std::ranges::set_intersection(common, content.folders, std::back_inserter(both));
    common = std::move(both);
  }
  if (common.size() < 2) return;
  throw Error(cat(found.folder, ": the folders ", quoted(found.ids), " hold the same folders (", quoted(common),
                  "), so they may be splits, not classes"),
              "call them train/ and val/, or convert each alone; if they are the classes, give --class-list FILE with "
              "their names, or --split train");
}

}  // namespace ringtrain
