// What lies where in an uncompressed tar file (POSIX ustar and pax, GNU long names), so that members are read in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

struct TarMember {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;  // of its content in the file
};

// The regular files in it, in the archive's order; folders and links are left out. Throws Error naming the file and the
// byte when it is not a tar file, compressed, or damaged. The content of the last member may be cut off.
std::vector<TarMember> list_tar(const std::string& path);

}  // namespace ringtrain
