// Reads the images and labels of arrays: ArraySource and ArrayLabels of arrays.h.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/table.h"
#include "data/hdf5.h"
#include "data_prep/images/arrays.h"

namespace ringtrain {
namespace {

constexpr std::size_t most_named = 20;
constexpr int most_looked_at = 2000, deepest_group = 6;

struct Object {
  bool is_group = false;
  haddr_t address = HADDR_UNDEF;  // the same for all links to the object
};

Object object_of(const h5::File& file, const std::string& path) {
  const h5::Handle handle(H5Oopen(file.id(), path.c_str(), H5P_DEFAULT), H5Oclose);
  H5O_info_t info;
  if (handle.get() < 0 || H5Oget_info(handle.get(), &info) < 0) return {};
  return {H5Iget_type(handle.get()) == H5I_GROUP, info.addr};
}

// Adds "group/x u8 (60, 8, 6, 3)" for each data set in this group and below it. Groups may hold themselves, so each
// group is looked at once (`seen`).
void add_datasets(const h5::File& file, const std::string& group, int depth, int& looked_at, std::set<haddr_t>& seen,
                  std::vector<std::string>& found) {
  std::vector<std::string> groups;
  for (const std::string& member : file.list(group)) {
    if (member.starts_with("#")) continue;  // what MATLAB keeps for itself
    if (++looked_at > most_looked_at) return;
    const std::string path = group == "/" ? member : cat(group, "/", member);
    const Object object = object_of(file, path);
    if (object.is_group) {
      if (depth < deepest_group && seen.insert(object.address).second) groups.push_back(path);
      continue;
    }
    try {
      found.push_back(cat(path, " ", file.type(path), " ", text_of(file.shape(path))));
    } catch (const Error&) {
      found.push_back(path);  // a link that leads nowhere, or a damaged data set
    }
  }
  for (const std::string& path : groups) add_datasets(file, path, depth + 1, looked_at, seen, found);
}

std::string datasets_of(const h5::File& file) {
  std::vector<std::string> found;
  int looked_at = 0;
  std::set<haddr_t> seen = {object_of(file, "/").address};
  add_datasets(file, "/", 1, looked_at, seen, found);
  return found.empty() ? "the file has no data sets" : cat("its data sets: ", first_names(found, most_named));
}

// MATLAB stores many things as data sets that are no arrays of numbers.
void expect_numbers_of_matlab(const h5::File& file, const std::string& dataset, ArrayUse use) {
  const std::string found = cat(file.path(), ": '", dataset, "' is "), name = variable_name(dataset);
  if (file.has_attribute(dataset, "MATLAB_empty") && file.read_integer(dataset, "MATLAB_empty") != 0)
    throw Error(cat(found, "empty in MATLAB"), cat("was ", name, " filled after it was saved?"));
  if (!file.has_attribute(dataset, "MATLAB_class")) return;
  const std::string kind = file.read_string(dataset, "MATLAB_class");
  const bool are_labels = use == ArrayUse::labels;
  if (kind == "cell")
    throw Error(cat(found, "a cell array of MATLAB"),
                are_labels ? matlab_advice_on_cell(file, dataset) : in_matlab(cat(name, " = cat(4, ", name, "{:})")));
  if (file.has_attribute(dataset, "MATLAB_object_decode"))
    throw Error(cat(found, "an object of MATLAB, such as a categorical or a table (", kind, ")"),
                are_labels ? matlab_advice_on_names(name, kind == "string" ? name : cat("cellstr(", name, ")"))
                           : "save its pictures as one array of uint8, H x W x C x N");
}

}  // namespace

void expect_no_writer(const std::string& path) {
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  if (const std::string_view word = locking == nullptr ? "" : locking; word == "FALSE" || word == "0") return;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;  // opening it as HDF5 says why
  const bool is_locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  if (is_locked)
    throw Error(cat(path, ": is open for writing in another process"),
                "wait until it is closed, or set HDF5_USE_FILE_LOCKING=FALSE to read what is there already");
}

h5::File open_with_dataset(const std::string& path, const std::string& dataset, ArrayUse use) {
  h5::File file = h5::File::open(path);
  const h5::Guard guard;
  if (dataset.empty())
    throw Error(cat(path, ": ", use == ArrayUse::images ? "--images" : "--labels",
                    " KEY is missing, which names a data set in the file"),
                datasets_of(file));
  if (!file.has(dataset) && file.broken_link(dataset).empty())
    throw Error(cat(path, ": has no data set '", dataset, "'"), datasets_of(file));
  if (const h5::Handle object(H5Oopen(file.id(), dataset.c_str(), H5P_DEFAULT), H5Oclose);
      object.get() >= 0 && H5Iget_type(object.get()) != H5I_DATASET) {
    if (file.has_attribute(dataset, "MATLAB_sparse"))
      throw Error(cat(path, ": '", dataset, "' is a sparse matrix of MATLAB"),
                  in_matlab(cat(variable_name(dataset), " = full(", variable_name(dataset), ")")));
    const std::string advice = use == ArrayUse::images ? advice_on_group_of_images(file, dataset) : "";
    throw Error(cat(path, ": '", dataset, "' is not a data set"), advice.empty() ? datasets_of(file) : advice);
  }
  file.open_dataset(dataset);  // explains what a link lacks
  expect_numbers_of_matlab(file, dataset, use);
  return file;
}

namespace {

constexpr double largest_exact = 9007199254740992.0;  // 2^53

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
                type_ == "string" ? advice_on_text_labels(file_, dataset)
                                  : matlab_advice_on_names(name, cat("cellstr(", name, ")")));
  if (!is_number) throw Error(cat(path, ": '", dataset, "' holds ", type_, ", expected integer labels"));
  const auto long_axes = std::count_if(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent != 1; });
  if (shape_.empty() || long_axes > 1)
    throw Error(cat(path, ": '", dataset, "' has the shape ", text_of(shape_), ", expected (N), (N, 1) or (1, N)"),
                long_axes > 2    ? "are --images and --labels swapped?"
                : long_axes != 2 ? "a label is one number for each image"
                                 : advice_on_label_rows(file_, dataset, origin.is_matlab()));
  const auto found = std::find_if(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent != 1; });
  axis_ = found == shape_.end() ? 0 : static_cast<int>(found - shape_.begin());
  count_ = shape_[static_cast<std::size_t>(axis_)];
}

