// A wrapper of HDF5 with RAII and one lock for the process, because many machines have an HDF5 that was built without
// thread safety. Every function takes the lock itself. A function that fails throws Error with the file's name and
// HDF5's own first message. HDF5 prints no errors itself.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringtrain::h5 {

// Takes the lock of the process, and switches off HDF5's printing of errors. A thread-safe HDF5 has such a switch for
// each thread, so every thread that calls HDF5 itself must hold a Guard.
class Guard {
 public:
  Guard();

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// Owns an hid_t, and closes it with the given function under the lock. It can be moved, but not copied.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept : id_(other.id_), close_(other.close_) { other.id_ = -1; }
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  hid_t get() const { return id_; }
  hid_t release() { return std::exchange(id_, -1); }  // the caller closes it

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

using Shape = std::vector<std::int64_t>;
// Called after each block of rows (16 MiB, or one row) with the number of bytes. The lock is not held during the
// call.
using AfterBlock = std::function<void(std::int64_t bytes)>;

// An HDF5 file. T is one of: std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, float, double.
class File {
 public:
  // Throws Error if the file exists. Its data sets are contiguous. Those of 4096 bytes or more begin at multiples of
  // 4096 bytes.
  static File create(const std::string& path);
  static File open(const std::string& path);  // read-only, file locking off

  const std::string& path() const { return path_; }
  bool has(const std::string& object) const;
  std::vector<std::string> list(const std::string& group) const;  // names of the members, sorted
  void make_group(const std::string& group);

  template <class T>
  void write(const std::string& dataset, std::span<const T> values, const Shape& shape,
             const AfterBlock& after_block = {});
  template <class T>
  std::vector<T> read(const std::string& dataset,
                      const AfterBlock& after_block = {}) const;  // the whole data set; its type must
                                                                  // have the class and size of T, and all values
                                                                  // must be stored
  Shape shape(const std::string& dataset) const;
  // Returns "is a link to ..." for the first link on the way to the object that leads nowhere. "": there is none.
  std::string broken_link(const std::string& object) const;
  // Throws Error that names a link which leads nowhere. External files are found in the working directory, as HDF5
  // does, or in the folder of the HDF5 file. Open data sets only with this function.
  Handle open_dataset(const std::string& dataset) const;
  std::string type(const std::string& dataset) const;  // "u8", "i32", "u32", "i64", "u64", "f32", "f64", "string", ...
  // Makes a data set with its place in the file but without values. `failure` begins the message of an error.
  Handle make_array(const std::string& dataset, hid_t type, const Shape& shape, const char* failure = "cannot make");
  std::vector<std::string> read_strings(const std::string& dataset) const;  // of a data set of strings; all of them

  // The object "/" is the root group.
  void write_attribute(const std::string& object, const std::string& name, const std::string& value);
  void write_attribute(const std::string& object, const std::string& name, const std::vector<std::string>& value);
  void write_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  bool has_attribute(const std::string& object, const std::string& name) const;
  std::string read_string(const std::string& object, const std::string& name) const;
  std::vector<std::string> read_strings(const std::string& object, const std::string& name) const;
  std::int64_t read_integer(const std::string& object, const std::string& name) const;
  double read_real(const std::string& object, const std::string& name) const;
  std::vector<double> read_reals(const std::string& object, const std::string& name) const;
  void write_integers(const std::string& object, const std::string& name, const std::vector<std::int64_t>& value);
  std::vector<std::int64_t> read_integers(const std::string& object, const std::string& name) const;

  hid_t id() const { return handle_.get(); }  // for calls of HDF5 that this class lacks; hold a Guard
  // Throws Error with `what` and HDF5's reason, for callers of id().
  [[noreturn]] void fail(const std::string& what, std::source_location where = std::source_location::current()) const;
  void flush();  // writes to the operating system and to the disk (fsync)
  void close();  // throws errors, unlike the destructor

 private:
  Handle handle_;
  std::string path_;
};

// Finds the values of a data set that are not there (hdf5_storage.cpp). HDF5 reads them as zeros, without an error:
// chunks that were never written, parts of virtual data sets whose file is missing, and the end of external files that
// are too short.

// Rows [first, end) of a data set, counted along one axis of its shape. The default is all rows.
struct Rows {
  std::int64_t first = 0, end = std::numeric_limits<std::int64_t>::max();
  int axis = 0;
};

// Rows of an open data set for H5Dread() and H5Dwrite(), and a place in memory for them. Both have the same number of
// dimensions. With others, HDF5 would copy single elements.
struct RowSpaces {
  Handle file, memory;
};
RowSpaces select_rows(hid_t dataset, const Shape& shape, const Rows& rows);

// Throws Error if a value of these rows is not stored, or if it was stored with a filter that is not installed here.
// Follows links, virtual data sets and external files. If the file's writer has set a fill value, it may stand for
// parts of a row that were never written, but not for a whole row. Returns the number of rows with such parts.
std::int64_t expect_stored(const File& file, const std::string& dataset, const Rows& rows = {});

// Throws Error if the data set claims to hold more bytes than its storage can, which damaged files do. The data set
// must be stored. Nothing as large as the claim may be allocated before.
void expect_plausible_size(const File& file, const std::string& dataset);

std::string name_of_file(hid_t file);  // the path of an open file. "": it has none

}  // namespace ringtrain::h5
