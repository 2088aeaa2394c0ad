#include "data/hdf5.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/files.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

// H5Pset_file_locking came with 1.10.7 and 1.12.1; older libraries know only the environment variable.
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
constexpr bool has_locking_property = true;
#define RINGTRAIN_SET_LOCKING_OFF(access) H5Pset_file_locking(access, false, true)
#else
constexpr bool has_locking_property = false;
#define RINGTRAIN_SET_LOCKING_OFF(access) 0
#endif

#if H5_VERSION_GE(1, 10, 2)
constexpr H5F_libver_t oldest_format = H5F_LIBVER_V18;
#else
constexpr H5F_libver_t oldest_format = H5F_LIBVER_LATEST;
#endif

// Keeps the first description of HDF5's error stack that is not empty. The innermost error comes first.
herr_t keep_first_description(unsigned, const H5E_error2_t* error, void* result) {
  auto& text = *static_cast<std::string*>(result);
  if (text.empty() && error->desc != nullptr) text = error->desc;
  return 0;
}

std::string innermost_description() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first_description, &text);
  H5Eclear2(H5E_DEFAULT);
  // The file driver puts errno into a long line with times, descriptors and addresses. Only its error message is kept.
  const std::string marker = "error message = '";
  if (const auto begin = text.find(marker); begin != std::string::npos) {
    const auto end = text.find('\'', begin + marker.size());
    text = text.substr(begin + marker.size(), end - begin - marker.size());
  }
  return text.empty() ? "HDF5 gave no reason" : text;
}

// If the metadata of a file cannot be written (disk full), closing fails: HDF5 frees a part of its data about the file,
// keeps the file's id and crashes later. The file's descriptor is therefore redirected to anonymous memory, so that
// closing succeeds.
herr_t close_file(hid_t id) {
  if (H5Fflush(id, H5F_SCOPE_LOCAL) >= 0) return H5Fclose(id);
  const std::string reason = innermost_description();
  void* descriptor = nullptr;
  if (H5Fget_vfd_handle(id, H5P_DEFAULT, &descriptor) >= 0 && descriptor != nullptr) {
    const int memory = ::memfd_create("ringtrain-failed-file", MFD_CLOEXEC);
    if (memory >= 0) {
      ::dup2(memory, *static_cast<int*>(descriptor));
      ::close(memory);
    }
  }
  H5Fclose(id);
  H5Eclear2(H5E_DEFAULT);
  H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_FILE, H5E_CANTCLOSEFILE, "%s", reason.c_str());
  return -1;
}

Handle file_access(const std::string& path) {
  Handle access(checked(H5Pcreate(H5P_FILE_ACCESS), path, "cannot set file properties"), H5Pclose);
  checked(RINGTRAIN_SET_LOCKING_OFF(access.get()), path, "cannot turn file locking off");
  checked(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), path, "cannot set file properties");
  // No sieve buffer: small writes fail at once and not when the data set is closed; small reads do not fetch 64 KiB.
  checked(H5Pset_sieve_buf_size(access.get(), 1), path, "cannot set file properties");
  return access;
}

template <class T>
hid_t memory_type();
template <>
hid_t memory_type<std::uint8_t>() {
  return H5T_NATIVE_UINT8;
}
template <>
hid_t memory_type<std::int32_t>() {
  return H5T_NATIVE_INT32;
}
template <>
hid_t memory_type<std::uint32_t>() {
  return H5T_NATIVE_UINT32;
}
template <>
hid_t memory_type<std::int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
hid_t memory_type<std::uint64_t>() {
  return H5T_NATIVE_UINT64;
}
template <>
hid_t memory_type<float>() {
  return H5T_NATIVE_FLOAT;
}
template <>
hid_t memory_type<double>() {
  return H5T_NATIVE_DOUBLE;
}

constexpr std::int64_t block_bytes = 16 << 20;

std::int64_t elements(const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;  // even if other extents are invalid
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Handle open_dataset(const File& file, const std::string& name) {
  if (!file.has(name)) throw Error(cat(file.path(), ": data set '", name, "' is missing"));
  return {
      checked(H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), file.path(), cat("cannot open data set '", name, "'")),
      H5Dclose};
}

