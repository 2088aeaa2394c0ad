// HDF5 behind RAII and one process-wide lock (many sites' libraries are not thread-safe). Every function takes the
// lock itself and throws Error with the file's name and HDF5's own first message. HDF5's automatic error printing is
// off.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ringtrain::h5 {

std::recursive_mutex& library_lock();

// Move-only owner of an hid_t; closes with the given function under the lock.
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
// Called after each block of rows of a data set (16 MiB, or one row), with its bytes. The lock is not held then.
using AfterBlock = std::function<void(std::int64_t bytes)>;

// T is one of: std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, float, double.
class File {
 public:
  static File create(const std::string& path);  // fails when it exists; data sets contiguous, aligned to 4096
  static File open(const std::string& path);    // read-only, file locking off

  const std::string& path() const { return path_; }
  bool has(const std::string& object) const;
  std::vector<std::string> list(const std::string& group) const;  // names of the members, sorted
  void make_group(const std::string& group);

  template <class T>
  void write(const std::string& dataset, std::span<const T> values, const Shape& shape,
             const AfterBlock& after_block = {});
  template <class T>
  std::vector<T> read(const std::string& dataset,
                      const AfterBlock& after_block = {}) const;  // the whole data set; the
                                                                  // stored type must be T's class and size
  Shape shape(const std::string& dataset) const;
  std::string type(const std::string& dataset) const;  // "u8", "i32", "u32", "i64", "u64", "f32", "f64", "string", ...

  // object "/" is the root group.
  void write_attribute(const std::string& object, const std::string& name, const std::string& value);
  void write_attribute(const std::string& object, const std::string& name, const std::vector<std::string>& value);
  void write_attribute(const std::string& object, const std::string& name, std::int64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  bool has_attribute(const std::string& object, const std::string& name) const;
  std::string read_string(const std::string& object, const std::string& name) const;
  std::vector<std::string> read_strings(const std::string& object, const std::string& name) const;
  std::int64_t read_integer(const std::string& object, const std::string& name) const;
  double read_real(const std::string& object, const std::string& name) const;
  void write_integers(const std::string& object, const std::string& name, const std::vector<std::int64_t>& value);
  std::vector<std::int64_t> read_integers(const std::string& object, const std::string& name) const;

  hid_t id() const { return handle_.get(); }  // for what these helpers do not cover; take library_lock() first
  // Throws Error with `what` and HDF5's reason, for the callers of id().
  [[noreturn]] void fail(const std::string& what, std::source_location where = std::source_location::current()) const;
  void flush();  // to the operating system and to the disk (fsync)
  void close();  // flushes errors out as exceptions, unlike the destructor

 private:
  Handle handle_;
  std::string path_;
};

}  // namespace ringtrain::h5
