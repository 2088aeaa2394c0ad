// The commands about pictures, as typed.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

extern const char* const images_usage;

int run_images(const std::vector<std::string>& words);

}  // namespace ringtrain
