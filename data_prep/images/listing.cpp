#include "data_prep/images/listing.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/fields.h"
#include "base/files.h"
#include "base/random.h"
#include "base/table.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/images/class_folders.h"
#include "data_prep/images/convert.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

// Throws Error if the label of a list's line seems to hold blanks: the path with the words before it is no file, but
// the path without them is one.
void check_blanks(const std::vector<ListedImage>& entries, const std::string& list, const std::string& root) {
  std::error_code failed;
  for (const ListedImage& entry : entries) {
    if (entry.path.find(' ') == std::string::npos || fs::exists(root + entry.path, failed)) continue;
    for (std::size_t gap = entry.path.rfind(' '); gap != std::string::npos && gap > 0;
         gap = entry.path.rfind(' ', gap - 1)) {
      const std::string path = entry.path.substr(0, gap);
      if (!fs::is_regular_file(root + path, failed)) continue;
      const std::string label = cat(entry.path.substr(gap + 1), " ", entry.label);
      throw Error(cat(list, ", line ", entry.line, ": the label is ", shown(entry.label), " and there is no file ",
                      shown(entry.path), ", but there is ", shown(path), ": the label seems to be ", shown(label)),
                  "labels that hold blanks need a tab between path and label, in all lines");
    }
  }
}

// Reads a list of images, and finds their labels.
std::vector<ImageItem> read_list(const FileTree& tree, const std::string& list, ClassList& classes) {
  const std::vector<ListedImage> entries = read_image_list(list);
  if (tree.archive().empty()) check_blanks(entries, list, tree.root());
  const std::vector<std::int32_t> labels = labels_of(entries, list, classes);
  std::vector<ImageItem> items;
  for (std::size_t i = 0; i < entries.size(); ++i)
    items.push_back({.key = entries[i].path, .label = labels[i], .line = entries[i].line});
  return items;
}

// Counts the images that no list names.
void leave_out_unlisted(const FileTree& tree, ImageListing& listing) {
  std::set<std::string> listed;
  for (const std::vector<ImageItem>& items : listing.splits)
    for (const ImageItem& item : items) listed.insert(item.key);
  for (const ImageItem& item : all_items(tree))
    if (!listed.contains(item.key)) leave_out(listing.left_out, "image(s) that no list names", item.key);
}

std::string some_of(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back("'" + name + "'");
  return first_names(quoted, 5);
}

// Systems write the same letters in two Unicode forms: macOS often decomposed ones, others composed ones. Names that
// are not UTF-8 stay as they are.
std::string composed_name(const std::string& name) {
  return find_invalid_utf8(name) == std::string::npos ? composed(name) : name;
}

// Two names that look alike give the same text.
std::string folded_name(const std::string& name) {
  return find_invalid_utf8(name) == std::string::npos ? lower_case(composed(trim(name))) : name;
}

// Returns a class that differs from `id` only in case, in blanks at its ends or in its Unicode form, or "".
std::string lookalike(const std::string& id, const std::vector<std::string>& ids) {
  const std::string folded = folded_name(id);
  for (const std::string& other : ids)
    if (other != id && folded_name(other) == folded) return other;
  return "";
}

// Warns of classes that are called almost the same, and are likely one class.
void warn_of_lookalikes(ImageListing& listing) {
  std::map<std::string, std::string> seen;
  for (const std::string& id : listing.classes.ids) {
    const auto [first, is_new] = seen.emplace(folded_name(id), id);
    if (!is_new)
      listing.warnings.push_back(cat("the classes '", first->second, "' and '", id,
                                     "' differ only in upper and lower case, in blanks at their ends or in their "
                                     "Unicode form; they are two classes here"));
  }
}

// Says which images lie deeper than in the folder of their class.
void warn_of_nested(const ClassFolders& found, ImageListing& listing) {
  std::uint64_t nested = 0;
  std::string example;
  for (std::size_t c = 0; c < found.ids.size(); ++c) {
    const std::string& folder = found.paths[c];
    for (const ImageItem& item : found.items[c]) {
      if (item.key.find('/', folder.size() + 1) == std::string::npos) continue;
      if (nested++ == 0) example = cat(item.key, " (class '", found.ids[c], "')");
    }
  }
  if (nested > 0)
    listing.warnings.push_back(
        cat(nested, " image(s) lie in folders below the folder of their class, such as ", example));
}

