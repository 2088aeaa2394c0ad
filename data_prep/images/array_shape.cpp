// Finds out what an array holds, from its shape, type and attributes: the layout and the origin in arrays.h.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "data_prep/images/arrays.h"

namespace ringtrain {
namespace {

struct Mark {
  const char* text;
  const char* program;
};

// What these programs write into the first bytes of their files, before HDF5's own.
constexpr Mark user_blocks[] = {{"MATLAB 7.3 MAT-file", "MATLAB"},
                                {"HDF5-based Julia Data Format", "Julia"},  // JLD2
                                {"Julia data file (HDF5)", "Julia"}};       // JLD

// Returns the first bytes of the file that holds the data set, which a link may have led to.
std::string start_of(const h5::File& file, const std::string& dataset) {
  const h5::Handle handle = file.open_dataset(dataset), owner(H5Iget_file_id(handle.get()), H5Fclose);
  return first_bytes(h5::name_of_file(owner.get()), 64);
}

bool is_below_octaves_group(const h5::File& file, const std::string& dataset) {
  for (std::size_t slash = dataset.rfind('/'); slash != std::string::npos && slash > 0;
       slash = dataset.rfind('/', slash - 1))
    if (file.has_attribute(dataset.substr(0, slash), "OCTAVE_NEW_FORMAT")) return true;
  return false;
}

// Returns whether MATLAB has marked what it wrote. Data sets without such a mark are then of another program.
bool has_classes_of_matlab(const h5::File& file) {
  return std::ranges::any_of(file.list("/"), [&](const std::string& name) {
    const std::string path = "/" + name;
    return file.has_attribute(path, "MATLAB_class");
  });
}

}  // namespace

ArrayOrigin origin_of(const h5::File& file, const std::string& dataset) {
  const h5::Guard guard;
  if (file.has_attribute(dataset, "MATLAB_class")) return {"MATLAB", file.read_string(dataset, "MATLAB_class")};
  if (file.has_attribute(dataset, "rhdf5-NA.OK")) return {"R", ""};
  if (is_below_octaves_group(file, dataset)) return {"Octave", ""};
  const std::string bytes = start_of(file, dataset);
  for (const Mark& mark : user_blocks)
    if (bytes.starts_with(mark.text) && !has_classes_of_matlab(file)) return {mark.program, ""};
  return {};
}

namespace {

// Returns the letter of an axis that has this label in its file, or '?'.
char axis_called(const std::string& label) {
  struct Axis {
    char letter;
    std::vector<std::string> names;
  };
  static const std::vector<Axis> axes = {
      {'N', {"n", "b", "batch", "sample", "samples", "image", "images", "number", "index"}},
      {'H', {"h", "y", "height", "row", "rows"}},
      {'W', {"w", "x", "width", "column", "columns"}},
      {'C', {"c", "channel", "channels", "band", "bands", "colour", "color", "rgb"}}};
  for (const Axis& axis : axes)
    if (std::ranges::count(axis.names, ascii_lower(label)) > 0) return axis.letter;
  return '?';
}

bool may_be_channels(std::int64_t extent) {
  return extent == 1 || extent == 3;
}

bool may_have_alpha(std::int64_t extent) {
  return extent == 2 || extent == 4;
}

std::int64_t extent_of(const h5::Shape& shape, const std::string& layout, char letter) {
  const std::size_t axis = layout.find(letter);
  return axis == std::string::npos ? 1 : shape[axis];
}

bool has_channels(const h5::Shape& shape, const std::string& layout) {
  return may_be_channels(extent_of(shape, layout, 'C'));
}

std::string backwards(const std::string& layout) {
  return {layout.rbegin(), layout.rend()};
}

// Returns a selection of the first channels, in numpy "x[..., :3]", in MATLAB "X(:,:,1:3,:)".
std::string first_channels(const std::string& layout, std::int64_t channels, bool for_matlab) {
  std::string text;
  for (const char letter : for_matlab ? backwards(layout) : layout) {
    const std::string part = letter != 'C' ? ":" : for_matlab ? cat("1:", channels) : cat(":", channels);
    text += cat(text.empty() ? "" : for_matlab ? "," : ", ", part);
  }
  if (for_matlab) return cat("X(", text, ")");
  while (text.ends_with(", :")) text.resize(text.size() - 3);
  return cat("x[", layout.back() == 'C' ? cat("..., :", channels) : text, "]");
}

// Throws Error that names the number of channels of this layout.
[[noreturn]] void refuse_channels(const h5::Shape& shape, const std::string& layout, bool for_matlab,
                                  const std::string& found, const std::string& advice) {
  const std::int64_t channels = extent_of(shape, layout, 'C');
  const std::string what = cat(found, channels, " channels, expected 1 or 3");
  if (!may_have_alpha(channels)) throw Error(what, advice);
  const std::string others = first_channels(layout, channels - 1, for_matlab);
  throw Error(what, cat(advice, advice.empty() ? "" : "; ", "if the last one is alpha, leave it out: ",
                        for_matlab ? in_matlab(cat("X = ", others)) : others));
}

std::string asked_layout(const h5::Shape& shape, bool is_matlab, std::int64_t labels, const AskedLayout& by_whom,
                         const std::string& found) {
  const std::string& asked = by_whom.letters;
  const std::string letters = shape.size() == 3 ? "HNW" : "CHNW";
  std::string sorted = asked;
  std::sort(sorted.begin(), sorted.end());
  const std::string what = cat(found, ", which does not fit ", by_whom.asker(), " ", asked);
  if (sorted != letters) throw Error(what, cat("it has ", shape.size(), " axes"));
  const std::string other = backwards(asked);
  const bool other_fits = has_channels(shape, other) && extent_of(shape, other, 'N') == labels;
  const std::string advice = by_whom.is_in_file
                                 ? "--layout gives the order of the axes, whatever their labels are"
                                 : cat("the letters follow the axes as h5py and h5dump show them",
                                       other_fits ? cat("; MATLAB's ", asked, " is ", other, " here") : "");
  if (!has_channels(shape, asked)) refuse_channels(shape, asked, is_matlab, cat(what, ": "), advice);
  if (const std::int64_t images = extent_of(shape, asked, 'N'); images != labels && other_fits)
    throw Error(cat(what, ": ", images, " images, but ", labels, " labels"), advice);
  return asked;
}

}  // namespace

AskedLayout layout_in_file(const h5::File& file, const std::string& dataset) {
  constexpr const char* attribute = "DIMENSION_LABELS";
  if (!file.has_attribute(dataset, attribute)) return {};
  const std::vector<std::string> labels = file.read_strings(dataset, attribute);
  if (std::ranges::all_of(labels, &std::string::empty)) return {};
  AskedLayout layout{"", true};
  for (const std::string& label : labels) layout.letters += axis_called(label);
  std::string sorted = layout.letters;
  std::ranges::sort(sorted);
  if (sorted == "HNW" || sorted == "CHNW") return layout;
  const std::string names = joined(labels, ", ", [](const std::string& label) { return cat("'", label, "'"); });
  throw Error(cat(file.path(), ": the labels of the axes of '", dataset, "' are ", names,
                  ", expected N, H, W and C, or batch, height, width and channel"),
              "give the order of the axes with --layout, such as NHWC");
}

std::string text_of(const h5::Shape& shape) {
  return cat("(", joined(shape), ")");
}

std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const AskedLayout& asked,
                      const std::string& found) {
  if (!asked.letters.empty()) return asked_layout(shape, origin.is_matlab(), labels, asked, found);
  const bool is_grey = shape.size() == 3, is_reversed = origin.is_reversed();
  // MATLAB's orders are H x W x C x N, N x H x W x C, C x H x W x N and N x C x H x W. The file has them backwards.
  const std::vector<std::string> known =
      is_reversed ? (is_grey ? std::vector<std::string>{"NWH", "WHN"}
                             : std::vector<std::string>{"NCWH", "CWHN", "NWHC", "WHCN"})
                  : (is_grey ? std::vector<std::string>{"NHW"} : std::vector<std::string>{"NHWC", "NCHW"});
  std::vector<std::string> fitting, with_all_labels, with_alpha;
  bool counts_labels = false;  // whether an order has as many images as there are labels, whatever its channels
  for (const std::string& layout : known) {
    const bool has_all = extent_of(shape, layout, 'N') == labels;
    counts_labels = counts_labels || has_all;
    if (has_channels(shape, layout)) {
      fitting.push_back(layout);
      if (has_all) with_all_labels.push_back(layout);
    } else if (has_all && may_have_alpha(extent_of(shape, layout, 'C'))) {
      with_alpha.push_back(layout);
    }
  }
  if (with_all_labels.size() == 1) return with_all_labels.front();
  if (fitting.empty() && !with_alpha.empty())
    refuse_channels(shape, with_alpha.front(), origin.is_matlab(), cat(found, ", as ", with_alpha.front(), ": "), "");
  // An axis that is as long as the list of labels may be the images. The user has to say so.
  auto same = std::find(shape.begin(), shape.end(), labels);
  if (!fitting.empty() && same != shape.end() && fitting.front()[static_cast<std::size_t>(same - shape.begin())] == 'C')
    same = shape.end();
  if (!counts_labels && same != shape.end()) {
    const std::int64_t images = fitting.empty() ? shape[0] : extent_of(shape, fitting.front(), 'N');
    throw Error(cat(found, ": is the first axis the images? It has ", images, ", but there are ", labels, " labels"),
                cat("axis ", same - shape.begin() + 1, " has ", labels,
                    ": give the order of the axes with --layout, such as ", is_grey ? "HWN" : "HWCN"));
  }
  if (fitting.empty()) {
    throw Error(cat(found, is_reversed ? ": no axis has 1 or 3 channels"
                                       : ": neither the second nor the last axis has 1 or 3 channels"),
                cat("--layout names other orders of the axes, such as HWCN; ", expected_images));
  }
  if (fitting.size() > 1) {
    const bool is_usual = !is_grey && !is_reversed;
    const std::string why =
        is_usual ? "both the second and the last axis may be the channels" : "the order of its axes is not clear";
    throw Error(cat(found, ": ", why),
                cat("give --layout ", joined(with_all_labels.empty() ? fitting : with_all_labels, " or ")));
  }
  return fitting.front();  // the caller compares the numbers of images and labels
}

}  // namespace ringtrain
