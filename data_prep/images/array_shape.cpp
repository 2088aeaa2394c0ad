#include "data_prep/images/array_shape.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace ringtrain {
namespace {

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

std::string joined(const std::vector<std::string>& layouts) {
  std::string text;
  for (const std::string& layout : layouts) text += (text.empty() ? "" : " or ") + layout;
  return text;
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

std::string asked_layout(const h5::Shape& shape, bool is_matlab, std::int64_t labels, const std::string& asked,
                         const std::string& found) {
  const std::string letters = shape.size() == 3 ? "HNW" : "CHNW";
  std::string sorted = asked;
  std::sort(sorted.begin(), sorted.end());
  const std::string what = cat(found, ", which does not fit --layout ", asked);
  if (sorted != letters) throw Error(what, cat("it has ", shape.size(), " axes"));
  const std::string other = backwards(asked);
  const bool other_fits = has_channels(shape, other) && extent_of(shape, other, 'N') == labels;
  const std::string advice = cat("the letters follow the axes as h5py and h5dump show them",
                                 other_fits ? cat("; MATLAB's ", asked, " is ", other, " here") : "");
  if (!has_channels(shape, asked)) refuse_channels(shape, asked, is_matlab, cat(what, ": "), advice);
  if (const std::int64_t images = extent_of(shape, asked, 'N'); images != labels && other_fits)
    throw Error(cat(what, ": ", images, " images, but ", labels, " labels"), advice);
  return asked;
}

}  // namespace

std::string text_of(const h5::Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text.empty() ? "()" : text + ")";
}

std::string layout_of(const h5::Shape& shape, const ArrayOrigin& origin, std::int64_t labels, const std::string& asked,
                      const std::string& found) {
  if (!asked.empty()) return asked_layout(shape, origin.is_matlab(), labels, asked, found);
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
                cat("give --layout ", joined(with_all_labels.empty() ? fitting : with_all_labels)));
  }
  return fitting.front();  // the caller compares the numbers of images and labels
}

}  // namespace ringtrain
