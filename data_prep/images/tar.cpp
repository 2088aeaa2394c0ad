#include "data_prep/images/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/rounding.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data_prep/common/input_file.h"

namespace ringtrain {
namespace {

constexpr std::uint64_t block_bytes = 512;
constexpr std::uint64_t longest_name = 1 << 20;  // limit for an extended header, in bytes

using Block = std::array<char, block_bytes>;

std::string_view field(const Block& block, std::size_t at, std::size_t length) {
  const std::string_view text(block.data() + at, length);
  return text.substr(0, text.find('\0'));
}

// Reads octal digits with blanks around them, or GNU's big-endian binary number if the first bit is set.
std::optional<std::uint64_t> number(const Block& block, std::size_t at, std::size_t length) {
  std::uint64_t value = 0;
  if ((static_cast<unsigned char>(block[at]) & 0x80u) != 0) {
    for (std::size_t i = 0; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(block[at + i]);
      if (value >> 55 != 0) return std::nullopt;
      value = (value << 8) | (i == 0 ? byte & 0x7Fu : byte);
    }
    return value;
  }
  bool digits = false;
  for (const char c : field(block, at, length)) {
    if (c == ' ') {
      if (digits) break;
      continue;
    }
    if (c < '0' || c > '7' || value >> 60 != 0) return std::nullopt;
    value = value * 8 + static_cast<std::uint64_t>(c - '0');
    digits = true;
  }
  return value;
}

bool checksum_is_right(const Block& block) {
  constexpr std::size_t at = 148, length = 8;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    sum += (i >= at && i < at + length) ? ' ' : static_cast<unsigned char>(block[i]);
  }
  return number(block, at, length) == sum;
}

struct Extended {
  std::optional<std::string> path, target;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};

// Reads records of the form "length key=value\n". Returns false if the text does not have this form.
bool read_pax(std::string_view text, Extended& extended) {
  while (!text.empty() && text[0] != '\0') {
    std::size_t length = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (failed != std::errc{} || length < digits + 3 || length > text.size() || *end != ' ' || text[length - 1] != '\n')
      return false;
    const std::string_view record = text.substr(digits + 1, length - digits - 2);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") extended.path = std::string(value);
    if (key == "linkpath") extended.target = std::string(value);
    if (key.starts_with("GNU.sparse.")) extended.sparse = true;
    if (key == "size") {
      std::uint64_t size = 0;
      if (!read_number(value, size)) return false;
      extended.size = size;
    }
    text.remove_prefix(length);
  }
  return true;
}

// Returns nothing for entries that are no files, such as the label of a tape.
std::optional<TarMember::Kind> kind_of(char type) {
  switch (type) {
    case '0':
    case '\0':
    case '7':
      return TarMember::Kind::file;
    case '1':
      return TarMember::Kind::hard_link;
    case '2':
      return TarMember::Kind::soft_link;
    case '3':
    case '4':
    case '6':
      return TarMember::Kind::special;
    case '5':
    case 'D':
      return TarMember::Kind::folder;
    default:
      return std::nullopt;
  }
}

std::string compression_of(std::string_view start) {
  using namespace std::string_view_literals;
  if (start.starts_with("\x1f\x8b"sv)) return "gzip";
  if (start.starts_with("BZh"sv)) return "bzip2";
  if (start.starts_with("\xfd"
                        "7zXZ"sv))
    return "xz";
  if (start.starts_with("\x28\xb5\x2f\xfd"sv)) return "zstd";
  return start.starts_with("PK\x03\x04"sv) ? "zip" : "";
}

// Throws Error if a header follows the end of the archive. `cat a.tar b.tar` makes such a file. tar reads only its
// first part, so the pictures of the other part would be lost.
void expect_nothing_after(const InputFile& file, std::uint64_t at, const std::string& path) {
  std::vector<std::uint8_t> piece(block_bytes * 2048);
  for (; at + block_bytes <= file.bytes(); at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), (file.bytes() - at) / block_bytes * block_bytes));
    file.read(at, piece);
    for (std::size_t i = 0; i < piece.size(); i += block_bytes) {
      Block block;
      std::memcpy(block.data(), piece.data() + i, block_bytes);
      const bool empty = std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; });
      if (!empty && checksum_is_right(block))
        throw Error(cat(path, ": has more members at byte ", at + i, ", after its end: two tar files were joined"),
                    "unpack it with tar --ignore-zeros, and pack the files again");
    }
  }
}

}  // namespace

