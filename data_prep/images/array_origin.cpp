#include "data_prep/images/array_origin.h"

#include <fstream>

#include "base/error.h"

namespace ringtrain {
namespace {

struct Mark {
  const char* text;
  const char* program;
};

// What these programs write into the first bytes of their files, before HDF5's own.
constexpr Mark user_blocks[] = {{"MATLAB 7.3 MAT-file", "MATLAB"},
                                {"HDF5-based Julia Data Format", "Julia"},  // JLD2
                                {"Julia data file (HDF5)", "Julia"}};       // JLD

// Returns the first bytes of the file that holds the data set, which a link may have led to.
std::string first_bytes(const h5::File& file, const std::string& dataset) {
  const h5::Handle handle = file.open_dataset(dataset), owner(H5Iget_file_id(handle.get()), H5Fclose);
  const auto name = [&](char* text, std::size_t size) { return H5Fget_name(owner.get(), text, size); };
  const ssize_t length = name(nullptr, 0);
  if (length <= 0) return "";
  std::string path(static_cast<std::size_t>(length), '\0');
  name(path.data(), path.size() + 1);
  std::string bytes(64, '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

bool is_below_octaves_group(const h5::File& file, const std::string& dataset) {
  for (std::size_t slash = dataset.rfind('/'); slash != std::string::npos && slash > 0;
       slash = dataset.rfind('/', slash - 1))
    if (file.has_attribute(dataset.substr(0, slash), "OCTAVE_NEW_FORMAT")) return true;
  return false;
}

}  // namespace

ArrayOrigin origin_of(const h5::File& file, const std::string& dataset) {
  const h5::Guard guard;
  if (file.has_attribute(dataset, "MATLAB_class")) return {"MATLAB", file.read_string(dataset, "MATLAB_class")};
  if (file.has_attribute(dataset, "rhdf5-NA.OK")) return {"R", ""};
  if (is_below_octaves_group(file, dataset)) return {"Octave", ""};
  const std::string bytes = first_bytes(file, dataset);
  for (const Mark& mark : user_blocks)
    if (bytes.starts_with(mark.text)) return {mark.program, ""};
  return {};
}

std::string in_matlab(const std::string& statement) {
  return cat("in MATLAB: ", statement, "; then save it again with -v7.3");
}

std::string variable_name(const std::string& dataset) {
  return dataset.substr(dataset.rfind('/') + 1);
}

}  // namespace ringtrain
