#include "data_prep/images/array_labels.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/hdf5_storage.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {
namespace {

constexpr double largest_exact = 9007199254740992.0;  // 2^53

}  // namespace

h5::File open_with_dataset(const std::string& path, const std::string& dataset, const std::string& option) {
  if (dataset.empty()) throw Error(cat(option, " KEY is missing"), "it names the data set in the file");
  h5::File file = h5::File::open(path);
  const h5::Guard guard;
  if (!file.has(dataset) && file.broken_link(dataset).empty()) {
    std::string there;
    for (const std::string& member : file.list("/")) there += (there.empty() ? "" : ", ") + member;
    throw Error(cat(path, ": has no data set '", dataset, "'"),
                there.empty() ? "the file is empty" : cat("at its root there are: ", there));
  }
  if (const h5::Handle object(H5Oopen(file.id(), dataset.c_str(), H5P_DEFAULT), H5Oclose);
      object.get() >= 0 && H5Iget_type(object.get()) != H5I_DATASET)
    throw Error(cat(path, ": '", dataset, "' is not a data set"));
  file.open_dataset(dataset);  // explains what a link lacks
  return file;
}

ArrayLabels::ArrayLabels(const std::string& path, const std::string& dataset)
    : file_(open_with_dataset(path, dataset, "--labels")),
      name_(dataset),
      type_(file_.type(dataset)),
      shape_(file_.shape(dataset)) {
  const bool is_number = type_[0] == 'i' || type_[0] == 'u' || type_[0] == 'f' || type_ == "bool" || type_ == "enum";
  if (type_ == "string")
    throw Error(cat(path, ": '", dataset, "' holds text, expected numbers from 0"),
                "numpy.unique(labels, return_inverse=True)[1] makes numbers of them");
  if (!is_number) throw Error(cat(path, ": '", dataset, "' holds ", type_, ", expected integer labels"));
  const auto long_axes = std::count_if(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent != 1; });
  if (shape_.empty() || long_axes > 1) {
    throw Error(cat(path, ": '", dataset, "' has the shape ", text_of(shape_), ", expected (N), (N, 1) or (1, N)"),
                "labels of which each is a row of zeros and a one (one-hot) have to be turned into numbers first: "
                "labels.argmax(axis=1)");
  }
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