std::vector<ArrayLabels::Name> ArrayLabels::names() const {
  std::vector<Name> names;
  if (type_ != "enum") return names;
  const h5::Guard guard;
  const h5::Handle dataset = file_.open_dataset(name_), type(H5Dget_type(dataset.get()), H5Tclose);
  const h5::Handle base(H5Tget_super(type.get()), H5Tclose);
  const int count = H5Tget_nmembers(type.get());
  for (unsigned i = 0; i < static_cast<unsigned>(std::max(count, 0)); ++i) {
    std::array<char, 64> value{};  // H5Tconvert() needs the room of the larger type
    if (H5Tget_size(type.get()) > value.size() || H5Tget_member_value(type.get(), i, value.data()) < 0) return {};
    if (H5Tconvert(base.get(), H5T_NATIVE_INT64, 1, value.data(), nullptr, H5P_DEFAULT) < 0) return {};
    std::int64_t label = 0;
    std::memcpy(&label, value.data(), sizeof label);
    char* const text = H5Tget_member_name(type.get(), i);
    if (text == nullptr) return {};
    names.push_back({label, text});
    H5free_memory(text);
  }
  std::ranges::sort(names, {}, &Name::label);
  return names;
}

std::vector<std::int64_t> ArrayLabels::read(std::int64_t first, std::int64_t end) const {
  h5::expect_stored(file_, name_, {first, end, axis_});
  const auto count = static_cast<std::size_t>(end - first);
  const h5::Guard guard;
  const h5::Handle dataset = file_.open_dataset(name_);
  const h5::RowSpaces rows = h5::select_rows(dataset.get(), shape_, {first, end, axis_});
  const auto read_as = [&](hid_t type, void* values) {
    if (H5Dread(dataset.get(), type, rows.memory.get(), rows.file.get(), H5P_DEFAULT, values) < 0)
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
    if (!encoded_) refuse_shape(file_, dataset, found);
    return;
  }
  if (!is_u8(type.get())) refuse_pixels(file_, dataset, likely_axis_of_images(shape_, labels), origin_);
  if (origin_.matlab_class == "logical")
    throw Error(cat(path, ": '", dataset, "' holds MATLAB's logical values, 0 and 1, expected pixels from 0 to 255"),
                in_matlab(cat(variable_name(dataset), " = uint8(", variable_name(dataset), ") * 255")));
  if (shape_.size() != 3 && shape_.size() != 4) refuse_shape(file_, dataset, found);
  const AskedLayout asked = layout.empty() ? layout_in_file(file_, dataset) : AskedLayout{layout};
  layout_is_labelled_ = asked.is_in_file;
  layout_ = layout_of(shape_, origin_, labels, asked, found);
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
                          : layout_is_labelled_   ? " as the labels of its axes say"
                          : origin_.is_reversed() ? cat(" as ", origin_.program, " does")
                                                  : "";
  return cat("pixels ", height_, " x ", width_, " x ", channels_, ", stored ", layout_, why);
}

std::string ArraySource::doubt() const {
  if (layout_was_asked_ || layout_is_labelled_ || origin_.is_reversed() || (layout_ != "NCHW" && layout_ != "NHW"))
    return "";
  const std::string other = layout_ == "NHW" ? "NWH" : "NCWH";
  return cat("read as ", layout_, "; arrays of h5create (MATLAB), R and Julia are usually ", other, ": --layout ",
             other, ". results/contact_sheet.py shows the pictures");
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
  const auto [space, memory] = h5::select_rows(dataset_.get(), shape_, {row, row + 1});
  const h5::Handle type(H5Tvlen_create(H5T_NATIVE_UINT8), H5Tclose);
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
  const auto [space, memory] =
      h5::select_rows(dataset_.get(), shape_, {first, first + block->count, static_cast<int>(axis_)});
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
