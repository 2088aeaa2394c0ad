#include "data_prep/images/shard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/utf8.h"
#include "data_prep/common/read_file.h"

namespace ringtrain {
namespace {

// Writes strings of fixed length, padded with zero bytes.
void write_strings(const h5::File& file, const std::string& name, const std::vector<std::string>& values) {
  const h5::Guard lock;
  std::size_t length = 1;
  bool utf8 = true;
  for (const std::string& value : values) {
    length = std::max(length, value.size());
    utf8 = utf8 && find_invalid_utf8(value) == std::string::npos;
  }
  std::string padded(length * values.size(), '\0');
  for (std::size_t i = 0; i < values.size(); ++i) values[i].copy(padded.data() + i * length, length);
  const h5::Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), length);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), utf8 ? H5T_CSET_UTF8 : H5T_CSET_ASCII);  // HDF5 tools show other names as bytes
  const h5::Handle made = make_array(file, name, type.get(), {static_cast<std::int64_t>(values.size())});
  if (!values.empty() && H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()) < 0) {
    file.fail(cat("cannot write data set '", name, "'"));
  }
}

void write_reals(const h5::File& file, const std::string& name, const std::vector<double>& values) {
  const h5::Guard lock;
  const hsize_t count = values.size();
  const h5::Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const h5::Handle made(H5Acreate2(file.id(), name.c_str(), H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                        H5Aclose);
  if (made.get() < 0 || H5Awrite(made.get(), H5T_NATIVE_DOUBLE, values.data()) < 0) {
    file.fail(cat("cannot write attribute '", name, "'"));
  }
}

// Returns whether the writer of an HDF5 file has closed it. HDF5 marks a file that is open for writing in its
// superblock (file format specification, "File Consistency Flags"). A writer that is killed after writing `complete`
// and before closing leaves the mark.
bool was_closed(const std::string& path) {
  std::array<std::uint8_t, 24> superblock{};
  InputFile(path).read(0, superblock);
  const bool old = superblock[8] <= 1;  // version
  return old ? superblock[20] == 0 : superblock[11] == 0;
}

}  // namespace

ImageShardWriter::ImageShardWriter(const SplitDescription& split, const ImageSetDescription& set, std::int64_t shard,
                                   const std::string& path, const ImageColumns& columns)
    : file_(h5::File::create(path)) {
  const auto count = static_cast<std::int64_t>(columns.labels.size());
  write_root_attributes(file_, split, "image", shard, count, static_cast<std::int64_t>(set.classes.ids.size()));
  write_reals(file_, "mean", set.mean);
  write_reals(file_, "std", set.std);
  {
    const h5::Guard lock;
    const h5::Shape shape = set.raw ? h5::Shape{count, set.height, set.width, set.channels}
                                    : h5::Shape{static_cast<std::int64_t>(columns.offsets.back())};
    const h5::Handle images = make_array(file_, "images", H5T_STD_U8LE, shape);
    address_ = H5Dget_offset(images.get());
    if (address_ == HADDR_UNDEF) file_.fail("data set 'images' has no place in the file");
  }
  file_.write_attribute("images", "encoding", std::string(set.raw ? "raw" : "jpeg"));
  if (set.raw) file_.write_attribute("images", "layout", std::string("NHWC"));
  if (!set.raw) file_.write<std::uint64_t>("offsets", columns.offsets, {count + 1});
  file_.write<std::int32_t>("labels", columns.labels, {count});
  file_.write<std::int32_t>("shapes", columns.shapes, {count, 3});
  file_.write<std::uint64_t>("sample_ids", columns.sample_ids, {count});
  file_.write<std::uint32_t>("crc32c", columns.crc32c, {count});
  write_strings(file_, "class_names", set.classes.names);
  write_strings(file_, "class_ids", set.classes.ids);
  write_strings(file_, "keys", columns.keys);
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw Error(cat(path, ": cannot open to write: ", std::strerror(errno)));
}

ImageShardWriter::~ImageShardWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ImageShardWriter::write(std::uint64_t offset, std::span<const std::uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(address_ + offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int reason = errno;
      const std::string advice = advice_for_writing(reason, file_.path());
      throw Error(cat(file_.path(), ": cannot write: ", std::strerror(reason)),
                  cat(advice, advice.empty() ? "" : "; ", "--resume keeps the files that are finished"));
    }
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void ImageShardWriter::finish() {
  ::close(descriptor_);
  descriptor_ = -1;
  file_.flush();
  file_.write_attribute("/", "complete", std::int64_t{1});
  file_.flush();
  file_.close();
}

bool is_finished_shard(const std::string& path, const SplitDescription& split, std::int64_t shard) {
  if (!std::filesystem::exists(path)) return false;
  try {
    if (!was_closed(path)) return false;
    const h5::File file = h5::File::open(path);
    const auto same = [&](const std::string& name, const std::string& value) {
      return file.has_attribute("/", name) && file.read_string("/", name) == value;
    };
    return file.has_attribute("/", "complete") && same("dataset_uuid", split.dataset_uuid) &&
           same("split", split.split) && same("license", split.license) && same("source", split.source) &&
           same("dataset_name", split.dataset_name) && file.read_integer("/", "shard_index") == shard &&
           file.read_integer("/", "num_shards") == split.num_shards;
  } catch (const Error&) {  // the file is incomplete
    return false;
  }
}

}  // namespace ringtrain
