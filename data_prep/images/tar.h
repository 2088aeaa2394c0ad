// Lists the members of an uncompressed tar file (POSIX ustar and pax, GNU long names). They can then be read in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

struct TarMember {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;  // position and size of its content in the file
};

// Returns the regular files, in the archive's order. Folders and links are left out. Throws Error that names the file
// and the byte if it is not a tar file, compressed, or damaged. The content of the last member may be cut off.
std::vector<TarMember> list_tar(const std::string& path);

}  // namespace ringtrain