// Returns the class of each folder: the one of the same name, or else of the same name in another Unicode form. Such
// folders are added to `other_forms`. A folder without a class has its own name. Throws Error if two folders are one
// class.
std::vector<std::string> classes_of(const ClassFolders& found, const ClassList& classes,
                                    std::vector<std::string>& other_forms) {
  std::map<std::string, std::string> by_form, folders;  // composed name -> class; class -> folder
  for (const std::string& id : classes.ids) by_form.emplace(composed_name(id), id);
  std::vector<std::string> ids;
  for (const std::string& name : found.ids) {
    const std::string form = composed_name(name);
    const auto other = by_form.find(form);
    const bool is_other = !classes.labels.contains(name) && other != by_form.end();
    if (is_other) other_forms.push_back(cat(found.folder, "/", name));
    ids.push_back(is_other ? other->second : name);
    const auto [first, is_new] = folders.emplace(classes.labels.contains(ids.back()) ? ids.back() : form, name);
    if (!is_new)
      throw Error(cat(found.folder, ": has two folders '", first->second, "' and '", name,
                      "', whose names are the same letters in two Unicode forms (NFC and NFD)"),
                  "move their files into one folder; if they are two classes, give --class-list FILE with both");
  }
  return ids;
}

// Throws Error if a class list seems to have ids with blanks, whose first words were taken for the ids.
void expect_whole_ids(const std::vector<std::string>& unknown, const std::vector<std::string>& missing) {
  for (const std::string& id : missing)
    for (const std::string& folder : unknown)
      if (folder.starts_with(id + " "))
        throw Error(
            cat("the class list has the id '", id, "', which has no folder, but there is a folder '", folder, "'"),
            "ids that hold blanks need a tab between id and name");
}

// Adds images, labelled by folder. Without a class list, the first split sets the classes, and the second must agree.
void add_class_folders(ClassFolders found, bool fixed_classes, bool only_split, SplitIndex split, ImageListing& listing,
                       std::vector<std::string>& other_forms) {
  found.ids = classes_of(found, listing.classes, other_forms);
  if (!fixed_classes && listing.classes.empty()) {
    for (const std::string& id : found.ids) listing.classes.add(id, id);
    warn_of_lookalikes(listing);
  }
  std::vector<std::string> unknown, missing;
  std::set<std::string> present(found.ids.begin(), found.ids.end());
  for (const std::string& id : found.ids)
    if (!listing.classes.labels.contains(id)) unknown.push_back(id);
  for (const std::string& id : listing.classes.ids)
    if (!present.contains(id)) missing.push_back(id);
  if (!unknown.empty() || (!missing.empty() && !fixed_classes)) {
    const bool is_unknown = !unknown.empty();
    const std::string other = is_unknown ? lookalike(unknown[0], listing.classes.ids) : "";
    if (fixed_classes) expect_whole_ids(unknown, missing);
    throw Error(
        cat(found.folder, ": ", is_unknown ? "has a folder of the class(es) " : "has no folder of the class(es) ",
            some_of(is_unknown ? unknown : missing),
            fixed_classes ? ", which are not in the class list"
            : is_unknown  ? ", which are not in the training split"
                          : "",
            other.empty()
                ? ""
                : cat(" ('", other, "' there differs only in upper and lower case or in blanks at its ends)")),
        fixed_classes ? "add them to the file of --class-list, or remove the folders"
                      : "both splits need the same classes, or --class-list FILE with all of them");
  }
  std::vector<ImageItem>& items = listing.splits[split];
  for (std::size_t c = 0; c < found.ids.size(); ++c) {
    if (found.items[c].empty() && !fixed_classes) {
      std::string files;
      for (const auto& [reason, each] : found.left_out[c])
        files += cat(files.empty() ? " (" : "; ", describe(reason, each));
      throw Error(cat(found.folder, "/", found.ids[c], ": holds no images", files.empty() ? "" : files + ")"),
                  cat(only_split ? "remove the folder" : "remove the empty class from both splits",
                      ", or keep the class with --class-list FILE"));
    }
    for (ImageItem item : found.items[c]) {
      item.label = listing.classes.labels.at(found.ids[c]);
      if (item.archive >= 0) item.archive += static_cast<std::int32_t>(listing.archives.size());
      items.push_back(std::move(item));
    }
    join(listing.left_out, found.left_out[c]);
  }
  listing.archives.insert(listing.archives.end(), found.archives.begin(), found.archives.end());
  join(listing.left_out, found.left_out_beside);
  if (const auto packed = found.left_out_beside.find(reason_of_packed); packed != found.left_out_beside.end())
    listing.warnings.push_back(
        cat(describe(reason_of_packed, packed->second), ": unpack those that hold a class, and convert again"));
  warn_of_nested(found, listing);
}

