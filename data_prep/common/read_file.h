// Reads whole files and parts of files. The errors name the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

// An open file; parts of it can be read from any thread.
class InputFile {
 public:
  explicit InputFile(const std::string& path);  // throws Error if it cannot be opened or is not a regular file
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::uint64_t bytes() const { return bytes_; }
  // Throws Error when the file ends before `out` is full.
  void read(std::uint64_t offset, std::span<std::uint8_t> out) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

std::vector<std::uint8_t> read_file(const std::string& path);
std::string read_text_file(const std::string& path);

}  // namespace ringtrain
