// Implements the data sets of hdf5.h: opening, shapes, types, reading and writing.
#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "base/error.h"
#include "data/hdf5.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

namespace fs = std::filesystem;

template <class T>
hid_t memory_type() {
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
  if constexpr (sizeof(T) == 8) return std::is_signed_v<T> ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64;
  if constexpr (sizeof(T) == 4) return std::is_signed_v<T> ? H5T_NATIVE_INT32 : H5T_NATIVE_UINT32;
  static_assert(sizeof(T) > 1 || std::is_same_v<T, std::uint8_t>);
  return H5T_NATIVE_UINT8;
}

constexpr std::int64_t block_bytes = 16 << 20;

std::int64_t elements(const Shape& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;  // even if other extents are invalid
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

// Returns whether the data set has external files, and HDF5 looks for the first one where it is not, although it lies
// in the folder of the HDF5 file. HDF5 looks in the working directory.
bool has_external_files_beside(hid_t dataset) {
  const Handle creation(H5Dget_create_plist(dataset), H5Pclose);
  if (H5Pget_external_count(creation.get()) <= 0) return false;
  const std::string path = external_file(dataset, creation.get(), 0).path;
  const Handle file(H5Iget_file_id(dataset), H5Fclose);
  return !fs::exists(path) && fs::exists(fs::path(name_of_file(file.get())).parent_path() / path);
}

// Returns what is wrong with the target of an external link which leads nowhere. HDF5 looks for the target's file in
// the folder of the link's file, and then in the working directory.
std::string lack_of_target(const File& file, const std::string& target, const std::string& object) {
  for (const fs::path& path : {fs::path(file.path()).parent_path() / target, fs::path(target)}) {
    try {
      const File other = File::open(path.string());
      return other.has(object) ? "which is a broken link, too" : cat("which has no '", object, "'");
    } catch (const Error&) {
    }
  }
  return "which cannot be opened";
}

// Throws Error if the shape cannot be counted or is missing.
Shape shape_of(const File& file, const std::string& name, hid_t dataset) {
  const Handle space(checked(H5Dget_space(dataset), file.path(), cat("cannot read the shape of '", name, "'")),
                     H5Sclose);
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL)
    throw Error(cat(file.path(), ": data set '", name, "' was declared without a shape and without values"));
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
  if (!countable || (!empty && !fits))
    throw Error(cat(file.path(), ": data set '", name, "' claims to hold ", joined(extents, " x "),
                    " values: the file is damaged"));
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

std::string type_name(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return cat(H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "i", bits);
    case H5T_FLOAT:
      return cat("f", bits);
    case H5T_STRING:
      return "string";
    case H5T_ENUM:  // h5py stores True and False as the names of two numbers
      return H5Tget_nmembers(type) == 2 && H5Tget_member_index(type, "TRUE") >= 0 ? "bool" : "enum";
    case H5T_COMPOUND:
      return "records of several fields";
    case H5T_VLEN:
      return "values of variable length";
    case H5T_ARRAY:
      return "small arrays";
    case H5T_REFERENCE:
      return "references";  // MATLAB's cell arrays
    case H5T_OPAQUE:
      return "opaque bytes";
    default:
      return "another type";
  }
}

std::string name_of_file(hid_t file) {
  const auto name = [&](char* text, std::size_t size) { return H5Fget_name(file, text, size); };
  std::string text(static_cast<std::size_t>(std::max<ssize_t>(0, name(nullptr, 0))), '\0');
  name(text.data(), text.size() + 1);
  return text;
}

ExternalFile external_file(hid_t dataset, hid_t creation, int number) {
  constexpr std::size_t longest = 4096;
  char name[longest] = "", prefix[longest] = "";
  off_t offset = 0;
  hsize_t bytes = 0;
  if (H5Pget_external(creation, static_cast<unsigned>(number), longest, name, &offset, &bytes) < 0) return {};
  const Handle access(H5Dget_access_plist(dataset), H5Pclose);
  H5Pget_efile_prefix(access.get(), prefix, longest);
  return {(fs::path(prefix) / name).string(), static_cast<std::uint64_t>(offset), bytes};
}

std::string File::broken_link(const std::string& object) const {
  const Guard guard;
  for (std::size_t end = 0; end != std::string::npos;) {
    end = object.find('/', end + 1);
    const std::string part = object.substr(0, end);
    if (H5Lexists(id(), part.c_str(), H5P_DEFAULT) <= 0) break;
    if (H5Oexists_by_name(id(), part.c_str(), H5P_DEFAULT) > 0) continue;
    H5L_info_t link{};
    if (H5Lget_info(id(), part.c_str(), &link, H5P_DEFAULT) < 0 || link.type == H5L_TYPE_HARD) break;
    std::string value(link.u.val_size + 1, '\0');
    if (H5Lget_val(id(), part.c_str(), value.data(), value.size(), H5P_DEFAULT) < 0) break;
    const std::string name = part == object ? "" : cat("'", part, "' ");
    if (link.type == H5L_TYPE_SOFT) return cat(name, "is a link to '", value.c_str(), "', which is not there");
    const char *target = nullptr, *inside = nullptr;
    unsigned flags = 0;
    if (link.type != H5L_TYPE_EXTERNAL ||
        H5Lunpack_elink_val(value.data(), link.u.val_size, &flags, &target, &inside) < 0)
      break;
    return cat(name, "is a link to '", inside, "' in the file '", target, "', ", lack_of_target(*this, target, inside));
  }
  H5Eclear2(H5E_DEFAULT);
  return "";
}

