#include "tests/fuzz/target.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "base/error.h"

namespace ringtrain::fuzz {
namespace {

namespace fs = std::filesystem;

// The folder is removed when the process ends normally. After a crash it stays. If it lies in memory, it is gone after
// the machine's next start.
struct Folder {
  Folder() {
    const fs::path parent = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    path = (parent / "ringtrain-fuzz-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot make a folder for inputs");
  }
  ~Folder() {
    std::error_code failed;
    fs::remove_all(path, failed);
  }
  std::string path;
};

}  // namespace

std::map<std::string, Read>& targets() {
  static std::map<std::string, Read> all;
  return all;
}

std::map<std::string, Repair>& repairs() {
  static std::map<std::string, Repair> all;
  return all;
}

void expect(bool kept, const std::string& promise) {
  if (!kept) throw std::logic_error("broken promise: " + promise);
}

std::string run(Read read, std::string_view input) {
  return error_of([&] { read(input); });
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = cat(error.what(), " [", error.hint(), "]");
    expect(error.what()[0] != '\0', "an error says something");
    expect(message.size() <= longest_message, cat("a message is short, and not ", message.size(), " bytes: ", message));
    return message;
  }
  return "";
}

std::string in_folder(const std::string& name) {
  static const Folder folder;
  return folder.path + "/" + name;
}

std::string write_input(const std::string& name, std::string_view bytes) {
  const std::string path = in_folder(name);
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

Parts split_parts(std::string_view input) {
  constexpr std::string_view line = "\n==== overrides\n";
  const std::size_t at = input.find(line);
  if (at == std::string_view::npos) return {input, {}};
  return {input.substr(0, at + 1), input.substr(at + line.size())};
}

std::uint8_t Bytes::byte() {
  return static_cast<std::uint8_t>(word(1));
}

std::uint64_t Bytes::word(int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes && !rest_.empty(); ++i, rest_.remove_prefix(1))
    value |= std::uint64_t{static_cast<unsigned char>(rest_.front())} << (8 * i);
  return value;
}

std::string Bytes::text(std::size_t most) {
  const std::size_t end = std::min(rest_.find('\n'), rest_.size()), length = std::min(end, most);
  const std::string result(rest_.substr(0, length));
  rest_.remove_prefix(std::min(rest_.size(), end + 1));
  return result;
}

}  // namespace ringtrain::fuzz
