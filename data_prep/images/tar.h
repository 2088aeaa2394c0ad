// Lists the members of a tar file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

// A member of an uncompressed tar file (POSIX ustar and pax, GNU long names), which can be read in place.
struct TarMember {
  enum class Kind { file, folder, soft_link, hard_link, special };  // special: a device, a pipe
  std::string name;
  std::uint64_t offset = 0, bytes = 0;  // position and size of a file's content in the tar file
  Kind kind = Kind::file;
  std::string target;  // of a soft link: from the folder of the link; of a hard link: the name of a member
};

// Returns the members in the archive's order. Throws Error that names the file and the byte if it is not a tar file,
// compressed, damaged, or one part of several. The content of the last member may be cut off.
std::vector<TarMember> list_tar(const std::string& path);

}  // namespace ringtrain
