// Prints the results of a conversion of images.
#pragma once

#include <iosfwd>
#include <string>

#include "data_prep/images/convert_listing.h"

namespace ringtrain {

// Prints at most ten images of each kind, one a line: first those that were encoded again, then doubtful and broken
// ones. If there are more, `notes_path` gets all of them. Throws Error if that file cannot be written.
void print_notes(const ImagesReport& report, const std::string& notes_path, std::ostream& log);
// `workers` is "2 rank(s) x 8 thread(s)".
void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing,
                   const std::string& workers, std::ostream& log);

}  // namespace ringtrain
