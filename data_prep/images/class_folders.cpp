#include "data_prep/images/class_folders.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data_prep/common/parallel.h"
#include "data_prep/images/tar.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr int deepest = 32;

struct Entry {
  std::string name;
  bool folder = false;
};

// Returns the entries of a folder, sorted by name. They include hidden entries, which macOS and editors leave.
std::vector<Entry> entries_of(const std::string& folder) {
  std::vector<Entry> entries;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code dangling;
    entries.push_back({at->path().filename().string(), at->is_directory(dangling)});
  }
  if (failed) throw Error(cat(folder, ": cannot read the folder: ", failed.message()));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  return entries;
}

bool hidden(const std::string& name) {
  return name.starts_with(".");
}

// Returns whether a name ends like that of an image. The endings are those that torchvision accepts, and GIF. A GIF is
// thus reported as broken instead of being ignored.
bool called_like_a_image(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || hidden(fs::path(name).filename().string())) return false;
  std::string ending = name.substr(dot + 1);
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  constexpr const char* endings[] = {"jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"};
  return std::find(std::begin(endings), std::end(endings), ending) != std::end(endings);
}

struct ClassContent {
  std::vector<ImageItem> items;
  std::uint64_t ignored = 0;
  std::string ignored_example;

  void add(std::string key, std::int32_t archive, std::uint64_t offset, std::uint64_t bytes) {
    if (called_like_a_image(key)) {
      items.push_back({std::move(key), 0, archive, offset, bytes});
    } else if (ignored++ == 0) {
      ignored_example = std::move(key);
    }
  }
};

void list_folder(const std::string& root, const std::string& below, int depth, ClassContent& content) {
  if (depth > deepest)
    throw Error(cat(root, below, ": folders are nested deeper than ", deepest),
                "is there a link to a folder above it?");
  for (const Entry& entry : entries_of(root + below)) {
    if (entry.folder && !hidden(entry.name)) {
      list_folder(root, cat(below, "/", entry.name), depth + 1, content);
    } else {
      content.add(cat(below, "/", entry.name), -1, 0, 0);
    }
  }
}

}  // namespace

ClassFolders list_class_folders(const std::string& root, const std::string& below, int threads) {
  constexpr std::size_t tar_length = 4;
  ClassFolders result;
  result.folder = root + below;
  const std::string prefix = below.empty() ? "" : below + "/";
  std::vector<std::string> folders, tars, others;
  for (const Entry& entry : entries_of(result.folder)) {
    if (hidden(entry.name)) continue;
    (entry.folder ? folders : entry.name.ends_with(".tar") ? tars : others).push_back(entry.name);
  }
  if (!folders.empty() && !tars.empty()) {
    throw Error(cat(result.folder, ": holds both folders ('", folders[0], "') and tar files ('", tars[0], "')"),
                "keep one kind");
  }
  if (folders.empty() && tars.empty()) {
    const auto is_packed = [](const std::string& name) {
      return name.find(".tar.") != std::string::npos || name.ends_with(".tgz");
    };
    if (const auto packed = std::find_if(others.begin(), others.end(), is_packed); packed != others.end())
      throw Error(cat(result.folder, "/", *packed, ": is a compressed tar file"),
                  "uncompress it first (gzip -d, xz -d, zstd -d): its members are read in place");
    const bool flat = std::any_of(others.begin(), others.end(), called_like_a_image);
    throw Error(cat(result.folder, ": holds ",
                    flat ? "images, but no folder (or tar file) per class" : "no folder (or tar file) per class"),
                flat ? cat("say with ", below.empty() || below == "train" ? "--list" : "--validation-list",
                           " FILE which image is of which class",
                           below.empty() ? "" : cat("; if '", below, "' is a class itself, give --split train"))
                     : std::string("INPUT is a folder with train/ and val/, or with a folder per class"));
  }
  // Labels follow the order of the ids. With its ending, "pig-iron.tar" would come before "pig.tar".
  std::ranges::sort(tars, {}, [](const std::string& name) { return name.substr(0, name.size() - tar_length); });
  const std::vector<std::string>& found = tars.empty() ? folders : tars;
  std::vector<ClassContent> contents(found.size());
  parallel_for(static_cast<std::int64_t>(found.size()), threads, [&](std::int64_t i) {
    const auto c = static_cast<std::size_t>(i);
    const std::string path = prefix + found[c];
    if (tars.empty()) {
      list_folder(root, path, 0, contents[c]);
    } else {
      for (const TarMember& member : list_tar(root + path)) {
        contents[c].add(cat(path, "/", member.name), static_cast<std::int32_t>(i), member.offset, member.bytes);
      }
    }
    std::vector<ImageItem>& items = contents[c].items;
    std::sort(items.begin(), items.end(), [](const ImageItem& a, const ImageItem& b) { return a.key < b.key; });
    const auto twice = std::adjacent_find(items.begin(), items.end(),
                                          [](const ImageItem& a, const ImageItem& b) { return a.key == b.key; });
    if (twice != items.end())
      throw Error(cat(root, twice->key, ": this name occurs twice in the tar file"), "make the tar file again");
  });
  for (std::size_t c = 0; c < found.size(); ++c) {
    result.ids.push_back(tars.empty() ? found[c] : found[c].substr(0, found[c].size() - tar_length));
    result.items.push_back(std::move(contents[c].items));
    result.ignored += contents[c].ignored;
    if (result.ignored_example.empty()) result.ignored_example = contents[c].ignored_example;
    if (!tars.empty()) result.archives.push_back(prefix + tars[c]);
  }
  for (const std::string& name : others) {
    if (result.ignored++ == 0) result.ignored_example = prefix + name;
  }
  return result;
}

}  // namespace ringtrain
