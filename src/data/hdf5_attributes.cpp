// Implements the attributes of hdf5.h: strings, lists of strings, integers and real numbers. Their types are checked.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "data/hdf5_internal.h"

namespace ringtrain::h5 {
namespace {

Handle open_object(const File& file, const std::string& object) {
  if (object != "/" && !file.has(object)) throw Error(cat(file.path(), ": '", object, "' is missing"));
  if (Handle found(H5Oopen(file.id(), object.c_str(), H5P_DEFAULT), H5Oclose); found.get() >= 0) return found;
  H5Eclear2(H5E_DEFAULT);
  return file.open_dataset(object);  // H5Oopen() fails while a data set with external files is open in its other way
}

void write_attribute_values(const File& file, const std::string& object, const std::string& name, hid_t stored_type,
                            hid_t values_type, std::int64_t count, const void* values) {
  const Handle owner = open_object(file, object);
  const std::string what = cat("cannot write attribute '", name, "' of '", object, "'");
  const auto extent = static_cast<hsize_t>(count);
  const Handle space(
      checked(count < 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr), file.path(), what), H5Sclose);
  if (checked(H5Aexists(owner.get(), name.c_str()), file.path(), what) > 0) {
    checked(H5Adelete(owner.get(), name.c_str()), file.path(), what);
  }
  const Handle attribute(
      checked(H5Acreate2(owner.get(), name.c_str(), stored_type, space.get(), H5P_DEFAULT, H5P_DEFAULT), file.path(),
              what),
      H5Aclose);
  if (count != 0) checked(H5Awrite(attribute.get(), values_type, values), file.path(), what);
}

struct OpenAttribute {
  Handle owner, attribute, type;
  std::int64_t count = 0;
  std::string what;  // for messages
};

OpenAttribute open_attribute(const File& file, const std::string& object, const std::string& name) {
  OpenAttribute result;
  result.what = cat("attribute '", name, "' of '", object, "'");
  result.owner = open_object(file, object);
  if (checked(H5Aexists(result.owner.get(), name.c_str()), file.path(), result.what) == 0) {
    throw Error(cat(file.path(), ": ", result.what, " is missing"));
  }
  result.attribute = {
      checked(H5Aopen(result.owner.get(), name.c_str(), H5P_DEFAULT), file.path(), cat("cannot open ", result.what)),
      H5Aclose};
  result.type = {checked(H5Aget_type(result.attribute.get()), file.path(), result.what), H5Tclose};
  const Handle space(checked(H5Aget_space(result.attribute.get()), file.path(), result.what), H5Sclose);
  result.count = checked(H5Sget_simple_extent_npoints(space.get()), file.path(), result.what);
  // HDF5 does not check the sizes in a damaged file.
  hsize_t file_bytes = 0;
  checked(H5Fget_filesize(file.id(), &file_bytes), file.path(), result.what);
  const std::size_t size = H5Tget_size(result.type.get());
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(size, result.count, &bytes) || bytes > file_bytes)
    throw Error(cat(file.path(), ": ", result.what, " claims to hold ", result.count, " values of ", size,
                    " bytes, more than the whole file"));
  return result;
}

void expect(bool good, const File& file, const OpenAttribute& attribute, const std::string& wanted) {
  if (good) return;
  throw Error(cat(file.path(), ": ", attribute.what, " has the wrong type: expected ", wanted, ", found ",
                  type_name(attribute.type.get()), " x ", attribute.count));
}

std::vector<std::string> attribute_strings(const File& file, const OpenAttribute& attribute) {
  const hid_t stored = attribute.type.get();
  return strings_of(stored, static_cast<std::size_t>(attribute.count), [&](void* values) {
    checked(H5Aread(attribute.attribute.get(), stored, values), file.path(), cat("cannot read ", attribute.what));
  });
}

Handle string_type(const File& file, std::size_t length) {
  Handle type(checked(H5Tcopy(H5T_C_S1), file.path(), "cannot make a string type"), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(length, 1));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

std::vector<std::string> strings_of(hid_t type, std::size_t count, const std::function<void(void* values)>& read) {
  std::vector<std::string> result;
  if (count == 0) return result;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> pointers(count, nullptr);
    read(pointers.data());
    for (char* pointer : pointers) {
      result.emplace_back(pointer == nullptr ? "" : pointer);
      H5free_memory(pointer);
    }
    return result;
  }
  const std::size_t length = H5Tget_size(type);
  std::vector<char> bytes(count * length);
  read(bytes.data());
  for (std::size_t i = 0; i < count; ++i) {
    const char* begin = bytes.data() + i * length;
    result.emplace_back(begin, ::strnlen(begin, length));
  }
  return result;
}

void File::write_attribute(const std::string& object, const std::string& name, const std::string& value) {
  const Guard guard;
  const Handle type = string_type(*this, value.size());
  const std::string at_least_one_byte = value.empty() ? std::string(1, '\0') : value;
  write_attribute_values(*this, object, name, type.get(), type.get(), -1, at_least_one_byte.data());
}