std::vector<TarMember> list_tar(const std::string& path) {
  const InputFile file(path);
  const std::uint64_t end = file.bytes();
  const auto damaged = [&](std::uint64_t at, const std::string& what) {
    return Error(cat(path, ": is damaged at byte ", at, ": ", what), "copy or make the tar file again");
  };
  std::vector<TarMember> members;
  Extended extended;
  Block block;
  bool ended = false;
  std::uint64_t end_of_archive = 0;
  for (std::uint64_t at = 0; at + block_bytes <= end;) {
    file.read(at, {reinterpret_cast<std::uint8_t*>(block.data()), block.size()});
    if (std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; })) {
      ended = true;
      end_of_archive = at;
      break;
    }
    if (!checksum_is_right(block)) {
      if (at > 0) throw damaged(at, "no header of a member with a right checksum");
      const std::string compression = compression_of({block.data(), block.size()});
      throw Error(cat(path, ": is not a plain tar file",
                      compression.empty() ? "" : cat(" but a compressed one (", compression, ")")),
                  compression.empty()    ? ""
                  : compression == "zip" ? "unpack it: a class is a folder or a tar file"
                                         : cat("its members are read in place, so uncompress it first: ", compression,
                                               " -dc ", path, " > NEW.tar"));
    }
    const char type = block[156];
    const std::optional<std::uint64_t> stored = number(block, 124, 12);
    if (!stored) throw damaged(at, "the member's size is not a number");
    const bool describes_next = type == 'L' || type == 'K' || type == 'x' || type == 'g';
    // A hard link has no content, but some programs store the size of the file that it leads to.
    const std::uint64_t bytes = type == '1' ? 0 : describes_next ? *stored : extended.size.value_or(*stored);
    const std::uint64_t content = at + block_bytes;
    if (bytes > (std::uint64_t{1} << 62)) throw damaged(at, "the member's size is impossible");
    at = content + round_up(bytes, block_bytes);
    if (describes_next) {
      if (bytes > longest_name || content + bytes > end)
        throw damaged(content, "an extended header is cut off or too long");
      std::string text(bytes, '\0');
      file.read(content, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
      if (type == 'L') extended.path = text.substr(0, text.find('\0'));
      if (type == 'K') extended.target = text.substr(0, text.find('\0'));
      if (type == 'x' && !read_pax(text, extended)) throw damaged(content, "a pax header is malformed");
      continue;
    }
    if (type == 'S' || extended.sparse)
      throw Error(cat(path, ": holds a sparse file at byte ", content), "pack the tar file without --sparse");
    if (type == 'M')
      throw Error(cat(path, ": is a later part of a tar file in several parts"), "make one tar file of all parts");
    if (const std::optional<TarMember::Kind> kind = kind_of(type)) {
      std::string name(field(block, 0, 100));
      const bool posix = std::memcmp(block.data() + 257, "ustar\0", 6) == 0;
      if (const std::string_view prefix = field(block, 345, 155); posix && !prefix.empty())
        name = cat(prefix, "/", name);
      if (extended.path) name = *extended.path;
      // Before POSIX, a folder was stored as a file whose name ends in a slash.
      const bool folder = *kind == TarMember::Kind::file && name.ends_with("/");
      members.push_back({std::move(name), content, bytes, folder ? TarMember::Kind::folder : *kind,
                         extended.target.value_or(std::string(field(block, 157, 100)))});
    }
    extended = {};
  }
  // Nobody would miss the members after the cut, so a part of an archive is never read.
  if (!members.empty() && members.back().offset + members.back().bytes > end)
    throw damaged(end, cat("it is cut off within the member ", shown(members.back().name)));
  if (ended) expect_nothing_after(file, end_of_archive, path);
  if (!ended) throw damaged(end, "the empty block that ends an archive is missing: it is cut off");
  return members;
}

}  // namespace ringtrain
