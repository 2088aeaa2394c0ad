// Reads whole files, and writes files atomically: a file appears whole or not at all. Recognises files of other
// formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Returns the bytes of a file. "" if the file cannot be read or is none, such as a pipe, which may never end.
std::string file_text(const std::string& path);

// Returns the first bytes of a file, at most `most`. "" if they cannot be read.
std::string first_bytes(const std::string& path, std::size_t most);

// Returns the bytes that a stream still has. "" if they cannot be read.
std::string rest_of(std::istream& in);

// Syncs `temporary` to disk, renames it to `final` and syncs the folder. Throws Error. `final` is then unchanged,
// unless only the folder could not be synced.
void publish_file(const std::string& temporary, const std::string& final);

// Has `write` make the file `temporary`, and publishes it. If one of the two fails, removes `temporary` and throws the
// exception again.
void publish_written(const std::string& temporary, const std::string& final, const std::function<void()>& write);

// Writes `text` into the file, device or pipe `to`. Throws Error, which names the file as `named` if a write fails.
void write_text_file(const std::string& to, const std::string& text, const std::string& named);

// Writes `text` to <path>.tmp and replaces `path` by publish_file(). Throws the errors of publish_file(), too.
void write_file_atomically(const std::string& path, const std::string& text);

// Returns a name for a temporary file in the folder of `path`. No other process gets the same name.
std::string own_temporary(const std::string& path);

// Replaces a cache file that other processes may replace at the same time. No other process uses the same name for its
// temporary file. A missing folder is made. Nothing is synced to disk. If the replacement fails, `path` is unchanged
// and the result is false.
bool replace_cache_file(const std::string& path, const std::string& text);

// Returns `path` if no file has that name. Otherwise returns the first free name of "a-2.txt", "a-3.txt", ...
std::string unused_path(const std::string& path);

// Copies a file to `to`, which must not exist, and syncs it to disk in pieces of 16 MiB. `progress` is called after
// each piece with its number of bytes. Throws Error.
void copy_to_disk(const std::string& from, const std::string& to,
                  const std::function<void(std::int64_t bytes)>& progress);

// Opens a file, which is made or emptied, or a device or pipe. Returns -1 if this fails. O_CREAT is left out for pipes:
// a system may refuse to "create" the pipe of another user (fs.protected_fifos).
int open_for_writing(const std::string& path);

// Writes all bytes to an open file. Returns 0, or errno if this fails.
int write_fully(int file, const void* bytes, std::size_t count);

// Syncs the bytes of an open file to disk, if its file system can do so. Returns 0, or errno if this fails.
int sync_to_disk(int file);

// Returns whether `path` names this open file no longer, because it was removed, moved or replaced. Returns false if
// the file system cannot say it.
bool has_lost_its_name(int file, const std::string& path);

// Returns a hint for the user after a write to `path`, a file or folder that may be absent, failed with this errno. It
// tells a full disk from a full table of inodes and from a quota, and names a link that points to nothing. If `path` is
// "", it only tells a full disk from a quota. "" if there is no hint.
std::string advice_for_writing(int reason, const std::string& path);

// Does the same for the message of a library, which contains the system's words for a full disk or a quota.
std::string advice_for_writing(std::string_view message, const std::string& path);

// Recognises files that are often given in place of another one, by their first bytes.

struct ForeignFile {
  std::string format;  // "compressed with gzip", after "is"; "": the file may be anything else
  std::string advice;  // what to do about it

  explicit operator bool() const { return !format.empty(); }
};

// `start` is the beginning of the file. Knows gzip, xz, bzip2 and Zstandard, pointers of Git LFS and web pages.
ForeignFile foreign_file(std::string_view start);
ForeignFile compressed_file(std::string_view start);  // knows the compressed ones only
bool is_markup(std::string_view start);               // whether HTML or XML begins there

// Returns the beginning of a file for comparisons with marks such as "<html": in lower case (ASCII), without white
// space and without a byte-order mark. The bytes may be of any encoding.
std::string first_mark(std::string_view start);

// Returns the names of a zip file's members. `end` is the end of the file, which has their directory.
// Source: PKWARE's APPNOTE.TXT, section 4.3.12.
std::vector<std::string> members_of_zip(std::string_view end);

}  // namespace ringtrain
