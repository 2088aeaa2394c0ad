#include "data_prep/common/gzip_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/user_text.h"

namespace ringtrain {
namespace {

constexpr std::size_t most_input = 1 << 18;
constexpr std::size_t most_output = 1 << 24;  // of memory that is taken at a time, because a header may lie about sizes
constexpr int gzip_only = 16 + MAX_WBITS;

[[noreturn]] void throw_damaged(const std::string& path, const char* reason) {
  throw Error(cat(path, ": gzip's data are cut off or damaged (", reason, ")"), "copy or download it again");
}

}  // namespace

GzipFile::GzipFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb")) {
  if (file_ == nullptr) throw Error(cat(path, ": cannot open: ", std::strerror(errno)));
  fill();
  compressed_ = at_member();
  if (compressed_ && inflateInit2(&stream_, gzip_only) != Z_OK) throw Error(cat(path, ": zlib has no memory for gzip"));
  within_member_ = compressed_;
}

GzipFile::~GzipFile() {
  inflateEnd(&stream_);
}

// Reads on in the file. What is not used yet stays, so that at_member() sees both bytes.
void GzipFile::fill() {
  const std::size_t kept = stream_.avail_in;
  std::copy_n(input_.end() - static_cast<std::ptrdiff_t>(kept), kept, input_.begin());
  input_.resize(most_input);
  const std::size_t got = std::fread(input_.data() + kept, 1, most_input - kept, file_.get());
  if (std::ferror(file_.get()) != 0) throw Error(cat(path_, ": cannot read: ", std::strerror(errno)));
  input_.resize(kept + got);
  bytes_read_ += got;
  stream_.next_in = input_.data();
  stream_.avail_in = static_cast<uInt>(input_.size());
}

bool GzipFile::at_member() {
  if (stream_.avail_in < 2) fill();
  return stream_.avail_in >= 2 && stream_.next_in[0] == 0x1f && stream_.next_in[1] == 0x8b;
}

std::size_t GzipFile::copy_to(std::span<std::uint8_t> out) {
  std::size_t copied = 0;
  while (copied < out.size()) {
    if (stream_.avail_in == 0) fill();
    if (stream_.avail_in == 0) break;
    const std::size_t count = std::min<std::size_t>(stream_.avail_in, out.size() - copied);
    std::copy_n(stream_.next_in, count, out.data() + copied);
    stream_.next_in += count;
    stream_.avail_in -= static_cast<uInt>(count);
    copied += count;
  }
  return copied;
}

std::size_t GzipFile::uncompress_to(std::span<std::uint8_t> out) {
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
  if (at_member()) {
    inflateReset(&stream_);
    within_member_ = true;
    return true;
  }
  const std::uint64_t end = bytes_read_ - stream_.avail_in;
  while (stream_.avail_in > 0) {
    const std::span<const std::uint8_t> rest(stream_.next_in, stream_.avail_in);
    if (std::ranges::any_of(rest, [](std::uint8_t byte) { return byte != 0; }))
      throw Error(cat(path_, ": other bytes follow gzip's data, which end at byte ", end,
                      ", expected the end of the file, another gzip member or zero bytes"),
                  cat("copy or download it again; if nothing is missing, keep what gzip can read: ",
                      shell_command({"gzip", "-dc", path_}), " > NEW"));
    stream_.avail_in = 0;
    fill();
  }
  return false;
}

std::vector<std::uint8_t> GzipFile::read(std::size_t most) {
  std::vector<std::uint8_t> bytes;
  while (bytes.size() < most) {
    const std::size_t had = bytes.size(), wanted = std::min(most - had, most_output);
    bytes.resize(had + wanted);
    const std::span<std::uint8_t> out(bytes.data() + had, wanted);
    const std::size_t got = compressed_ ? uncompress_to(out) : copy_to(out);
    bytes.resize(had + got);
    if (got == 0) break;
  }
  return bytes;
}

}  // namespace ringtrain
