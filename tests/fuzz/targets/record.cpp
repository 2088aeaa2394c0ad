// Converts a picture of any kind to the record that a data set stores. The last two bytes choose the options.
#include "data_prep/images/record.h"

#include "data/jpeg.h"
#include "tests/fuzz/repair.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  if (input.size() < 2) return;
  const auto first = static_cast<unsigned char>(input[input.size() - 2]),
             last = static_cast<unsigned char>(input.back());
  RecordOptions options;
  options.short_side = (first & 1) != 0 ? 8 + (first >> 4) : 0;
  options.size = (first & 2) != 0 ? 8 + (last >> 4) : 0;
  options.raw = (first & 4) != 0;
  options.grey_pixels = (first & 8) != 0;
  options.quality = 1 + last % 100;
  FoundImage found;
  found.bytes.assign(input.begin(), input.end() - 2);
  PixelSums sums;
  const ImageRecord record = make_record(found, options, (last & 1) != 0, (last & 2) != 0 ? &sums : nullptr);
  expect(record.height > 0 && record.width > 0, "a record has a size");
  if (options.raw) {
    expect(std::ssize(record.bytes) == record.height * record.width * record.channels, "raw records hold all pixels");
  } else {
    const JpegHeader header = read_jpeg_header(record.bytes);
    expect(header.height == record.height && header.width == record.width, "a record is as large as it says");
  }
}

const Registered registered("record", read, repair_png);

}  // namespace
}  // namespace ringtrain::fuzz
