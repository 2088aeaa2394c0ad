// What the user is told about a conversion of images.
#pragma once

#include <iosfwd>

#include "data_prep/images/convert_listing.h"

namespace ringtrain {

// Every broken and every converted image, one a line.
void print_notes(const ImagesReport& report, std::ostream& log);
void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing, int ranks,
                   int threads, std::ostream& log);

}  // namespace ringtrain
