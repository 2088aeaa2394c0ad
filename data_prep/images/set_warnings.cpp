#include "data_prep/images/set_warnings.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/table.h"
#include "base/user_text.h"

namespace ringtrain {

std::string counted_reasons(const std::vector<ImageNote>& notes) {
  std::map<std::string, std::int64_t> counts;
  for (const ImageNote& note : notes) ++counts[note.reason];
  std::vector<std::pair<std::string, std::int64_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t most = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, sorted.size()); ++i)
    text += cat(i == 0 ? "" : ", ", sorted[i].second, " (", sorted[i].first, ")");
  return sorted.size() > most ? cat(text, ", and ", sorted.size() - most, " other reasons") : text;
}

std::string advice_on(const std::vector<ImageNote>& broken) {
  const auto first_with = [&](std::initializer_list<const char*> words) -> std::string {
    const auto note = std::ranges::find_if(broken, [&](const ImageNote& each) {
      return std::ranges::any_of(words, [&](const char* word) { return each.reason.starts_with(word); });
    });
    return note == broken.end() ? "" : note->text.substr(0, note->text.find(": " + note->reason));
  };
  std::string commands;
  const std::string phone = first_with({"is HEIC", "is AVIF"});
  const std::string other =
      first_with({"is GIF", "is BMP", "is WebP", "is TIFF", "is PNM", "is JPEG 2000", "is JPEG XL"});
  if (!phone.empty())
    commands = cat(shell_command({"heif-convert", phone, phone.substr(0, phone.rfind('.')) + ".png"}),
                   " (package libheif-examples)");
  if (!other.empty())
    commands += cat(commands.empty() ? "" : ", ", shell_command({"mogrify", "-format", "png", other}),
                    " (ImageMagick; from version 7 on: magick mogrify)");
  if (!commands.empty())
    return cat("convert other formats to PNG or JPEG: ", commands, "; then delete the originals; ");
  if (std::ranges::any_of(broken,
                          [](const ImageNote& note) { return note.reason.find("No such file") != std::string::npos; }))
    return "a list has paths below INPUT; ";
  return "";
}

void warn_of_empty_classes(const ImageListing& listing, const Examination& examination,
                           const std::vector<SplitPlan>& plans, std::vector<std::string>& warnings) {
  const std::size_t classes = listing.classes.ids.size();
  if (classes == 1) warnings.push_back("there is only one class, so there is nothing to tell apart");
  for (const SplitPlan& plan : plans) {
    std::vector<bool> present(classes, false);
    for (const std::int64_t i : plan.order)
      present[static_cast<std::size_t>(listing.splits[plan.index][static_cast<std::size_t>(i)].label)] = true;
    const auto empty = static_cast<std::size_t>(std::count(present.begin(), present.end(), false));
    if (empty == 0) continue;
    if (empty == 1 && !present[0] && classes > 2 && listing.classes.ids[0] == "0") {
      warnings.push_back(
          cat("class 0 has no pictures in the ", plan.description.split,
              " split: do the labels count from 1? They must count from 0. ",
              listing.unit == std::string_view("rows") ? "Give --first-label 1" : "Subtract 1 and convert again",
              ", or the model has a class too many"));
      continue;
    }
    std::vector<std::string> names;
    for (std::size_t k = 0; k < classes; ++k)
      if (!present[k]) names.push_back(cat("'", listing.classes.ids[k], "'"));
    const auto lost = std::ranges::count_if(examination.broken, [&](const ImageNote& note) {
      return note.split == plan.index &&
             !present[static_cast<std::size_t>(listing.splits[note.split][note.index].label)];
    });
    warnings.push_back(cat(empty, " of ", classes, " classes have no image in the ", plan.description.split,
                           " split: ", first_names(names),
                           lost == 0 ? ""
                                     : cat("; ", lost,
                                           " of theirs are broken. --validation counts broken images: "
                                           "repair or remove them, and convert again")));
  }
}

void warn_of_same_images(const ImageListing& listing, const Examination& examination,
                         std::vector<std::string>& warnings) {
  struct First {
    SplitIndex split;
    std::size_t index;
  };
  std::unordered_map<std::uint64_t, First> firsts;  // by checksum and size
  std::int64_t in_classes = 0, in_splits = 0;
  std::string class_example, split_example;
  for (const SplitIndex split : {train_split, validation_split}) {
    for (std::size_t i = 0; i < examination.items[split].size(); ++i) {
      const Examined& item = examination.items[split][i];
      if (item.broken) continue;
      const auto [found, is_new] = firsts.try_emplace((std::uint64_t{item.crc32c} << 32) ^ item.bytes, First{split, i});
      if (is_new) continue;
      const First first = found->second;
      const ImageItem& a = listing.splits[first.split][first.index];
      const ImageItem& b = listing.splits[split][i];
      const std::string pair = cat(a.key, " and ", b.key);
      if (a.label != b.label && in_classes++ == 0) class_example = pair;
      if (first.split != split && in_splits++ == 0) split_example = pair;
    }
  }
  if (in_classes > 0)
    warnings.push_back(
        cat(in_classes, " image(s) have the same bytes as an image of another class, such as ", class_example));
  if (in_splits > 0)
    warnings.push_back(cat(in_splits, " image(s) of the validation split have the same bytes as a training image, ",
                           "such as ", split_example));
}

}  // namespace ringtrain
