// Prints the results of a conversion of images.
#pragma once

#include <iosfwd>
#include <string>

#include "data_prep/images/convert_listing.h"

namespace ringtrain {

// Prints at most ten images of each kind, one a line: first broken and doubtful ones, then those that were encoded
// again. `all_of_them` ends the line that says that there are more.
void print_notes(const ImagesReport& report, const std::string& all_of_them, std::ostream& log);
// Returns a line for each of these images. Returns "" if print_notes() prints all of them.
std::string all_notes(const ImagesReport& report);
// `workers` is "2 rank(s) x 8 thread(s)".
void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing,
                   const std::string& workers, std::ostream& log);

}  // namespace ringtrain
