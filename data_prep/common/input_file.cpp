#include "data_prep/common/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace ringtrain {

// Without O_NONBLOCK, opening a named pipe would wait until a process writes to it.
InputFile::InputFile(const std::string& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  struct stat status {};
  const bool stated = ::fstat(descriptor_, &status) == 0;
  const int reason = errno;
  if (stated && S_ISREG(status.st_mode)) {
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  throw Error(cat(path, ": ",
                  !stated                   ? std::strerror(reason)
                  : S_ISDIR(status.st_mode) ? "is a folder, expected a file"
                                            : "is not a regular file"));
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(cat(path_, ": cannot read at byte ", offset, ": ", std::strerror(errno)));
    if (got == 0) throw Error(cat(path_, ": ends at byte ", offset, ", ", out.size(), " more were expected"));
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text_file(const std::string& path) {
  const InputFile file(path);
  std::string text(file.bytes(), '\0');
  file.read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

namespace {

constexpr std::size_t input_bytes = 1 << 18;
constexpr std::size_t most_output = 1 << 24;  // of memory that is taken at a time, because a header may lie about sizes
constexpr int first_byte = 0x1f, gzip_only = 16 + MAX_WBITS;

[[noreturn]] void throw_damaged(const std::string& path, const char* reason) {
  throw Error(cat(path, ": gzip's data are cut off or damaged (", reason, ")"), "copy or download it again");
}

}  // namespace

GzipFile::GzipFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb")), input_(input_bytes) {
  if (file_ == nullptr) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  compressed_ = std::ungetc(std::getc(file_.get()), file_.get()) == first_byte;
  if (compressed_ && inflateInit2(&stream_, gzip_only) != Z_OK) throw Error(cat(path, ": zlib has no memory for gzip"));
}

GzipFile::~GzipFile() {
  inflateEnd(&stream_);
}

std::vector<std::uint8_t> GzipFile::read(std::size_t most) {
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < most) {
    const std::size_t had = bytes.size(), wanted = std::min(most - had, most_output);
    bytes.resize(had + wanted);
    const std::span<std::uint8_t> out(bytes.data() + had, wanted);
    const std::size_t got = compressed_ ? uncompress(out) : read_stored(out);
    bytes.resize(had + got);
    if (got == 0) break;
  }
  return bytes;
}

std::size_t GzipFile::read_stored(std::span<std::uint8_t> out) {
  const std::size_t got = std::fread(out.data(), 1, out.size(), file_.get());
  if (std::ferror(file_.get()) != 0) throw Error(cat(path_, ": cannot read: ", std::strerror(errno)));
  bytes_read_ += got;
  return got;
}

void GzipFile::fill() {
  stream_.next_in = input_.data();
  stream_.avail_in = static_cast<uInt>(read_stored(input_));
}

std::size_t GzipFile::uncompress(std::span<std::uint8_t> out) {
  stream_.next_out = out.data();
  stream_.avail_out = static_cast<uInt>(out.size());
  while (stream_.avail_out > 0 && (within_member_ || begin_next_member())) {
    if (stream_.avail_in == 0) fill();
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status == Z_BUF_ERROR) throw_damaged(path_, "unexpected end of file");
    if (status != Z_OK && status != Z_STREAM_END)
      throw_damaged(path_, stream_.msg != nullptr ? stream_.msg : zError(status));
    within_member_ = status == Z_OK;
  }
  return out.size() - stream_.avail_out;
}

// Returns false at the end of the file.
bool GzipFile::begin_next_member() {
  if (stream_.avail_in == 0) fill();
  if (stream_.avail_in > 0 && *stream_.next_in == first_byte) {
    inflateReset(&stream_);
    return within_member_ = true;
  }
  const std::uint64_t end = bytes_read_ - stream_.avail_in;
  for (; stream_.avail_in > 0; fill())
    if (std::any_of(stream_.next_in, stream_.next_in + stream_.avail_in, [](Bytef byte) { return byte != 0; }))
      throw Error(cat(path_, ": other bytes follow gzip's data, which end at byte ", end,
                      ", expected the end of the file, another gzip member or zero bytes"),
                  cat("copy or download it again; if nothing is missing, keep what gzip can read: ",
                      shell_command({"gzip", "-dc", path_}), " > NEW"));
  return false;
}

}  // namespace ringtrain
