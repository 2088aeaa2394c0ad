// Recognises the files of weights that other programs write, and says how to convert them.
#pragma once

#include <string>

namespace ringtrain {

// Recognises files of weights that are not safetensors, by their content. `start` and `end` are the first and the last
// bytes of the file, at most 64 KiB and 1 MiB. Throws Error that names the format and says how to convert the file if
// the format is a known one. Returns if the file may be safetensors.
void refuse_other_formats(const std::string& path, const std::string& start, const std::string& end);

}  // namespace ringtrain
