#include "data_prep/images/array_shape.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <vector>

#include "base/error.h"

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
std::string first_bytes(const h5::File& file, const std::string& dataset) {
  const h5::Handle handle = file.open_dataset(dataset), owner(H5Iget_file_id(handle.get()), H5Fclose);
  const auto name = [&](char* text, std::size_t size) { return H5Fget_name(owner.get(), text, size); };
  const ssize_t length = name(nullptr, 0);
  if (length <= 0) return "";
  std::string path(static_cast<std::size_t>(length), '\0');
  name(path.data(), path.size() + 1);
  std::string bytes(64, '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

bool is_below_octaves_group(const h5::File& file, const std::string& dataset) {
  for (std::size_t slash = dataset.rfind('/'); slash != std::string::npos && slash > 0;
       slash = dataset.rfind('/', slash - 1))
    if (file.has_attribute(dataset.substr(0, slash), "OCTAVE_NEW_FORMAT")) return true;
  return false;
}

}  // namespace

ArrayOrigin origin_of(const h5::File& file, const std::string& dataset) {
  const h5::Guard guard;
  if (file.has_attribute(dataset, "MATLAB_class")) return {"MATLAB", file.read_string(dataset, "MATLAB_class")};
  if (file.has_attribute(dataset, "rhdf5-NA.OK")) return {"R", ""};
  if (is_below_octaves_group(file, dataset)) return {"Octave", ""};
  const std::string bytes = first_bytes(file, dataset);
  for (const Mark& mark : user_blocks)
    if (bytes.starts_with(mark.text)) return {mark.program, ""};
  return {};
}

std::string in_matlab(const std::string& statement) {
  return cat("in MATLAB: ", statement, "; then save it again with -v7.3");
}

std::string variable_name(const std::string& dataset) {
  return dataset.substr(dataset.rfind('/') + 1);
}

namespace {

constexpr std::int64_t most_rows = 64, most_values = 1 << 24;

struct Range {
  double least = 0, most = 0;
  std::int64_t rows = 0;
};

// Returns nothing if the values cannot be read, or if none of them is finite.
std::optional<Range> range_of(const h5::File& file, const std::string& dataset, int axis) {
  const h5::Shape shape = file.shape(dataset);
  if (shape.empty()) return std::nullopt;
  const auto rows_axis = static_cast<std::size_t>(axis);
  std::int64_t values_of_a_row = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) values_of_a_row *= i == rows_axis ? 1 : shape[i];
  if (values_of_a_row < 1 || values_of_a_row > most_values) return std::nullopt;
  const std::int64_t rows = std::min({most_rows, most_values / values_of_a_row, shape[rows_axis]});
  if (rows < 1) return std::nullopt;
  const h5::Guard guard;
  const h5::Handle handle = file.open_dataset(dataset), space(H5Dget_space(handle.get()), H5Sclose);
  std::vector<hsize_t> start(shape.size(), 0), size(shape.begin(), shape.end());
  size[rows_axis] = static_cast<hsize_t>(rows);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  const h5::Handle memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
  std::vector<double> values(static_cast<std::size_t>(rows * values_of_a_row));
  if (H5Dread(handle.get(), H5T_NATIVE_DOUBLE, memory.get(), space.get(), H5P_DEFAULT, values.data()) < 0) {
    H5Eclear2(H5E_DEFAULT);
    return std::nullopt;
  }
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return Range{*least, *most, rows};
}

// Returns an advice that makes values from 0 to 255 of values of this range.
std::string advice_on(const std::string& type, const Range& range, bool for_matlab, const std::string& x) {
  const auto within = [&](double least, double most) { return range.least >= least && range.most <= most; };
  const std::string scaled = within(0, 1)     ? cat(x, " * 255")
                             : within(-1, 1)  ? cat("(", x, " + 1) * 127.5")
                             : within(0, 255) ? x
                             : type == "u16"  ? ""
                                              : "?";
  if (scaled == "?") return "scale them to 0 to 255 first, and write them again as u8";
  if (for_matlab)
    return in_matlab(cat(x, " = uint8(", scaled.empty() ? cat(x, " / 257") : cat("round(", scaled, ")"), ")"));
  return cat("write them again as u8: ", scaled.empty() ? cat("(", x, " // 257)") : cat("numpy.rint(", scaled, ")"),
             ".astype('u1')");
}

}  // namespace

void refuse_pixels(const h5::File& file, const std::string& dataset, int axis, const ArrayOrigin& origin) {
  const std::string type = file.type(dataset);
  const std::string found = cat(file.path(), ": '", dataset, "' holds ", type, ", not u8");
  if (type == "bool") throw Error(found, "write the data set again as u8: x.astype('u1') * 255");
  if (type[0] != 'f' && type[0] != 'i' && type[0] != 'u') throw Error(found, expected_images);
  const std::optional<Range> range = range_of(file, dataset, axis);
  if (!range) throw Error(found, "scale the values to 0 to 255 first, and write them again as u8");
  throw Error(cat(found, ": the first ", range->rows, " images have ", range->least, " to ", range->most),
              advice_on(type, *range, origin.is_matlab(), origin.is_matlab() ? variable_name(dataset) : "x"));
}

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
