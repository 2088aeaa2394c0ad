// Recognises files that are often given in place of another one, by their first bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

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