// Gives the items of a list their places in the tar file that is the input.
void find_in_tar(const FileTree& tree, ImageListing& listing) {
  std::map<std::string, ImageItem> members;
  for (ImageItem& item : all_items(tree)) members.emplace(item.key, std::move(item));
  for (std::vector<ImageItem>& items : listing.splits) {
    for (ImageItem& item : items) {
      const auto member = members.find(item.key);
      if (member == members.end()) {
        item.problem = "is not in the tar file";
      } else {
        const std::int32_t label = item.label;
        const std::int64_t line = item.line;
        item = member->second;
        item.label = label;
        item.line = line;
      }
    }
  }
  listing.archives = {tree.archive()};
}

std::unique_ptr<FileTree> open_input(const std::string& input) {
  std::error_code failed;
  if (!fs::exists(input, failed)) {
    throw Error(cat(input, ": ", failed ? failed.message() : "does not exist"), "INPUT is a folder of images");
  }
  if (fs::is_directory(input, failed)) return open_folder(input);
  if (first_bytes(input, 4) == "PK\x03\x04")
    throw Error(cat(input, ": is a ZIP archive, expected a folder or a tar file"),
                cat("unpack it: ", shell_command({"unzip", input, "-d"}), " FOLDER"));
  if (called_like_a_tar(input)) {
    std::unique_ptr<FileTree> tar = open_tar(input);
    if (tar->entries("").empty())
      throw Error(cat(input, ": is an empty tar file, which has no members"), "pack the folder again, or name another");
    return tar;
  }
  const bool packed = called_like_a_packed_file(input);
  throw Error(cat(input, ": is a ", packed ? "compressed " : "", "file, expected a folder or a tar file"),
              packed ? "unpack it once, or uncompress the tar file (gzip -d, xz -d, zstd -d)"
                     : "INPUT is a folder of images; for HDF5 arrays see bin/ringtrain-data import");
}

// Returns the key that the image has if it lies in a folder instead of a tar file of its class.
std::string key_in_folder(const ImageListing& listing, const ImageItem& item) {
  if (item.archive < 0) return item.key;
  const std::string& archive = listing.archives[static_cast<std::size_t>(item.archive)];
  if (!archive.starts_with(listing.root)) return item.key;  // the input itself is the tar file
  const std::size_t length = archive.size() - listing.root.size(), ending = std::string_view(".tar").size();
  return item.key.substr(0, length - ending) + item.key.substr(length);
}

void check_disjoint(const ImageListing& listing) {
  std::set<std::string> training;
  for (const ImageItem& item : listing.splits[train_split]) training.insert(item.key);
  for (const ImageItem& item : listing.splits[validation_split]) {
    if (!training.contains(item.key)) continue;
    throw Error(cat("'", item.key, "' is in both splits"), "list each image once");
  }
}

}  // namespace

