// What the user is told about a conversion of pictures.
#pragma once

#include <iosfwd>

#include "data_prep/convert_pictures.h"

namespace ringtrain {

// Every broken and every converted picture, one a line.
void print_notes(const PicturesReport& report, std::ostream& log);
void print_summary(const PicturesReport& report, const PictureOptions& options, const PictureListing& listing,
                   int ranks, int threads, std::ostream& log);

}  // namespace ringtrain
