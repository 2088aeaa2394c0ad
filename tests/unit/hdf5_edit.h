// Changes finished HDF5 files, which the program itself never does. Tests damage files with it and read the error
// messages.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "data/hdf5.h"

namespace ringtrain {

inline void edit(const std::string& path, const std::function<void(hid_t)>& change) {
  const h5::Guard lock;
  h5::File::open(path);  // turns off HDF5's own messages
  const h5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  ASSERT_GE(file.get(), 0);
  change(file.get());
}

inline void drop_attribute(hid_t file, const char* object, const char* name) {
  ASSERT_GE(H5Adelete_by_name(file, object, name, H5P_DEFAULT), 0) << name;
}

inline void set_attribute(hid_t file, const char* object, const char* name, std::int64_t value, std::size_t count = 1) {
  drop_attribute(file, object, name);
  const hsize_t extent = count;
  const h5::Handle space(count == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr), H5Sclose);
  const h5::Handle attribute(
      H5Acreate_by_name(file, object, name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  const std::vector<std::int64_t> values(count, value);
  ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_INT64, values.data()), 0);
}

inline void set_attribute(hid_t file, const char* name, const std::string& value) {
  drop_attribute(file, "/", name);
  const h5::Handle space(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), value.size());
  const h5::Handle attribute(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  ASSERT_GE(H5Awrite(attribute.get(), type.get(), value.data()), 0);
}

inline void replace_dataset(hid_t file, const char* name, hid_t type, std::vector<hsize_t> shape) {
  ASSERT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0);
  const h5::Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const h5::Handle made(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
  ASSERT_GE(made.get(), 0);
}

inline void change_byte(const std::string& path, std::uint64_t offset, int value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(value));
}

}  // namespace ringtrain
