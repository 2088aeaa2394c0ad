#include "data_prep/images/array_source.h"

#include <algorithm>

#include "base/error.h"
#include "data/hdf5_storage.h"
#include "data_prep/images/array_file.h"
#include "data_prep/images/array_range.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {
namespace {

constexpr std::size_t blocks_kept = 8;
constexpr std::int64_t virtual_block_bytes = 1 << 20, strided_block_bytes = 64 << 20;

// Returns the axis that is as long as the list of labels, or the first one.
int likely_axis_of_images(const h5::Shape& shape, std::int64_t labels) {
  const auto same = std::ranges::find(shape, labels);
  return same == shape.end() ? 0 : static_cast<int>(same - shape.begin());
}

}  // namespace

ArraySource::ArraySource(const std::string& path, const std::string& dataset, const std::string& layout,
                         std::int64_t labels)
    : file_(open_with_dataset(path, dataset, ArrayUse::images)),
      name_(dataset),
      dataset_(file_.open_dataset(dataset)),
      shape_(file_.shape(dataset)),
      origin_(origin_of(file_, dataset)),
      layout_was_asked_(!layout.empty()) {
  const h5::Guard guard;
  const h5::Handle type(H5Dget_type(dataset_.get()), H5Tclose);
  const auto is_u8 = [](hid_t id) {
    return H5Tget_class(id) == H5T_INTEGER && H5Tget_size(id) == 1 && H5Tget_sign(id) == H5T_SGN_NONE;
  };
  const std::string found = cat(path, ": '", dataset, "' has the shape ", text_of(shape_));
  if (H5Tget_class(type.get()) == H5T_VLEN) {
    const h5::Handle element(H5Tget_super(type.get()), H5Tclose);
    encoded_ = shape_.size() == 1 && is_u8(element.get());
    if (!encoded_) throw Error(cat(found, " of variable-length values"), expected_images);
    return;
  }
  if (!is_u8(type.get())) refuse_pixels(file_, dataset, likely_axis_of_images(shape_, labels), origin_);
  if (origin_.matlab_class == "logical")
    throw Error(cat(path, ": '", dataset, "' holds MATLAB's logical values, 0 and 1, expected pixels from 0 to 255"),
                in_matlab(cat(variable_name(dataset), " = uint8(", variable_name(dataset), ") * 255")));
  if (shape_.size() != 3 && shape_.size() != 4) throw Error(found, expected_images);
  layout_ = layout_of(shape_, origin_, labels, layout, found);
  axis_ = layout_.find('N');
  height_ = shape_.at(layout_.find('H'));
  width_ = shape_.at(layout_.find('W'));
  channels_ = shape_.size() == 3 ? 1 : shape_.at(layout_.find('C'));
  if (height_ < 1 || width_ < 1 || height_ > 65500 || width_ > 65500)
    throw Error(cat(found, ", expected height and width from 1 to 65500"));
  set_block_rows();
}

void ArraySource::set_block_rows() {
  const h5::Handle creation(H5Dget_create_plist(dataset_.get()), H5Pclose);
  const std::int64_t row_bytes = height_ * width_ * channels_;
  const H5D_layout_t stored = H5Pget_layout(creation.get());
  if (stored == H5D_CHUNKED) {
    std::vector<hsize_t> chunk(shape_.size());
    H5Pget_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    block_rows_ = static_cast<std::int64_t>(chunk[axis_]);
  } else if (axis_ > 0) {  // the values of an image lie far apart
    block_rows_ = std::max<std::int64_t>(1, strided_block_bytes / row_bytes);
  } else if (stored == H5D_VIRTUAL) {  // the sources may be chunked
    block_rows_ = std::max<std::int64_t>(1, virtual_block_bytes / row_bytes);
  }
}

std::string ArraySource::describe() const {
  if (encoded_) return "encoded images";
  const std::string why = layout_was_asked_       ? " as --layout says"
                          : origin_.is_reversed() ? cat(" as ", origin_.program, " does")
                                                  : "";
  return cat("pixels ", height_, " x ", width_, " x ", channels_, ", stored ", layout_, why);
}

