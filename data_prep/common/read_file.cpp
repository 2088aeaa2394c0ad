#include "data_prep/common/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

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

std::vector<std::uint8_t> read_file(const std::string& path) {
  const InputFile file(path);
  std::vector<std::uint8_t> bytes(file.bytes());
  file.read(0, bytes);
  return bytes;
}

std::string read_text_file(const std::string& path) {
  const InputFile file(path);
  std::string text(file.bytes(), '\0');
  file.read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
  return text;
}

}  // namespace ringtrain
