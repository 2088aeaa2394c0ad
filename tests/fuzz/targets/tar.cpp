// Reads tar files of pictures. Their members are read in place.
#include "data_prep/images/tar.h"

#include "base/error.h"
#include "data_prep/common/input_file.h"
#include "tests/fuzz/repair.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const std::string path = write_input("pictures.tar", input);
  const InputFile file(path);
  const std::vector<TarMember> members = list_tar(path);
  for (std::size_t i = 0; i < members.size(); ++i) {
    const TarMember& member = members[i];
    const bool whole = member.bytes <= input.size() && member.offset <= input.size() - member.bytes;
    expect(whole || i + 1 == members.size(), "only the last member may be cut off");
    if (!whole) continue;
    std::vector<std::uint8_t> bytes(member.bytes);
    file.read(member.offset, bytes);
  }
}

const Registered registered("tar", read, repair_tar);

}  // namespace
}  // namespace ringtrain::fuzz
