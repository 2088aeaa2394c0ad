// Reads input files: parts of a file from any thread, whole files, and files with or without gzip from their beginning
// to their end. The errors name the file.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <memory>
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

std::string read_text_file(const std::string& path);

// Reads a file from its beginning to its end, with or without gzip (RFC 1952). zlib's gzread() does so, too, but says
// nothing of bytes that follow the last member.
//
// A file that begins with gzip's first byte is uncompressed. Its members, one or more, are one stream. Zero bytes may
// fill up the file after the last member, as on tapes. Any other file is read as it is.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path);  // throws Error if it cannot be opened
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Returns at most `most` bytes, and fewer only at the end. Throws Error if the file cannot be read, if gzip's data
  // are cut off or damaged, or if something else follows them.
  std::vector<std::uint8_t> read(std::size_t most);

 private:
  std::size_t read_stored(std::span<std::uint8_t> out);
  std::size_t uncompress(std::span<std::uint8_t> out);
  void fill();
  bool begin_next_member();

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::uint8_t> input_;
  std::uint64_t bytes_read_ = 0;
  z_stream stream_ = {};
  bool compressed_ = false, within_member_ = true;
};

}  // namespace ringtrain
