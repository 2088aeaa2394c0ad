// Reads a file from its beginning to its end, with or without gzip (RFC 1952). zlib's gzread() does so, too, but says
// nothing of bytes that follow the last member.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ringtrain {

// A file that begins with gzip's two bytes is uncompressed. Its members, one or more, are one stream. Zero bytes may
// fill up the file after the last member, as on tapes. Any other file is read as it is.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path);  // throws Error if it cannot be opened or read
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // Returns at most `most` bytes, and fewer only at the end. Throws Error if the file cannot be read, if gzip's data
  // are cut off or damaged, or if something else follows them.
  std::vector<std::uint8_t> read(std::size_t most);

 private:
  void fill();
  bool at_member();
  bool begin_next_member();
  std::size_t copy_to(std::span<std::uint8_t> out);
  std::size_t uncompress_to(std::span<std::uint8_t> out);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<std::uint8_t> input_;  // bytes of the file; the last `avail_in` of them are still to be used
  std::uint64_t bytes_read_ = 0;
  z_stream stream_ = {};
  bool compressed_ = false;
  bool within_member_ = false;
};

}  // namespace ringtrain
