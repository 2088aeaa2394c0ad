// Reads PNG pictures and converts them to records.
#include "data_prep/images/formats.h"
#include "tests/fuzz/repair.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  is_png(bytes);
  const Image image = decode_png(bytes);
  expect(std::ssize(image.pixels) == image.height * image.width * image.channels, "an image has all of its pixels");
}

const Registered registered("png", read, repair_png);

}  // namespace
}  // namespace ringtrain::fuzz
