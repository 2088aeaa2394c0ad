// Where the bytes or pixels of a listed picture come from.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/jpeg.h"
#include "data_prep/image_listing.h"

namespace ringtrain {

// A picture as it was found: a file's bytes, or pixels when `bytes` is empty and `picture` is not.
struct FoundPicture {
  std::vector<std::uint8_t> bytes;
  Picture picture;
};

class PictureSource {
 public:
  virtual ~PictureSource() = default;
  // From any thread. Throws Error with the reason (the caller names the item).
  virtual FoundPicture read(const PictureItem& item) const = 0;
};

// Files below the listing's root, and members of its tar files. Keeps a reference to the listing.
std::unique_ptr<PictureSource> make_file_source(const PictureListing& listing);

}  // namespace ringtrain
