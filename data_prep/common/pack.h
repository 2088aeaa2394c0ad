// Packs values into a string of bytes and unpacks them, for messages between the ranks of one job.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ringtrain {

class Packer {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const std::string& text) {
    add(std::uint64_t{text.size()});
    bytes_ += text;
  }
  void add(const std::vector<std::string>& texts) {
    add(std::uint64_t{texts.size()});
    for (const std::string& text : texts) add(text);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <class T>
  T value() {
    T result;
    std::memcpy(&result, bytes_.data(), sizeof result);
    bytes_.remove_prefix(sizeof result);
    return result;
  }
  std::string text() {
    const auto length = value<std::uint64_t>();
    std::string result(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
    return result;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> result(value<std::uint64_t>());
    for (std::string& each : result) each = text();
    return result;
  }

 private:
  std::string_view bytes_;
};

}  // namespace ringtrain
