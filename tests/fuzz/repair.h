// Inputs whose own checksums are right again after a mutation: without it nearly every mutated PNG or tar file is
// refused at its first checksum, and what is behind stays untried.
#pragma once

#include <string>
#include <string_view>

namespace ringtrain::fuzz {

// Both keep the length.
//
// The CRC-32 of every chunk that is whole. What is no PNG file comes back as it is.
std::string repair_png(std::string_view input);

// The checksum of every member's header, as far as the members' sizes lead, and the length of every pax record.
std::string repair_tar(std::string_view input);

}  // namespace ringtrain::fuzz