// Returns the most bytes that a data set of this file can have. With a filter, this is 1,032 times the file's size,
// because deflate compresses at most 1,032-fold. Fill values of h5py are not stored at all, so small data sets are
// always accepted.
std::int64_t most_bytes(const File& file, hid_t dataset) {
  constexpr std::int64_t always = 1 << 20, packing = 1032;
  hsize_t stored = 0;
  checked(H5Fget_filesize(file.id(), &stored), file.path(), "cannot read the file's size");
  const auto bytes =
      static_cast<std::int64_t>(std::min<hsize_t>(stored, std::numeric_limits<std::int64_t>::max() / packing));
  const Handle creation(checked(H5Dget_create_plist(dataset), file.path(), "cannot read how a data set is stored"),
                        H5Pclose);
  if (H5Pget_external_count(creation.get()) > 0) return std::numeric_limits<std::int64_t>::max();
  return std::max(always, H5Pget_nfilters(creation.get()) > 0 ? bytes * packing : bytes);
}

// Throws Error if the shape needs more bytes than the file can have, so that no memory is allocated for it.
Shape shape_of(const File& file, const std::string& name, hid_t dataset) {
  const Handle space(checked(H5Dget_space(dataset), file.path(), cat("cannot read the shape of '", name, "'")),
                     H5Sclose);
  const int rank = checked(H5Sget_simple_extent_ndims(space.get()), file.path(), cat("'", name, "' has no shape"));
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  const Handle type(checked(H5Dget_type(dataset), file.path(), cat("cannot read the type of '", name, "'")), H5Tclose);
  auto bytes = static_cast<std::int64_t>(H5Tget_size(type.get()));
  bool fits = true;
  for (const hsize_t extent : extents) fits = !__builtin_mul_overflow(bytes, extent, &bytes) && fits;
  // If one extent is 0, the data set is empty.
  const bool empty = std::find(extents.begin(), extents.end(), hsize_t{0}) != extents.end();
  const bool countable = std::all_of(extents.begin(), extents.end(), [](hsize_t n) { return n >> 62 == 0; });
  if (!countable || (!empty && (!fits || bytes > most_bytes(file, dataset)))) {
    std::string shape;
    for (const hsize_t extent : extents) shape += cat(shape.empty() ? "" : " x ", extent);
    throw Error(cat(file.path(), ": data set '", name, "' claims to hold ", shape,
                    " values, more than a file of its size can: it is damaged, or cut off"));
  }
  return {extents.begin(), extents.end()};
}

// Calls transfer(memory space, file space, first element) under the lock for each block of rows, and after_block
// without the lock.
template <class Transfer>
void in_blocks(const std::string& path, const std::string& what, const Shape& shape, std::size_t element_bytes,
               const AfterBlock& after_block, const Transfer& transfer) {
  if (elements(shape) == 0) return;
  std::vector<hsize_t> first(shape.size(), 0), extents(shape.begin(), shape.end());
  const std::int64_t rows = shape.empty() ? 1 : shape[0], row_elements = elements(shape) / rows;
  const std::int64_t row_bytes = row_elements * static_cast<std::int64_t>(element_bytes);
  const std::int64_t rows_of_block = std::max<std::int64_t>(1, block_bytes / row_bytes);
  for (std::int64_t row = 0; row < rows; row += rows_of_block) {
    const std::int64_t count = std::min(rows_of_block, rows - row);
    if (count == rows) {
      const Guard guard;
      checked(transfer(H5S_ALL, H5S_ALL, std::int64_t{0}), path, what);
    } else {
      const Guard guard;
      const int dimensions = static_cast<int>(shape.size());
      extents[0] = static_cast<hsize_t>(rows);
      const Handle file(checked(H5Screate_simple(dimensions, extents.data(), nullptr), path, what), H5Sclose);
      extents[0] = static_cast<hsize_t>(count);
      first[0] = static_cast<hsize_t>(row);
      const Handle memory(checked(H5Screate_simple(dimensions, extents.data(), nullptr), path, what), H5Sclose);
      checked(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, first.data(), nullptr, extents.data(), nullptr), path,
              what);
      checked(transfer(memory.get(), file.get(), row * row_elements), path, what);
    }
    if (after_block) after_block(count * row_bytes);
  }
}

}  // namespace

Guard::Guard() : lock_(library_lock()) {
  static thread_local bool quiet = false;
  if (quiet) return;
  if (!has_locking_property) ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
  H5dont_atexit();  // handles close everything; HDF5's own clean-up crashes on a file that a full disk left half
                    // closed
  H5open();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  quiet = true;
}

void fail(const std::string& path, const std::string& what, std::source_location where) {
  const std::string reason = innermost_description();
  std::string hint;
  if (reason.find(std::strerror(ENOSPC)) != std::string::npos) hint = "free some space, or write to another disk";
  if (reason.find("truncated file") != std::string::npos) {
    hint = "the file is an incomplete copy, or its writer was interrupted: copy or make it again";
  }
  throw Error(cat(path, ": ", what, ": ", reason), hint, where);
}

