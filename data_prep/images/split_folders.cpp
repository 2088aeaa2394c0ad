#include "data_prep/images/split_folders.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/user_text.h"

namespace ringtrain {
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
  const bool is_folder = std::filesystem::is_directory(tree.root() + name);
  return cat(is_folder ? "" : "unpack the tar file, then ",
             shell_command({"ringtrain-data", "images", is_folder ? tree.root() + name : name, "--split", "validation",
                            "--out", out}));
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
    if (!holds_classes(inner) && inner.folders.size() < 2) return;  // images may also lie beside the classes
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
    const std::string id = tar.substr(0, tar.rfind('.'));
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
  for (const std::string& name : testing) {
    const std::uint64_t count = count_files(tree, name);
    if (count > 0)
      leave_out(found.left_out,
                cat("file(s) in ", name, "/, which is neither training nor validation data",
                    holds_classes(content_of(tree, name))
                        ? cat(" (to validate on it: ", command_for_part(tree, name, out + "-test"),
                              "; --class-list FILE, given to both conversions, keeps the labels the same)")
                        : " (it has no folder per class)"),
                "", count);
  }
  for (const std::string& name : others) {
    const std::uint64_t count = count_files(tree, name);
    if (count > 0)
      leave_out(found.left_out,
                cat("file(s) in ", name, "/, which lies beside ", found.train, "/",
                    found.validation.empty() && holds_classes(content_of(tree, name))
                        ? " (if this is the validation split, rename it to val)"
                        : ""),
                "", count);
  }
  return found;
}

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
  if (flat) return;
  std::vector<std::string> common = found.contents[0].folders;
  for (const FolderContent& content : found.contents) {
    std::vector<std::string> both;
    std::ranges::set_intersection(common, content.folders, std::back_inserter(both));
    common = std::move(both);
  }
  if (common.size() < 2) return;
  if (count == 1)
    throw Error(
        cat(found.folder, ": its only class, '", found.ids[0], "', holds no images but the folders ", quoted(common)),
        cat(found.archives.empty() ? cat("if those are the classes, INPUT is ", found.folder, "/", found.ids[0])
                                   : cat("if those are the classes, INPUT is ", found.archives[0]),
            "; if not, name the class with --class-list FILE"));
  if (!from_root) return;
  throw Error(cat(found.folder, ": the folders ", quoted(found.ids), " hold the same folders (", quoted(common),
                  "), so they may be splits, not classes"),
              "call them train/ and val/, or convert each alone; if they are the classes, give --class-list FILE with "
              "their names, or --split train");
}

}  // namespace ringtrain
