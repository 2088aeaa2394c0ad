#include "data_prep/images/array_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/table.h"
#include "data_prep/images/array_origin.h"
#include "data_prep/images/array_shape.h"

namespace ringtrain {
namespace {

constexpr std::size_t most_named = 20;
constexpr int most_looked_at = 2000, deepest_group = 6;  // groups may hold themselves

bool is_group(const h5::File& file, const std::string& object) {
  const h5::Handle handle(H5Oopen(file.id(), object.c_str(), H5P_DEFAULT), H5Oclose);
  return handle.get() >= 0 && H5Iget_type(handle.get()) == H5I_GROUP;
}

// Adds "group/x u8 (60, 8, 6, 3)" for each data set in this group and below it.
void add_datasets(const h5::File& file, const std::string& group, int depth, int& looked_at,
                  std::vector<std::string>& found) {
  for (const std::string& member : file.list(group)) {
    if (member.starts_with("#")) continue;  // what MATLAB keeps for itself
    if (++looked_at > most_looked_at) return;
    const std::string path = group == "/" ? member : cat(group, "/", member);
    if (is_group(file, path)) {
      if (depth < deepest_group) add_datasets(file, path, depth + 1, looked_at, found);
      continue;
    }
    try {
      found.push_back(cat(path, " ", file.type(path), " ", text_of(file.shape(path))));
    } catch (const Error&) {
      found.push_back(path);  // a link that leads nowhere, or a damaged data set
    }
  }
}

std::string datasets_of(const h5::File& file) {
  std::vector<std::string> found;
  int looked_at = 0;
  add_datasets(file, "/", 1, looked_at, found);
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
    throw Error(cat(found, "a cell array of MATLAB"), in_matlab(are_labels ? cat(name, " = grp2idx(", name, ") - 1")
                                                                           : cat(name, " = cat(4, ", name, "{:})")));
  if (file.has_attribute(dataset, "MATLAB_object_decode"))
    throw Error(cat(found, "an object of MATLAB, such as a categorical or a table (", kind, ")"),
                !are_labels ? "save its pictures as one array of uint8, H x W x C x N"
                : kind == "string"
                    ? in_matlab(cat("[~, ~, ", name, "] = unique(", name, "); ", name, " = ", name, " - 1"))
                    : in_matlab(cat(name, " = double(", name, ") - 1")));
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
    throw Error(cat(path, ": '", dataset, "' is not a data set"), datasets_of(file));
  }
  file.open_dataset(dataset);  // explains what a link lacks
  expect_numbers_of_matlab(file, dataset, use);
  return file;
}

}  // namespace ringtrain
