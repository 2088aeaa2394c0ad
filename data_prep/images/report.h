// Prints the results of a conversion of images.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "data_prep/images/convert.h"
#include "data_prep/images/write.h"

namespace ringtrain {

// Prints at most ten images of each kind, one a line: first broken and doubtful ones, then those that were encoded
// again. `all_of_them` ends the line that says that there are more.
void print_notes(const ImagesReport& report, const std::string& all_of_them, std::ostream& log);
// Returns a title and a line for each of these images. Returns "" if print_notes() prints all of them.
std::string all_notes(const ImagesReport& report);
// Returns the path of the file of all notes. `out` is --out.
std::string notes_path(const std::string& out);
// The notes replace those of an earlier conversion. Throws Error if a file that this program did not write has their
// name.
void expect_own_notes(const std::string& path);
// `workers` is "2 rank(s) x 8 thread(s)".
void print_summary(const ImagesReport& report, const ImageOptions& options, const ImageListing& listing,
                   const std::string& workers, std::ostream& log);

// Warns of what is odd about a whole data set: classes without images, the same image twice, reasons that many share.

// Returns "3 (is HEIC, neither a JPEG nor a PNG file), 1 (is empty (0 bytes))", the most frequent ones first.
std::string counted_reasons(const std::vector<ImageNote>& notes);
// Returns what helps against the reasons, with "; " at its end, or "". Commands name the first file of their kind.
std::string advice_on(const std::vector<ImageNote>& broken);

// Names the classes that have no image in a split that has images, and says whether they lost them as broken ones.
void warn_of_empty_classes(const ImageListing& listing, const Examination& examination,
                           const std::vector<SplitPlan>& plans, std::vector<std::string>& warnings);

// Warns of pictures that are nearly black: PNG files of 16 bits that use few of them, arrays of pixels of which none is
// above 15 (masks of 0 and 1 among them), and pictures of zeros.
void warn_of_dark_images(const ImageListing& listing, const Examination& examination, ImagesReport& report);

// Counts images that are stored with the same bytes under another label or in the other split.
void warn_of_same_images(const ImageListing& listing, const Examination& examination,
                         std::vector<std::string>& warnings);

}  // namespace ringtrain