void File::write_attribute(const std::string& object, const std::string& name, const std::vector<std::string>& value) {
  const Guard guard;
  std::size_t length = 1;
  for (const std::string& text : value) length = std::max(length, text.size());
  const Handle type = string_type(*this, length);
  std::string padded;
  for (const std::string& text : value) padded += text + std::string(length - text.size(), '\0');
  write_attribute_values(*this, object, name, type.get(), type.get(), static_cast<std::int64_t>(value.size()),
                         padded.data());
}

void File::write_attribute(const std::string& object, const std::string& name, std::int64_t value) {
  const Guard guard;
  write_attribute_values(*this, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, -1, &value);
}

void File::write_attribute(const std::string& object, const std::string& name, double value) {
  const Guard guard;
  write_attribute_values(*this, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, -1, &value);
}

void File::write_integers(const std::string& object, const std::string& name, const std::vector<std::int64_t>& value) {
  const Guard guard;
  write_attribute_values(*this, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, static_cast<std::int64_t>(value.size()),
                         value.data());
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  const Guard guard;
  if (!has(object)) return false;
  const htri_t found = H5Aexists(open_object(*this, object).get(), name.c_str());
  return checked(found, path_, cat("the attributes of '", object, "' are damaged")) > 0;
}

std::string File::read_string(const std::string& object, const std::string& name) const {
  const Guard guard;
  const OpenAttribute attribute = open_attribute(*this, object, name);
  expect(H5Tget_class(attribute.type.get()) == H5T_STRING && attribute.count == 1, *this, attribute, "one string");
  return attribute_strings(*this, attribute).front();
}

std::vector<std::string> File::read_strings(const std::string& object, const std::string& name) const {
  const Guard guard;
  const OpenAttribute attribute = open_attribute(*this, object, name);
  expect(H5Tget_class(attribute.type.get()) == H5T_STRING, *this, attribute, "strings");
  return attribute_strings(*this, attribute);
}

std::vector<std::int64_t> File::read_integers(const std::string& object, const std::string& name) const {
  const Guard guard;
  const OpenAttribute attribute = open_attribute(*this, object, name);
  const H5T_class_t kind = H5Tget_class(attribute.type.get());
  const bool is_bool = kind == H5T_ENUM && H5Tget_size(attribute.type.get()) == 1;  // h5py's True and False
  expect(kind == H5T_INTEGER || is_bool, *this, attribute, "integers");
  std::vector<std::int64_t> values(static_cast<std::size_t>(attribute.count));
  if (is_bool) {
    std::vector<std::int8_t> bytes(values.size());
    checked(H5Aread(attribute.attribute.get(), attribute.type.get(), bytes.data()), path_,
            cat("cannot read ", attribute.what));
    std::copy(bytes.begin(), bytes.end(), values.begin());
  } else if (!values.empty()) {
    // An odd type in a damaged file would crash the library's conversion.
    const std::size_t size = H5Tget_size(attribute.type.get());
    expect(H5Tget_offset(attribute.type.get()) == 0 && H5Tget_precision(attribute.type.get()) == 8 * size && size <= 8,
           *this, attribute, "integers of whole bytes");
    checked(H5Aread(attribute.attribute.get(), H5T_NATIVE_INT64, values.data()), path_,
            cat("cannot read ", attribute.what));
  }
  return values;
}

std::int64_t File::read_integer(const std::string& object, const std::string& name) const {
  const Guard guard;
  const std::vector<std::int64_t> values = read_integers(object, name);
  if (values.size() != 1) {
    throw Error(cat(path_, ": attribute '", name, "' of '", object, "' has ", values.size(), " values, expected one"));
  }
  return values.front();
}

double File::read_real(const std::string& object, const std::string& name) const {
  const Guard guard;
  const OpenAttribute attribute = open_attribute(*this, object, name);
  const H5T_class_t kind = H5Tget_class(attribute.type.get());
  expect((kind == H5T_FLOAT || kind == H5T_INTEGER) && attribute.count == 1, *this, attribute, "one number");
  double value = 0;
  checked(H5Aread(attribute.attribute.get(), H5T_NATIVE_DOUBLE, &value), path_, cat("cannot read ", attribute.what));
  return value;
}

std::vector<double> File::read_reals(const std::string& object, const std::string& name) const {
  const Guard guard;
  const OpenAttribute attribute = open_attribute(*this, object, name);
  expect(H5Tget_class(attribute.type.get()) == H5T_FLOAT, *this, attribute, "floating-point numbers");
  std::vector<double> values(static_cast<std::size_t>(attribute.count));
  if (!values.empty())
    checked(H5Aread(attribute.attribute.get(), H5T_NATIVE_DOUBLE, values.data()), path_,
            cat("cannot read ", attribute.what));
  return values;
}

}  // namespace ringtrain::h5
