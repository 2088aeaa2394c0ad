#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "base/table.h"
#include "base/text.h"

namespace ringtrain {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int reason) {
  throw Error(cat(path, ": ", what, ": ", std::strerror(reason)), advice_for_writing(reason, path));
}

constexpr const char* another_disk = "set run.dir (a converter: --out) to a folder on another disk";

std::string advice_on_full_disk(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return cat("free some space, or ", another_disk);
  fs::path place = path;
  std::error_code failed;
  while (!place.empty() && !fs::exists(place, failed) && place != place.root_path()) place = place.parent_path();
  struct statvfs disk {};
  if (::statvfs(place.empty() ? "." : place.c_str(), &disk) != 0) return cat("free some space, or ", another_disk);
  const double free_bytes = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  constexpr fsfilcnt_t few = 10;  // temporary files of this program may have been removed since
  if (disk.f_files > 0 && disk.f_favail < few && free_bytes > 0)
    return cat("the disk has ", readable_bytes(free_bytes), " free, but only ", disk.f_favail, " of its ",
               with_thousands(disk.f_files), " inodes (df -i), so it takes no more files: remove files there, or ",
               another_disk);
  constexpr double much = 1 << 30;
  if (free_bytes > much)
    return cat("the disk has ", readable_bytes(free_bytes), " free for other users or folders, so this may be a quota ",
               "(quota -s; on Lustre: lfs quota -h): free some space within it, or ", another_disk);
  return cat("free some space, or ", another_disk);
}

void sync(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) throw Error(cat(path, ": cannot open to sync: ", std::strerror(errno)));
  const int synced = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  // Some network file systems cannot sync a folder and return EINVAL. Nothing more can be done to make the rename safe.
  if (synced != 0 && !(reason == EINVAL && (flags & O_DIRECTORY) != 0)) {
    fail(path, "cannot sync to disk", reason);
  }
}

// A link that points to nothing is in the way of a folder, and the system then says only "File exists".
std::string advice_on_link(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  for (fs::path place = path; !place.empty() && place != place.root_path(); place = place.parent_path())
    if (fs::is_symlink(place, failed) && !fs::exists(place, failed))
      return cat(place.string(), " is a link to ", fs::read_symlink(place, failed).string(),
                 ", which is not there: make that folder, or remove the link");
  return "";
}

}  // namespace

std::string file_text(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return "";
  std::ifstream file(path, std::ios::binary);
  return rest_of(file);
}

