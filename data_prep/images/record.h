// Turns an image file into the record that is stored.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/jpeg.h"
#include "data_prep/images/listing.h"

namespace ringtrain {

// Reads the bytes or pixels of a listed image.

// An image as it was found: either the bytes of a file, or pixels if `bytes` is empty and `image` is not.
struct FoundImage {
  std::vector<std::uint8_t> bytes;
  Image image;
};

// Part of the input cannot be read, which may concern many images. It ends the conversion, unless broken images are to
// be left out.
class SourceError : public Error {
 public:
  using Error::Error;
};

class ListedImageSource {
 public:
  virtual ~ListedImageSource() = default;
  // May be called from any thread. Throws Error with the reason, to which the caller adds the name of the item.
  virtual FoundImage read(const ImageItem& item) const = 0;
};

// Reads files below the listing's root, and members of its tar files. The source keeps a reference to the listing.
std::unique_ptr<ListedImageSource> make_file_source(const ImageListing& listing);

struct RecordOptions {
  std::int64_t short_side = 0;  // shrink the short side to this, never enlarge; 0: keep
  std::int64_t size = 0;        // resize the short side to this and cut the central square; 0: keep
  int quality = 95;             // quality of encoded JPEGs
  bool raw = false;             // store pixels, not JPEGs
  bool grey_pixels = false;     // raw: images of one channel keep one channel
  bool upright = false;         // turn images as their EXIF orientation says, and encode them again
};

// Exact sums over the pixels of images, per channel. Mean and deviation thus do not depend on the order of addition.
struct PixelSums {
  std::array<std::uint64_t, 3> sum{}, sum_of_squares{};
  std::uint64_t pixels = 0;

  void add(const Image& image);
  void add(const PixelSums& other);
};

struct ImageRecord {
  std::vector<std::uint8_t> bytes;  // JPEG, or pixels u8 [height, width, channels]
  std::int64_t height = 0, width = 0, channels = 0;
  bool resized = false;
  std::string why;             // what else made a new encoding necessary: "PNG", "CMYK JPEG"; empty if nothing did
  std::string warning;         // what libjpeg says about a file that it decodes nevertheless; empty without decoding
  bool with_alpha = false;     // the alpha channel was dropped
  bool deep = false;           // a PNG of 16 bits, of which the upper 8 were kept
  bool deep_and_dark = false;  // and they are all below 16: such a file often has 12 bits in 16
  bool turned = false;         // EXIF says that the pixels are stored turned or mirrored
};

// Makes the record of an image. If `decode` is true, the whole image is decoded, even if its header would be enough. If
// `sums` is not null, the image is decoded too, and its pixels are added to `sums`. Throws Error that says what is
// wrong with the image.
ImageRecord make_record(FoundImage found, const RecordOptions& options, bool decode, PixelSums* sums);

}  // namespace ringtrain
