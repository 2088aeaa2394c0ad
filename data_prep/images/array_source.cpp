#include "data_prep/images/array_source.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain {
namespace {

constexpr std::size_t blocks_kept = 8;

std::string text_of(const h5::Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "(" : ", ") + std::to_string(extent);
  return text.empty() ? "()" : text + ")";
}

void expect_dataset(const h5::File& file, const std::string& name, const std::string& option) {
  if (name.empty()) throw Error(cat(option, " KEY is missing"), "it names the data set in the file");
  if (file.has(name)) {
    const std::lock_guard<std::recursive_mutex> lock(h5::library_lock());
    const h5::Handle object(H5Oopen(file.id(), name.c_str(), H5P_DEFAULT), H5Oclose);
    if (H5Iget_type(object.get()) == H5I_DATASET) return;
    throw Error(cat(file.path(), ": '", name, "' is not a data set"));
  }
  std::string there;
  for (const std::string& member : file.list("/")) there += (there.empty() ? "" : ", ") + member;
  throw Error(cat(file.path(), ": has no data set '", name, "'"),
              there.empty() ? "the file is empty" : cat("at its root there are: ", there));
}

}  // namespace

ArraySource::ArraySource(const std::string& path, const std::string& dataset, const std::string& layout)
    : file_(h5::File::open(path)), name_(dataset) {
  expect_dataset(file_, dataset, "--images");
  const std::lock_guard<std::recursive_mutex> lock(h5::library_lock());
  dataset_ = {H5Dopen2(file_.id(), dataset.c_str(), H5P_DEFAULT), H5Dclose};
  if (dataset_.get() < 0) file_.fail(cat("cannot open data set '", dataset, "'"));
  shape_ = file_.shape(dataset);
  const h5::Handle type(H5Dget_type(dataset_.get()), H5Tclose);
  const auto is_u8 = [](hid_t id) {
    return H5Tget_class(id) == H5T_INTEGER && H5Tget_size(id) == 1 && H5Tget_sign(id) == H5T_SGN_NONE;
  };
  const std::string found = cat(path, ": '", dataset, "' has the shape ", text_of(shape_));
  const std::string expected =
      "expected u8 pixels (N, H, W, C), (N, C, H, W) or (N, H, W), or (N) encoded images of variable length";
  if (H5Tget_class(type.get()) == H5T_VLEN) {
    const h5::Handle element(H5Tget_super(type.get()), H5Tclose);
    encoded_ = shape_.size() == 1 && is_u8(element.get());
    if (!encoded_) throw Error(cat(found, " of variable-length values"), expected);
    return;
  }
  if (!is_u8(type.get())) throw Error(cat(path, ": '", dataset, "' holds ", file_.type(dataset), ", not u8"), expected);
  if (shape_.size() != 3 && shape_.size() != 4) throw Error(found, expected);
  const auto may_be_channels = [&](std::size_t axis) { return shape_[axis] == 1 || shape_[axis] == 3; };
  if (shape_.size() == 4) {
    const bool last = may_be_channels(3), first = may_be_channels(1);
    if (!first && !last)
      throw Error(cat(found, ": neither the second nor the last axis has 1 or 3 channels"), expected);
    if (layout.empty() && first && last)
      throw Error(cat(found, ": both the second and the last axis may be the channels"), "give --layout NHWC or NCHW");
    channels_first_ = layout.empty() ? first : layout == "NCHW";
    if (channels_first_ ? !first : !last)
      throw Error(cat(found, ", which does not fit --layout ", layout), "images have 1 or 3 channels");
  }
  const std::size_t rows_axis = channels_first_ ? 2 : 1;
  height_ = shape_[rows_axis];
  width_ = shape_[rows_axis + 1];
  channels_ = shape_.size() == 3 ? 1 : shape_[channels_first_ ? 1 : 3];
  if (height_ < 1 || width_ < 1 || height_ > 65500 || width_ > 65500)
    throw Error(cat(found, ", expected height and width from 1 to 65500"));
  const h5::Handle creation(H5Dget_create_plist(dataset_.get()), H5Pclose);
  if (H5Pget_layout(creation.get()) == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(shape_.size());
    H5Pget_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    block_rows_ = static_cast<std::int64_t>(chunk[0]);
  }
}

std::string ArraySource::describe() const {
  if (encoded_) return "encoded images";
  return cat("pixels ", height_, " x ", width_, " x ", channels_,
             shape_.size() == 3 ? ""
             : channels_first_  ? ", stored NCHW"
                                : ", stored NHWC");
}

