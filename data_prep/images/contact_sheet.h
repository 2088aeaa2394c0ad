// Draws random samples of a data set, with the names of their classes, into a PNG file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace ringtrain {

struct ContactSheetOptions {
  std::string prefix, out;
  std::int64_t count = 48, columns = 8;
  std::uint64_t seed = 1;
};

void make_contact_sheet(const ContactSheetOptions& options, std::ostream& log);

}  // namespace ringtrain
