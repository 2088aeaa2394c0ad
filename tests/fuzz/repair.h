// Corrects the checksums of an input after a mutation. Without it, nearly every mutated PNG or tar file is refused at
// its first checksum, and the code after that is never tested.
#pragma once

#include <string>
#include <string_view>

namespace ringtrain::fuzz {

// Both functions keep the length of the input.
//
// Corrects the CRC-32 of every chunk that is complete. If the input is not a PNG file, returns it unchanged.
std::string repair_png(std::string_view input);

// Corrects the checksum of every member's header and the length of every pax record. Stops if a member would end
// after the end of the file.
std::string repair_tar(std::string_view input);

}  // namespace ringtrain::fuzz
