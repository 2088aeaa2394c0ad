// Writes the fields of structs into a string of bytes and reads them back, for messages between the ranks of one job. A
// function template lists the fields for both directions, so that writing and reading always agree:
//
//   template <class Archive, class Item>
//   void transfer(Archive& archive, Item& item) { archive(item.name, item.size); }
#pragma once

#include <cstdint>
#include <cstring>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ringtrain {

// The bytes of such a value mean the same to another process. A pointer, span or view would be an address.
template <class T>
concept HeldByValue = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::ranges::range<T>;

class FieldWriter {
 public:
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (write(fields), ...);
  }
  // Calls action(value) for each value, after their number was written.
  template <class T, class Action>
  void each(const std::vector<T>& values, const Action& action) {
    write(std::uint64_t{values.size()});
    for (const T& value : values) action(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <class T>
  requires HeldByValue<T>
  void write(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void write(const std::string& text) {
    write(std::uint64_t{text.size()});
    bytes_ += text;
  }
  template <class T>
  void write(const std::vector<T>& values) {
    each(values, [this](const T& value) { write(value); });
  }

  std::string bytes_;
};

class FieldReader {
 public:
  // `what` begins the error that is thrown if the bytes end too early.
  FieldReader(std::string_view bytes, std::string what) : rest_(bytes), what_(std::move(what)) {}
  template <class... Fields>
  void operator()(Fields&... fields) {
    (read(fields), ...);
  }
  // Gives `values` as many values as were written, and calls action(value) for each.
  template <class T, class Action>
  void each(std::vector<T>& values, const Action& action) {
    values.resize(length());
    for (T& value : values) action(value);
  }
  bool at_end() const { return rest_.empty(); }

 private:
  template <class T>
  requires HeldByValue<T>
  void read(T& value) { std::memcpy(&value, take(sizeof value).data(), sizeof value); }
  void read(std::string& text) { text = take(length()); }
  template <class T>
  void read(std::vector<T>& values) {
    each(values, [this](T& value) { read(value); });
  }
  std::size_t length() {
    std::uint64_t size = 0;
    read(size);
    if (size > rest_.size()) throw Error(what_ + " was received incomplete");
    return size;
  }
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) throw Error(what_ + " was received incomplete");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  const std::string what_;
};

}  // namespace ringtrain
