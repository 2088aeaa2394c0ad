// Recognises files of weights that are not safetensors, by their content, and says how to convert them.
#pragma once

#include <string>

namespace ringtrain {

// `start` and `end` are the first and the last bytes of the file, at most 64 KiB and 1 MiB. Throws Error that names the
// format if it is a known one. Returns if the file may be safetensors.
void refuse_other_formats(const std::string& path, const std::string& start, const std::string& end);

}  // namespace ringtrain