ImageListing list_images(const ImagesOptions& options, int threads) {
  ImageListing listing;
  const std::unique_ptr<FileTree> tree = open_input(options.input);
  const bool fixed_classes = !options.class_list.empty();
  if (fixed_classes) listing.classes = read_class_list(options.class_list);
  const bool one_split = !options.split.empty();
  const SplitIndex first = options.split == "validation" ? validation_split : train_split;
  const bool listed = !options.list.empty();
  if (!listed && options.validation_list.empty()) skip_wrappers(*tree, listing.classes);
  listing.root = tree->root();
  if (listed) {
    listing.splits[first] = read_list(*tree, options.list, listing.classes);
    listing.lists = {options.list, options.list};
  } else {
    SplitFolders splits;
    if (!one_split) splits = find_split_folders(*tree, listing.classes, options.out);
    if (!options.validation_list.empty()) {  // the other folders hold the images of the list
      splits.validation.clear();
      splits.left_out.clear();
    }
    join(listing.left_out, splits.left_out);
    const ClassFolders training = list_class_folders(*tree, splits.train, threads);
    if (!fixed_classes && !one_split) check_classes(training, splits.train.empty());
    std::vector<std::string> other_forms;
    add_class_folders(training, fixed_classes, splits.validation.empty(), first, listing, other_forms);
    if (!splits.validation.empty())
      add_class_folders(list_class_folders(*tree, splits.validation, threads), fixed_classes, false, validation_split,
                        listing, other_forms);
    if (!other_forms.empty())
      listing.warnings.push_back(cat(other_forms.size(),
                                     " folder(s) have the name of a class in another Unicode form, and are taken for "
                                     "that class: ",
                                     some_of(other_forms)));
    if (!splits.train.empty()) leave_out_beside(*tree, "", listing.left_out);
  }
  if (!options.validation_list.empty()) {
    listing.splits[validation_split] = read_list(*tree, options.validation_list, listing.classes);
    listing.lists[validation_split] = options.validation_list;
    check_disjoint(listing);
  }
  if (listed) leave_out_unlisted(*tree, listing);
  if (!tree->archive().empty() && (listed || !options.validation_list.empty())) find_in_tar(*tree, listing);
  if (listing.splits[first].empty()) throw Error(cat(options.input, ": holds no images"));
  if (options.validation.value_or(0) > 0) {
    if (!listing.splits[validation_split].empty()) {
      throw Error("--validation holds images out, but there is a validation split already", "leave --validation out");
    }
    hold_out_images(listing, options.seed, *options.validation);
  }
  return listing;
}

namespace {

// Lists the fields for both directions.
template <class Archive, class Listing>
void transfer_listing(Archive& archive, Listing& listing) {
  archive(listing.root, listing.archives, listing.classes.ids, listing.classes.names);
  for (auto& items : listing.splits)
    archive.each(
        items, [&](auto& item) { archive(item.key, item.label, item.archive, item.offset, item.bytes, item.problem); });
}

}  // namespace

std::string ImageListing::serialize() const {
  FieldWriter writer;
  transfer_listing(writer, *this);
  return writer.take();
}

ImageListing ImageListing::deserialize(const std::string& bytes) {
  FieldReader reader(bytes, "a list of images");
  ImageListing listing;
  transfer_listing(reader, listing);
  for (std::size_t k = 0; k < listing.classes.ids.size(); ++k)
    listing.classes.labels.emplace(listing.classes.ids[k], static_cast<std::int32_t>(k));
  return listing;
}

void hold_out_images(ImageListing& listing, std::uint64_t seed, double share) {
  const std::uint64_t key = random_key(seed, RandomPurpose::shards);
  std::vector<ImageItem>& items = listing.splits[train_split];
  std::vector<std::vector<std::pair<double, std::size_t>>> by_class(listing.classes.ids.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    by_class[static_cast<std::size_t>(items[i].label)].emplace_back(keyed_draw(key, key_in_folder(listing, items[i])),
                                                                    i);
  }
  std::vector<bool> held(items.size(), false);
  for (auto& draws : by_class) {
    if (draws.size() < 2) continue;
    std::sort(draws.begin(), draws.end());
    const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(draws.size())));
    const std::size_t count = std::clamp<std::size_t>(wanted, 1, draws.size() - 1);
    for (std::size_t i = 0; i < count; ++i) held[draws[i].second] = true;
  }
  std::vector<ImageItem> kept;
  for (std::size_t i = 0; i < items.size(); ++i) {
    (held[i] ? listing.splits[validation_split] : kept).push_back(std::move(items[i]));
  }
  items = std::move(kept);
  if (listing.splits[validation_split].empty())
    listing.warnings.push_back(
        cat("--validation ", share, " held out no image, because no class has two: there is no validation split"));
}

}  // namespace ringtrain
