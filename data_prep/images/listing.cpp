#include "data_prep/images/listing.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "data_prep/common/keyed_draw.h"
#include "data_prep/common/pack.h"
#include "data_prep/images/class_folders.h"
#include "data_prep/images/convert.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

std::vector<ImageItem> listed_items(const std::vector<ListedImage>& entries, const std::vector<std::int32_t>& labels) {
  std::vector<ImageItem> items;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ImageItem& item = items.emplace_back();
    item.key = entries[i].path;
    item.label = labels[i];
  }
  return items;
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, names.size()); ++i)
    text += cat(i == 0 ? "'" : ", '", names[i], "'");
  return names.size() > 5 ? cat(text, " and ", names.size() - 5, " more") : text;
}

// Adds images, labelled by folder. Without a class list, the first split sets the classes, and the second must agree.
void add_class_folders(const ClassFolders& found, bool fixed_classes, SplitIndex split, ImageListing& listing) {
  if (!fixed_classes && listing.classes.empty()) {
    for (const std::string& id : found.ids) listing.classes.add(id, id);
  }
  std::vector<std::string> unknown, missing;
  std::set<std::string> present(found.ids.begin(), found.ids.end());
  for (const std::string& id : found.ids)
    if (!listing.classes.labels.contains(id)) unknown.push_back(id);
  for (const std::string& id : listing.classes.ids)
    if (!present.contains(id)) missing.push_back(id);
  if (!unknown.empty() || (!missing.empty() && !fixed_classes)) {
    const bool is_unknown = !unknown.empty();
    throw Error(
        cat(found.folder, ": ", is_unknown ? "has a folder of the class(es) " : "has no folder of the class(es) ",
            some_of(is_unknown ? unknown : missing),
            fixed_classes ? ", which are not in the class list"
            : is_unknown  ? ", which are not in the training split"
                          : ""),
        fixed_classes ? "add them to the file of --class-list, or remove the folders"
                      : "both splits need the same classes, or --class-list FILE with all of them");
  }
  std::vector<ImageItem>& items = listing.splits[split];
  for (std::size_t c = 0; c < found.ids.size(); ++c) {
    if (found.items[c].empty() && !fixed_classes) {
      throw Error(cat(found.folder, "/", found.ids[c], ": holds no images"),
                  "remove the empty class from both splits, or keep it with --class-list FILE");
    }
    for (ImageItem item : found.items[c]) {
      item.label = listing.classes.labels.at(found.ids[c]);
      if (item.archive >= 0) item.archive += static_cast<std::int32_t>(listing.archives.size());
      items.push_back(std::move(item));
    }
  }
  listing.archives.insert(listing.archives.end(), found.archives.begin(), found.archives.end());
  listing.ignored += found.ignored;
  if (listing.ignored_example.empty()) listing.ignored_example = found.ignored_example;
}

// Returns the name of the validation split's folder below root, or "" if there is none.
std::string validation_folder(const std::string& root) {
  const bool val = is_folder(root + "val"), validation = is_folder(root + "validation");
  if (val && validation) throw Error(cat(root, ": has both val/ and validation/"), "keep one of them");
  return val ? "val" : validation ? "validation" : "";
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
  std::error_code failed;
  if (!fs::exists(options.input, failed)) {
    throw Error(cat(options.input, ": ", failed ? failed.message() : "does not exist"), "INPUT is a folder of images");
  }
  if (!is_folder(options.input)) {
    throw Error(cat(options.input, ": is a file, expected a folder"),
                options.input.ends_with(".tar")
                    ? "unpack it once: INPUT is a folder with one tar file (or folder) per class"
                    : "INPUT is a folder of images; for HDF5 arrays see ringtrain-data import");
  }
  listing.root = options.input.ends_with("/") ? options.input : options.input + "/";
  const bool fixed_classes = !options.class_list.empty();
  if (fixed_classes) listing.classes = read_class_list(options.class_list);

  const bool one_split = !options.split.empty();
  const SplitIndex first = options.split == "validation" ? validation_split : train_split;
  const std::string validation = one_split || !options.validation_list.empty() ? "" : validation_folder(listing.root);
  const bool has_train = !one_split && is_folder(listing.root + "train");
  if (!options.list.empty()) {
    const std::vector<ListedImage> entries = read_image_list(options.list);
    listing.splits[first] = listed_items(entries, labels_of(entries, options.list, listing.classes));
  } else {
    if (!has_train && !validation.empty()) {
      throw Error(cat(listing.root, ": has ", validation, "/ but no train/"),
                  cat("give both, or convert it alone: images ", listing.root, validation, " --split validation"));
    }
    add_class_folders(list_class_folders(listing.root, has_train ? "train" : "", threads), fixed_classes, first,
                      listing);
    if (has_train && !validation.empty()) {
      add_class_folders(list_class_folders(listing.root, validation, threads), fixed_classes, validation_split,
                        listing);
    }
  }
  if (!options.validation_list.empty()) {
    const std::vector<ListedImage> entries = read_image_list(options.validation_list);
    listing.splits[validation_split] =
        listed_items(entries, labels_of(entries, options.validation_list, listing.classes));
    check_disjoint(listing);
  }
  if (listing.splits[first].empty()) throw Error(cat(options.input, ": holds no images"));
  if (options.validation.value_or(0) > 0) {
    if (!listing.splits[validation_split].empty()) {
      throw Error("--validation holds images out, but there is a validation split already", "leave --validation out");
    }
    hold_out_images(listing, options.seed, *options.validation);
  }
  return listing;
}

std::string ImageListing::serialize() const {
  Packer packer;
  packer.add(root);
  packer.add(archives);
  packer.add(classes.ids);
  packer.add(classes.names);
  packer.add(ignored);
  packer.add(ignored_example);
  for (const std::vector<ImageItem>& items : splits) {
    packer.add(std::uint64_t{items.size()});
    for (const ImageItem& item : items) {
      packer.add(item.key);
      packer.add(item.label);
      packer.add(item.archive);
      packer.add(item.offset);
      packer.add(item.bytes);
    }
  }
  return packer.take();
}

ImageListing ImageListing::deserialize(const std::string& bytes) {
  Unpacker unpacker(bytes);
  ImageListing listing;
  listing.root = unpacker.text();
  listing.archives = unpacker.texts();
  const std::vector<std::string> ids = unpacker.texts(), names = unpacker.texts();
  for (std::size_t i = 0; i < ids.size(); ++i) listing.classes.add(ids[i], names[i]);
  listing.ignored = unpacker.value<std::uint64_t>();
  listing.ignored_example = unpacker.text();
  for (std::vector<ImageItem>& items : listing.splits) {
    items.resize(unpacker.value<std::uint64_t>());
    for (ImageItem& item : items) {
      item.key = unpacker.text();
      item.label = unpacker.value<std::int32_t>();
      item.archive = unpacker.value<std::int32_t>();
      item.offset = unpacker.value<std::uint64_t>();
      item.bytes = unpacker.value<std::uint64_t>();
    }
  }
  return listing;
}

void hold_out_images(ImageListing& listing, std::uint64_t seed, double share) {
  const std::uint64_t key = random_key(seed, RandomPurpose::shards);
  std::vector<ImageItem>& items = listing.splits[train_split];
  std::vector<std::vector<std::pair<double, std::size_t>>> by_class(listing.classes.ids.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    by_class[static_cast<std::size_t>(items[i].label)].emplace_back(keyed_draw(key, items[i].key), i);
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
}

}  // namespace ringtrain