std::string type_name(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return cat(H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "i", bits);
    case H5T_FLOAT:
      return cat("f", bits);
    case H5T_STRING:
      return "string";
    default:
      return "another type";
  }
}

std::recursive_mutex& library_lock() {
  static auto* mutex = new std::recursive_mutex;  // never destroyed: handles may outlive static objects
  return *mutex;
}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Handle::~Handle() {
  if (id_ < 0) return;
  const Guard guard;
  if (close_(id_) < 0) H5Eclear2(H5E_DEFAULT);
}

File File::create(const std::string& path) {
  const Guard guard;
  if (std::filesystem::exists(std::filesystem::symlink_status(path))) {
    throw Error(cat(path, ": exists already"), "remove it, or choose another name");
  }
  const Handle access = file_access(path);
  checked(H5Pset_alignment(access.get(), 4096, 4096), path, "cannot set the alignment");
  // The format of HDF5 1.8 has a checksum in each piece of metadata, so that the library finds damage. In older formats
  // a flipped bit can make it read through a null pointer.
  checked(H5Pset_libver_bounds(access.get(), oldest_format, H5F_LIBVER_LATEST), path, "cannot set the file's format");
  const Handle creation(checked(H5Pcreate(H5P_FILE_CREATE), path, "cannot set file properties"), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // the same content gives the same bytes
  File file;
  file.path_ = path;
  file.handle_ = {checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), path, "cannot create"),
                  close_file};
  return file;
}

File File::open(const std::string& path) {
  const Guard guard;
  struct stat status {};
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  const int stated = ::fstat(descriptor, &status);
  ::close(descriptor);
  if (stated != 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) throw Error(cat(path, ": is a directory, not an HDF5 file"));
  if (status.st_size == 0) throw Error(cat(path, ": is empty (0 bytes), not an HDF5 file"));
  const Handle access = file_access(path);
  File file;
  file.path_ = path;
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  if (id < 0) {
    const htri_t is_hdf5 = H5Fis_hdf5(path.c_str());
    if (is_hdf5 == 0) throw Error(cat(path, ": is not an HDF5 file"));
    H5Eclear2(H5E_DEFAULT);
    H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());  // brings back the message, which H5Fis_hdf5 has cleared
    h5::fail(path, "cannot open as HDF5");
  }
  file.handle_ = {id, close_file};
  return file;
}

bool File::has(const std::string& object) const {
  const Guard guard;
  if (object.empty() || object == "/") return true;
  // H5Lexists fails if a parent group is missing, so each parent is looked up first.
  for (std::size_t end = 0; end != std::string::npos;) {
    end = object.find('/', end + 1);
    const htri_t found = H5Lexists(id(), object.substr(0, end).c_str(), H5P_DEFAULT);
    if (found <= 0) {
      H5Eclear2(H5E_DEFAULT);
      return false;
    }
  }
  return true;
}

