#include "data_prep/images/array_shape.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace ringtrain {
namespace {

bool may_be_channels(std::int64_t extent) {
  return extent == 1 || extent == 3;
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

std::string asked_layout(const h5::Shape& shape, const std::string& asked, const std::string& found) {
  const std::string letters = shape.size() == 3 ? "HNW" : "CHNW";
  std::string sorted = asked;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != letters)
    throw Error(cat(found, ", which does not fit --layout ", asked), cat("it has ", shape.size(), " axes"));
  if (!has_channels(shape, asked))
    throw Error(cat(found, ", which does not fit --layout ", asked), "images have 1 or 3 channels");
  return asked;
}

}  // namespace

std::string text_of(const h5::Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text.empty() ? "()" : text + ")";
}

std::string layout_of(const h5::Shape& shape, bool is_matlab, std::int64_t labels, const std::string& asked,
                      const std::string& found) {
  if (!asked.empty()) return asked_layout(shape, asked, found);
  const bool is_grey = shape.size() == 3;
  // MATLAB's orders are H x W x C x N, N x H x W x C, C x H x W x N and N x C x H x W. The file has them backwards.
  const std::vector<std::string> known =
      is_matlab ? (is_grey ? std::vector<std::string>{"NWH", "WHN"}
                           : std::vector<std::string>{"NCWH", "CWHN", "NWHC", "WHCN"})
                : (is_grey ? std::vector<std::string>{"NHW"} : std::vector<std::string>{"NHWC", "NCHW"});
  std::vector<std::string> fitting, with_all_labels;
  for (const std::string& layout : known) {
    if (!has_channels(shape, layout)) continue;
    fitting.push_back(layout);
    if (extent_of(shape, layout, 'N') == labels) with_all_labels.push_back(layout);
  }
  if (with_all_labels.size() == 1) return with_all_labels.front();
  // An axis that is as long as the list of labels may be the images. The user has to say so.
  auto same = std::find(shape.begin(), shape.end(), labels);
  if (!fitting.empty() && same != shape.end() && fitting.front()[static_cast<std::size_t>(same - shape.begin())] == 'C')
    same = shape.end();
  if (with_all_labels.empty() && same != shape.end()) {
    const std::int64_t images = fitting.empty() ? shape[0] : extent_of(shape, fitting.front(), 'N');
    throw Error(cat(found, ": is the first axis the images? It has ", images, ", but there are ", labels, " labels"),
                cat("axis ", same - shape.begin() + 1, " has ", labels,
                    ": give the order of the axes with --layout, such as ", is_grey ? "HWN" : "HWCN"));
  }
  if (fitting.empty()) {
    throw Error(cat(found, ": neither the second nor the last axis has 1 or 3 channels"),
                cat("--layout names other orders of the axes, such as HWCN; ", expected_images));
  }
  if (fitting.size() > 1) {
    const bool is_usual = !is_grey && !is_matlab;
    const std::string why =
        is_usual ? "both the second and the last axis may be the channels" : "the order of its axes is not clear";
    throw Error(cat(found, ": ", why),
                cat("give --layout ", joined(with_all_labels.empty() ? fitting : with_all_labels)));
  }
  return fitting.front();  // the caller compares the numbers of images and labels
}

}  // namespace ringtrain
