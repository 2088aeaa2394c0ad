#include "data_prep/images/array_labels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/hdf5_storage.h"
#include "data_prep/images/array_file.h"
#include "data_prep/images/array_origin.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {
namespace {

constexpr double largest_exact = 9007199254740992.0;  // 2^53

// What to do with an array of this shape, which has more axes than one that are long.
std::string advice_on_shape(const std::string& dataset, const h5::Shape& shape, bool is_matlab) {
  const auto is_long = [](std::int64_t extent) { return extent != 1; };
  const auto long_axes = std::ranges::count_if(shape, is_long);
  if (long_axes > 2) return "are --images and --labels swapped?";
  if (long_axes != 2) return "a label is one number for each image";
  const auto first = std::ranges::find_if(shape, is_long), second = std::find_if(first + 1, shape.end(), is_long);
  const auto classes = (*first < *second ? first : second) - shape.begin();  // there are fewer of them than of images
  const std::string name = variable_name(dataset);
  return cat("if each label is a row of zeros and a one (one-hot), make numbers of them: ",
             is_matlab ? in_matlab(cat("[~, ", name, "] = max(", name, ", [], ", std::ssize(shape) - classes, "); ",
                                       name, " = ", name, " - 1"))
                       : cat("labels.argmax(axis=", classes, ")"));
}

}  // namespace

ArrayLabels::ArrayLabels(const std::string& path, const std::string& dataset)
    : file_(open_with_dataset(path, dataset, ArrayUse::labels)),
      name_(dataset),
      type_(file_.type(dataset)),
      shape_(file_.shape(dataset)) {
  const bool is_number = type_[0] == 'i' || type_[0] == 'u' || type_[0] == 'f' || type_ == "bool" || type_ == "enum";
  const ArrayOrigin origin = origin_of(file_, dataset);
  const std::string name = variable_name(dataset);
  if (type_ == "string" || origin.matlab_class == "char")
    throw Error(cat(path, ": '", dataset, "' holds text, expected numbers from 0"),
                type_ == "string"
                    ? "numpy.unique(labels, return_inverse=True)[1] makes numbers of them"
                    : in_matlab(cat("[~, ~, ", name, "] = unique(cellstr(", name, ")); ", name, " = ", name, " - 1")));
  if (!is_number) throw Error(cat(path, ": '", dataset, "' holds ", type_, ", expected integer labels"));
  const auto long_axes = std::count_if(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent != 1; });
  if (shape_.empty() || long_axes > 1)
    throw Error(cat(path, ": '", dataset, "' has the shape ", text_of(shape_), ", expected (N), (N, 1) or (1, N)"),
                advice_on_shape(dataset, shape_, origin.is_matlab()));
  const auto found = std::find_if(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent != 1; });
  axis_ = found == shape_.end() ? 0 : static_cast<int>(found - shape_.begin());
  count_ = shape_[static_cast<std::size_t>(axis_)];
}

std::vector<std::int64_t> ArrayLabels::read(std::int64_t first, std::int64_t end) const {
  h5::expect_stored(file_, name_, {first, end, axis_});
  const auto count = static_cast<std::size_t>(end - first);
  const h5::Guard guard;
  const h5::Handle dataset = file_.open_dataset(name_), space(H5Dget_space(dataset.get()), H5Sclose);
  std::vector<hsize_t> start(shape_.size(), 0), size(shape_.begin(), shape_.end());
  start[static_cast<std::size_t>(axis_)] = static_cast<hsize_t>(first);
  size[static_cast<std::size_t>(axis_)] = static_cast<hsize_t>(count);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  const h5::Handle memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
  const auto read_as = [&](hid_t type, void* values) {
    if (H5Dread(dataset.get(), type, memory.get(), space.get(), H5P_DEFAULT, values) < 0)
      file_.fail(cat("cannot read data set '", name_, "'"));
  };
  std::vector<std::int64_t> labels(count);
  if (count == 0) return labels;
  if (type_ == "u64") {
    std::vector<std::uint64_t> values(count);
    read_as(H5T_NATIVE_UINT64, values.data());
    const auto fits = [](std::uint64_t value) { return value <= std::numeric_limits<std::int64_t>::max(); };
    if (const auto at = std::ranges::find_if_not(values, fits); at != values.end())
      throw Error(cat(file_.path(), ": row ", first + (at - values.begin()), " of '", name_, "' is ", *at,
                      ", which is not a label"),
                  "labels count from 0; --rows can leave out images without a class");
    std::ranges::copy(values, labels.begin());
    return labels;
  }
  if (type_[0] != 'f') {
    read_as(H5T_NATIVE_INT64, labels.data());
    return labels;
  }
  std::vector<double> values(count);
  read_as(H5T_NATIVE_DOUBLE, values.data());
  const auto is_whole = [](double value) { return std::abs(value) <= largest_exact && std::trunc(value) == value; };
  const auto fractions = std::count_if(values.begin(), values.end(), [&](double value) { return !is_whole(value); });
  if (fractions > 0) {
    const auto at = std::find_if_not(values.begin(), values.end(), is_whole);
    throw Error(cat(file_.path(), ": ", fractions, " of ", count, " labels in '", name_,
                    "' are no whole numbers, such as ", *at, " in row ", first + (at - values.begin())),
                "labels are the numbers of classes, from 0; --rows can leave out images without a class");
  }
  std::transform(values.begin(), values.end(), labels.begin(),
                 [](double value) { return static_cast<std::int64_t>(value); });
  return labels;
}

}  // namespace ringtrain
