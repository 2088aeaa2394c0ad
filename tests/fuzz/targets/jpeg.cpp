// Reads JPEG records: decodes them whole, checks them, and runs the training's transforms. The last byte chooses the
// settings of the transforms.
#include "data/jpeg.h"

#include "data/image_transform.h"
#include "data_prep/images/formats.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
  const unsigned choice = input.empty() ? 0 : static_cast<unsigned char>(input.back());
  const std::string bad = error_of([&] { decode_jpeg(bytes); });
  const std::string found = error_of([&] { check_jpeg(bytes); });
  expect(bad.empty() == found.empty(), "the check refuses what decoding refuses: '" + bad + "', '" + found + "'");
  ImageTransform transform;
  transform.size = 16 + 8 * (choice & 3);
  transform.resize = (choice & 4) != 0 ? 0 : 40;
  transform.augmentation = static_cast<Augmentation>((choice >> 3) % 3);
  if (transform.augmentation == Augmentation::pad_crop || transform.resize == 0) transform.resize = transform.size;
  ImageDecoder decoder(transform);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(transform.size * transform.size * 3));
  const std::string trained = error_of([&] { decoder.training(bytes, {1, 2, choice}, out); });
  const std::string evaluated = error_of([&] { decoder.evaluation(bytes, out); });
  if (bad.empty())
    expect(trained.empty() && evaluated.empty(), "what decodes can be trained on: " + trained + evaluated);
}

const Registered registered("jpeg", read);

}  // namespace
}  // namespace ringtrain::fuzz