Handle File::open_dataset(const std::string& name) const {
  const Guard guard;
  if (const std::string broken = broken_link(name); !broken.empty())
    throw Error(cat(path_, ": data set '", name, "' ", broken), "copy what the link names to that place");
  if (!has(name)) throw Error(cat(path_, ": data set '", name, "' is missing"));
  const auto open_with = [&](hid_t access) { return Handle(H5Dopen2(id(), name.c_str(), access), H5Dclose); };
  {
    Handle dataset = open_with(H5P_DEFAULT);
    if (dataset.get() >= 0 && !has_external_files_beside(dataset.get())) return dataset;
  }
  // HDF5 looks for external files in the folder of the HDF5 file, and not in the working directory, only if it is told
  // so. While a data set is open with one of both, opening it with the other one fails.
  const Handle beside(checked(H5Pcreate(H5P_DATASET_ACCESS), path_, "cannot set data set properties"), H5Pclose);
  checked(H5Pset_efile_prefix(beside.get(), "${ORIGIN}"), path_, "cannot set data set properties");
  if (Handle dataset = open_with(beside.get()); dataset.get() >= 0) return dataset;
  H5Eclear2(H5E_DEFAULT);
  return {checked(open_with(H5P_DEFAULT).release(), path_, cat("cannot open data set '", name, "'")), H5Dclose};
}

Handle File::make_array(const std::string& dataset, hid_t type, const Shape& shape, const char* failure) {
  const Guard guard;
  const std::string what = cat(failure, " data set '", dataset, "'");
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Handle space(checked(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), path_, what),
                     H5Sclose);
  if (const std::size_t slash = dataset.rfind('/'); slash != std::string::npos && slash > 0)
    make_group(dataset.substr(0, slash));
  const Handle creation(checked(H5Pcreate(H5P_DATASET_CREATE), path_, what), H5Pclose);
  H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.get(), false);  // the same conversion gives the same bytes
  return {checked(H5Dcreate2(id(), dataset.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), path_,
                  what),
          H5Dclose};
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
    handle = make_array(dataset, type, shape, "cannot write");
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
    handle = open_dataset(dataset);
    const Handle stored(checked(H5Dget_type(handle.get()), path_, cat("cannot read the type of '", dataset, "'")),
                        H5Tclose);
    if (const std::string wanted = type_name(memory_type<T>()); type_name(stored.get()) != wanted) {
      throw Error(cat(path_, ": data set '", dataset, "' has the wrong type: expected ", wanted, ", found ",
                      type_name(stored.get())));
    }
    shape = shape_of(*this, dataset, handle.get());
  }
  expect_stored(*this, dataset);
  expect_plausible_size(*this, dataset);
  std::vector<T> values(static_cast<std::size_t>(elements(shape)));
  in_blocks(path_, cat("cannot read data set '", dataset, "'"), shape, sizeof(T), after_block,
            [&](hid_t memory, hid_t file, std::int64_t first) {
              return H5Dread(handle.get(), memory_type<T>(), memory, file, H5P_DEFAULT, values.data() + first);
            });
  return values;
}

std::vector<std::string> File::read_strings(const std::string& dataset) const {
  const Guard guard;
  const std::int64_t count = elements(shape(dataset));
  if (count == 0) return {};
  expect_stored(*this, dataset);
  expect_plausible_size(*this, dataset);
  const Handle handle = open_dataset(dataset), type(H5Dget_type(handle.get()), H5Tclose);
  return strings_of(type.get(), static_cast<std::size_t>(count), [&](void* values) {
    checked(H5Dread(handle.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values), path_,
            cat("cannot read data set '", dataset, "'"));
  });
}

RowSpaces select_rows(hid_t dataset, const Shape& shape, const Rows& rows) {
  const Guard guard;
  std::vector<hsize_t> start(shape.size(), 0), size(shape.begin(), shape.end());
  start.at(static_cast<std::size_t>(rows.axis)) = static_cast<hsize_t>(rows.first);
  size.at(static_cast<std::size_t>(rows.axis)) = static_cast<hsize_t>(rows.end - rows.first);
  RowSpaces spaces{{H5Dget_space(dataset), H5Sclose},
                   {H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr), H5Sclose}};
  checked(H5Sselect_hyperslab(spaces.file.get(), H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr), "HDF5",
          "cannot select rows of a data set");
  return spaces;
}

Shape File::shape(const std::string& dataset) const {
  const Guard guard;
  return shape_of(*this, dataset, open_dataset(dataset).get());
}

std::string File::type(const std::string& dataset) const {
  const Guard guard;
  const Handle handle = open_dataset(dataset);
  const Handle stored(checked(H5Dget_type(handle.get()), path_, cat("cannot read the type of '", dataset, "'")),
                      H5Tclose);
  return type_name(stored.get());
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