std::string first_bytes(const std::string& path, std::size_t most) {
  std::string bytes(most, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

std::string rest_of(std::istream& in) {
  std::ostringstream text;
  text << in.rdbuf();
  return text ? std::move(text).str() : "";
}

std::string unused_path(const std::string& path) {
  const std::filesystem::path wanted = path;
  std::filesystem::path free = wanted;
  for (int number = 2; std::filesystem::exists(std::filesystem::symlink_status(free)); ++number)
    free = wanted.parent_path() / cat(wanted.stem().string(), '-', number, wanted.extension().string());
  return free.string();
}

std::string advice_for_writing(int reason, const std::string& path) {
  switch (reason) {
    case ENOSPC:
      return advice_on_full_disk(path);
    case EDQUOT:
      return cat(
          "your quota there, of bytes or of files, is used up (quota -s shows it; on Lustre: lfs quota -h): "
          "remove files or free some space, or ",
          another_disk);
    case EROFS:
    case EACCES:
    case EPERM:
      return "set run.dir (a converter: --out) to a folder that you can write to";
    case EEXIST:
    case ENOTDIR:
    case ENOENT:
      return advice_on_link(path);
    default:
      return "";
  }
}

std::string advice_for_writing(std::string_view message, const std::string& path) {
  for (const int reason : {ENOSPC, EDQUOT})
    if (message.find(std::strerror(reason)) != std::string_view::npos) return advice_for_writing(reason, path);
  return "";
}

void publish_file(const std::string& temporary, const std::string& final) {
  sync(temporary, O_RDONLY);
  if (std::rename(temporary.c_str(), final.c_str()) != 0) {
    fail(temporary, cat("cannot rename to ", final), errno);
  }
  const std::filesystem::path folder = std::filesystem::path(final).parent_path();
  sync(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
}

void publish_written(const std::string& temporary, const std::string& final, const std::function<void()>& write) {
  try {
    write();
    publish_file(temporary, final);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

int open_for_writing(const std::string& path) {
  struct stat found {};
  const bool is_stream = ::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode);
  return ::open(path.c_str(), O_WRONLY | (is_stream ? 0 : O_CREAT) | O_TRUNC | O_CLOEXEC, 0644);
}

int write_fully(int file, const void* bytes, std::size_t count) {
  const auto* rest = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(file, rest, count);
    if (written < 0 && errno != EINTR) return errno;
    if (written <= 0) continue;
    rest += written;
    count -= static_cast<std::size_t>(written);
  }
  return 0;
}

int sync_to_disk(int file) {
  return ::fdatasync(file) == 0 || errno == EINVAL || errno == EROFS ? 0 : errno;
}

bool has_lost_its_name(int file, const std::string& path) {
  struct stat own {};
  struct stat named {};
  if (::fstat(file, &own) != 0) return false;
  if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return own.st_dev != named.st_dev || own.st_ino != named.st_ino;
}

void copy_to_disk(const std::string& from, const std::string& to,
                  const std::function<void(std::int64_t bytes)>& progress) {
  const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) fail(from, "cannot read", errno);
  const int target = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  int reason = target < 0 ? errno : 0;
  std::vector<char> piece(16 << 20);
  while (reason == 0) {
    const ssize_t got = ::read(source, piece.data(), piece.size());
    if (got == 0) break;
    if (got < 0 && errno != EINTR) reason = errno;
    if (got > 0) reason = write_fully(target, piece.data(), static_cast<std::size_t>(got));
    if (reason == 0 && ::fdatasync(target) != 0) reason = errno;
    if (reason == 0 && progress) progress(std::max<ssize_t>(got, 0));
  }
  ::close(source);
  if (target >= 0 && ::close(target) != 0 && reason == 0) reason = errno;
  if (reason != 0) fail(to, cat("cannot copy ", from, " to it"), reason);
}

void write_text_file(const std::string& to, const std::string& text, const std::string& named) {
  const int file = open_for_writing(to);
  if (file < 0) fail(to, "cannot write", errno);
  int reason = write_fully(file, text.data(), text.size());
  if (::close(file) != 0 && reason == 0) reason = errno;
  if (reason != 0) fail(named, "cannot write", reason);
}

void write_file_atomically(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  publish_written(temporary, path, [&] { write_text_file(temporary, text, path); });
}

std::string own_temporary(const std::string& path) {
  return cat(path, '.', ::gethostid(), '-', ::getpid());
}

bool replace_cache_file(const std::string& path, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  const std::string temporary = own_temporary(path);
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file) {
    std::filesystem::rename(temporary, path, failed);
    if (!failed) return true;
  }
  ::unlink(temporary.c_str());
  return false;
}

namespace {

struct Compression {
  std::string_view start, name, command;
};

constexpr Compression compressions[] = {{"\x1f\x8b", "gzip", "gunzip"},
                                        {"\xfd"
                                         "7zXZ",
                                         "xz", "unxz"},
                                        {"BZh", "bzip2", "bunzip2"},
                                        {"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"}};
constexpr std::string_view markup[] = {"<!doctype", "<html", "<?xml", "<table", "<head", "<meta"};

}  // namespace

ForeignFile compressed_file(std::string_view start) {
  for (const Compression& each : compressions)
    if (start.starts_with(each.start))
      return {cat("compressed with ", each.name), cat("unpack it first: ", each.command)};
  return {};
}

std::string first_mark(std::string_view start) {
  if (start.starts_with("\xEF\xBB\xBF")) start.remove_prefix(3);
  std::string mark(start.substr(0, 256));
  std::erase_if(mark, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
  return ascii_lower(mark);
}

bool is_markup(std::string_view start) {
  const std::string found = first_mark(start);
  return std::ranges::any_of(markup, [&](std::string_view mark) { return found.starts_with(mark); });
}

ForeignFile foreign_file(std::string_view start) {
  if (ForeignFile file = compressed_file(start)) return file;
  if (start.starts_with("version https://git-lfs"))
    return {"a pointer of Git LFS, without the data", "fetch the file itself: git lfs pull"};
  if (is_markup(start)) return {"a web page", "download the file itself, not the page that shows it"};
  return {};
}

std::vector<std::string> members_of_zip(std::string_view end) {
  std::vector<std::string> names;
  constexpr std::size_t fixed_bytes = 46, length_at = 28;
  for (std::size_t at = end.find("PK\x01\x02"); at != std::string::npos; at = end.find("PK\x01\x02", at + 4)) {
    if (at + fixed_bytes > end.size()) break;
    std::uint16_t length = 0;
    std::memcpy(&length, end.data() + at + length_at, sizeof length);
    names.emplace_back(end.substr(at + fixed_bytes, length));
  }
  return names;
}

}  // namespace ringtrain
