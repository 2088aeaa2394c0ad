// Turns an image file into the record that is stored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data_prep/images/source.h"

namespace ringtrain {

struct RecordOptions {
  std::int64_t short_side = 0;  // shrink to this, never enlarge; 0: keep
  std::int64_t size = 0;        // the central square of this size after resizing the short side to it; 0: keep
  int quality = 95;             // of what is encoded
  bool raw = false;             // store pixels
  bool grey_pixels = false;     // raw: images of one channel stay so
};

// Exact sums over the pixels of images, by channel: mean and deviation do not depend on the order of adding.
struct PixelSums {
  std::array<std::uint64_t, 3> sum{}, sum_of_squares{};
  std::uint64_t pixels = 0;

  void add(const Image& image);
  void add(const PixelSums& other);
};

enum class Change : std::uint8_t { none, converted, resized };

struct ImageRecord {
  std::vector<std::uint8_t> bytes;  // JPEG, or pixels u8 [height, width, channels]
  std::int64_t height = 0, width = 0, channels = 0;
  Change change = Change::none;
  std::string why;  // "PNG", "CMYK JPEG": what was converted
};

// `decode`: whole images are decoded even where the header would do. `sums`: not null: pixels are added (implies
// decode). Throws Error with what is wrong with the image.
ImageRecord make_record(FoundImage found, const RecordOptions& options, bool decode, PixelSums* sums);

}  // namespace ringtrain