std::string ArraySource::doubt() const {
  if (layout_was_asked_ || origin_.is_reversed() || (layout_ != "NCHW" && layout_ != "NHW")) return "";
  const std::string other = layout_ == "NHW" ? "NWH" : "NCWH";
  return cat("read as ", layout_, "; arrays of h5create (MATLAB), R and Julia are usually ", other, ": --layout ",
             other, ". results/contact_sheet.py shows the pictures");
}

bool ArraySource::has_only_0_and_1(std::int64_t first, std::int64_t end) const {
  int largest = 0;
  for (std::int64_t row = first; row < end && largest < 2; ++row) {
    const FoundImage found = read({"", 0, -1, static_cast<std::uint64_t>(row), 0});
    largest = std::max<int>(largest, std::ranges::max(found.image.pixels));
  }
  return largest == 1;
}

std::int64_t ArraySource::expect_rows(std::int64_t first, std::int64_t end) const {
  return h5::expect_stored(file_, name_, {first, end, static_cast<int>(axis_)});
}

void ArraySource::fail(const std::string& rows) const {
  try {
    file_.fail(cat("cannot read ", rows, " of '", name_, "'"));
  } catch (const Error& error) {
    throw SourceError(error.what(), "the file is damaged: copy or make it again; --broken skip leaves these rows out");
  }
}

std::vector<std::uint8_t> ArraySource::read_encoded(std::int64_t row) const {
  const h5::Guard guard;
  const hsize_t start = static_cast<hsize_t>(row), one = 1;
  const h5::Handle space(H5Dget_space(dataset_.get()), H5Sclose), memory(H5Screate_simple(1, &one, nullptr), H5Sclose);
  const h5::Handle type(H5Tvlen_create(H5T_NATIVE_UINT8), H5Tclose);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &one, nullptr);
  hvl_t value{};
  if (H5Dread(dataset_.get(), type.get(), memory.get(), space.get(), H5P_DEFAULT, &value) < 0) fail(cat("row ", row));
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
  block->count = std::min(block_rows_, rows() - first);
  block->bytes.resize(static_cast<std::size_t>(block->count * height_ * width_ * channels_));
  const h5::Guard guard;
  // The memory's selection has as many dimensions as the file's. With only one dimension, HDF5 would copy single
  // elements.
  std::vector<hsize_t> start(shape_.size(), 0), size(shape_.begin(), shape_.end());
  start[axis_] = static_cast<hsize_t>(first);
  size[axis_] = static_cast<hsize_t>(block->count);
  const h5::Handle space(H5Dget_space(dataset_.get()), H5Sclose);
  const h5::Handle memory(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr);
  if (H5Dread(dataset_.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT, block->bytes.data()) < 0)
    fail(cat("rows ", first, " to ", first + block->count - 1));
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
  // `steps` is the distance of neighbours along N, H, W and C in the block.
  std::array<std::int64_t, 4> steps{};
  std::int64_t step = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    steps[std::string("NHWC").find(layout_[axis])] = step;
    step *= layout_[axis] == 'N' ? block->count : shape_[axis];
  }
  const std::uint8_t* first = block->bytes.data() + (row - block->first) * steps[0];
  const std::int64_t pixels = height_ * width_ * channels_;
  if (layout_ == "NHWC" || layout_ == "NHW") {
    found.image = {height_, width_, channels_, std::vector<std::uint8_t>(first, first + pixels)};
    return found;
  }
  found.image = {height_, width_, channels_, std::vector<std::uint8_t>(static_cast<std::size_t>(pixels))};
  std::uint8_t* out = found.image.pixels.data();
  for (std::int64_t y = 0; y < height_; ++y)
    for (std::int64_t x = 0; x < width_; ++x)
      for (std::int64_t c = 0; c < channels_; ++c) *out++ = first[y * steps[1] + x * steps[2] + c * steps[3]];
  return found;
}

}  // namespace ringtrain
