// Reads the bytes or pixels of a listed image.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "data/jpeg.h"
#include "data_prep/images/listing.h"

namespace ringtrain {

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

}  // namespace ringtrain