std::vector<std::uint8_t> ArraySource::read_encoded(std::int64_t row) const {
  const std::lock_guard<std::recursive_mutex> lock(h5::library_lock());
  const hsize_t start = static_cast<hsize_t>(row), one = 1;
  const h5::Handle space(H5Dget_space(dataset_.get()), H5Sclose), memory(H5Screate_simple(1, &one, nullptr), H5Sclose);
  const h5::Handle type(H5Tvlen_create(H5T_NATIVE_UINT8), H5Tclose);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &one, nullptr);
  hvl_t value{};
  if (H5Dread(dataset_.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, &value) < 0)
    file_.fail(cat("cannot read row ", row, " of '", name_, "'"));
  const auto* bytes = static_cast<const std::uint8_t*>(value.p);
  std::vector<std::uint8_t> result(bytes, bytes + value.len);
  H5Dvlen_reclaim(type.get(), memory.get(), H5P_DEFAULT, &value);
  return result;
}

std::shared_ptr<const ArraySource::Block> ArraySource::block_of(std::int64_t row) const {
  const std::int64_t first = row / block_rows_ * block_rows_;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& block : blocks_)
    if (block->first == first) return block;
  const auto block = std::make_shared<Block>();
  block->first = first;
  const std::int64_t count = std::min(block_rows_, shape_[0] - first);
  block->bytes.resize(static_cast<std::size_t>(count * height_ * width_ * channels_));
  const std::lock_guard<std::recursive_mutex> library(h5::library_lock());
  // The memory's selection has as many dimensions as the file's. With only one dimension, HDF5 would copy single
  // elements.
  std::vector<hsize_t> start(shape_.size(), 0), size(shape_.begin(), shape_.end());
  start[0] = static_cast<hsize_t>(first);
  size[0] = static_cast<hsize_t>(count);
  const h5::Handle space(H5Dget_space(dataset_.get()), H5Sclose);
  const h5::Handle memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  if (H5Dread(dataset_.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT, block->bytes.data()) < 0)
    file_.fail(cat("cannot read rows ", first, " to ", first + count - 1, " of '", name_, "'"));
  blocks_.push_front(block);
  if (blocks_.size() > blocks_kept) blocks_.pop_back();
  return block;
}

FoundImage ArraySource::read(const ImageItem& item) const {
  const auto row = static_cast<std::int64_t>(item.offset);
  FoundImage found;
  if (encoded_) {
    found.bytes = read_encoded(row);
    return found;
  }
  const std::shared_ptr<const Block> block = block_of(row);
  const auto plane = static_cast<std::size_t>(height_ * width_), channels = static_cast<std::size_t>(channels_);
  const std::uint8_t* pixels = block->bytes.data() + static_cast<std::size_t>(row - block->first) * plane * channels;
  found.image = {height_, width_, channels_, std::vector<std::uint8_t>(pixels, pixels + plane * channels)};
  if (!channels_first_) return found;
  for (std::size_t i = 0; i < plane; ++i) {
    for (std::size_t c = 0; c < channels; ++c) found.image.pixels[i * channels + c] = pixels[c * plane + i];
  }
  return found;
}

std::vector<std::int64_t> read_array_labels(const std::string& path, const std::string& dataset) {
  const h5::File file = h5::File::open(path);
  expect_dataset(file, dataset, "--labels");
  const h5::Shape shape = file.shape(dataset);
  const std::string type = file.type(dataset);
  if (type[0] != 'i' && type[0] != 'u')
    throw Error(cat(path, ": '", dataset, "' holds ", type, ", expected integer labels"));
  if (shape.empty() || shape.size() > 2 || (shape.size() == 2 && shape[1] != 1)) {
    throw Error(cat(path, ": '", dataset, "' has the shape ", text_of(shape), ", expected (N) or (N, 1)"),
                "one-hot labels have to be turned into numbers first");
  }
  std::vector<std::int64_t> labels(static_cast<std::size_t>(shape[0]));
  const std::lock_guard<std::recursive_mutex> lock(h5::library_lock());
  const h5::Handle handle(H5Dopen2(file.id(), dataset.c_str(), H5P_DEFAULT), H5Dclose);
  if (!labels.empty() && H5Dread(handle.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, labels.data()) < 0)
    file.fail(cat("cannot read data set '", dataset, "'"));
  return labels;
}

}  // namespace ringtrain
