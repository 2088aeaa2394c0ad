#include "data_prep/images/file_names.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace ringtrain {
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