std::vector<std::string> File::list(const std::string& group) const {
  const Guard guard;
  const std::string what = cat("cannot list group '", group, "'");
  const Handle handle(checked(H5Gopen2(id(), group.c_str(), H5P_DEFAULT), path_, what), H5Gclose);
  H5G_info_t info{};
  checked(H5Gget_info(handle.get(), &info), path_, what);
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto member = [&](char* text, std::size_t size) {
      return checked(H5Lget_name_by_idx(handle.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, text, size, H5P_DEFAULT),
                     path_, what);
    };
    std::string name(static_cast<std::size_t>(member(nullptr, 0)), '\0');
    member(name.data(), name.size() + 1);
    names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

void File::make_group(const std::string& group) {
  const Guard guard;
  if (has(group)) return;
  if (const std::size_t slash = group.rfind('/'); slash != std::string::npos && slash > 0)
    make_group(group.substr(0, slash));
  const Handle creation(checked(H5Pcreate(H5P_GROUP_CREATE), path_, "cannot set group properties"), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  const Handle made(checked(H5Gcreate2(id(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), path_,
                            cat("cannot make group '", group, "'")),
                    H5Gclose);
}

template <class T>
void File::write(const std::string& dataset, std::span<const T> values, const Shape& shape,
                 const AfterBlock& after_block) {
  const std::string what = cat("cannot write data set '", dataset, "'");
  if (elements(shape) != static_cast<std::int64_t>(values.size())) {
    throw Error(
        cat(path_, ": data set '", dataset, "': shape has ", elements(shape), " elements, given ", values.size()));
  }
  Handle handle;
  hid_t type = -1;
  {
    const Guard guard;
    type = memory_type<T>();  // little-endian on every machine this runs on
    const std::vector<hsize_t> extents(shape.begin(), shape.end());
    const Handle space(
        checked(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), path_, what), H5Sclose);
    if (const std::size_t slash = dataset.rfind('/'); slash != std::string::npos && slash > 0)
      make_group(dataset.substr(0, slash));
    const Handle creation(checked(H5Pcreate(H5P_DATASET_CREATE), path_, what), H5Pclose);
    H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
    H5Pset_obj_track_times(creation.get(), false);  // the same conversion gives the same bytes
    handle = {checked(H5Dcreate2(id(), dataset.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                      path_, what),
              H5Dclose};
  }
  in_blocks(path_, what, shape, sizeof(T), after_block, [&](hid_t memory, hid_t file, std::int64_t first) {
    return H5Dwrite(handle.get(), type, memory, file, H5P_DEFAULT, values.data() + first);
  });
  const Guard guard;
  checked(H5Dflush(handle.get()), path_, what);
}

template <class T>
std::vector<T> File::read(const std::string& dataset, const AfterBlock& after_block) const {
  Handle handle;
  Shape shape;
  {
    const Guard guard;
    handle = open_dataset(*this, dataset);
    const Handle stored(checked(H5Dget_type(handle.get()), path_, cat("cannot read the type of '", dataset, "'")),
                        H5Tclose);
    if (const std::string wanted = type_name(memory_type<T>()); type_name(stored.get()) != wanted) {
      throw Error(cat(path_, ": data set '", dataset, "' has the wrong type: expected ", wanted, ", found ",
                      type_name(stored.get())));
    }
    shape = shape_of(*this, dataset, handle.get());
  }
  std::vector<T> values(static_cast<std::size_t>(elements(shape)));
  in_blocks(path_, cat("cannot read data set '", dataset, "'"), shape, sizeof(T), after_block,
            [&](hid_t memory, hid_t file, std::int64_t first) {
              return H5Dread(handle.get(), memory_type<T>(), memory, file, H5P_DEFAULT, values.data() + first);
            });
  return values;
}

Shape File::shape(const std::string& dataset) const {
  const Guard guard;
  return shape_of(*this, dataset, open_dataset(*this, dataset).get());
}

std::string File::type(const std::string& dataset) const {
  const Guard guard;
  const Handle handle = open_dataset(*this, dataset);
  const Handle stored(checked(H5Dget_type(handle.get()), path_, cat("cannot read the type of '", dataset, "'")),
                      H5Tclose);
  return type_name(stored.get());
}

void File::fail(const std::string& what, std::source_location where) const {
  const Guard guard;
  h5::fail(path_, what, where);
}

void File::flush() {
  const Guard guard;
  checked(H5Fflush(id(), H5F_SCOPE_LOCAL), path_, "cannot write");
  void* descriptor = nullptr;
  checked(H5Fget_vfd_handle(id(), H5P_DEFAULT, &descriptor), path_, "cannot find the file descriptor");
  if (::fsync(*static_cast<int*>(descriptor)) != 0) {
    const int reason = errno;
    throw Error(cat(path_, ": cannot sync: ", std::strerror(reason)), advice_for_writing(reason));
  }
}

void File::close() {
  const Guard guard;
  if (id() < 0) return;
  const hid_t id_of_file = id();
  handle_.release();
  checked(close_file(id_of_file), path_, "cannot write");
}

template void File::write(const std::string&, std::span<const std::uint8_t>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const std::int32_t>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const std::uint32_t>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const std::int64_t>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const std::uint64_t>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const float>, const Shape&, const AfterBlock&);
template void File::write(const std::string&, std::span<const double>, const Shape&, const AfterBlock&);
template std::vector<std::uint8_t> File::read(const std::string&, const AfterBlock&) const;
template std::vector<std::int32_t> File::read(const std::string&, const AfterBlock&) const;
template std::vector<std::uint32_t> File::read(const std::string&, const AfterBlock&) const;
template std::vector<std::int64_t> File::read(const std::string&, const AfterBlock&) const;
template std::vector<std::uint64_t> File::read(const std::string&, const AfterBlock&) const;
template std::vector<float> File::read(const std::string&, const AfterBlock&) const;
template std::vector<double> File::read(const std::string&, const AfterBlock&) const;

}  // namespace ringtrain::h5
