// The commands about images, as typed.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

extern const char* const images_usage;
extern const char* const import_usage;
extern const char* const contact_sheet_usage;

int run_images(const std::vector<std::string>& words);
int run_import(const std::vector<std::string>& words);
int run_contact_sheet(const std::vector<std::string>& words);

}  // namespace ringtrain
