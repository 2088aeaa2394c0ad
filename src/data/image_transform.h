// Turns a stored image into the square of pixels that a model sees. The transforms are torchvision's, bit for bit, but
// the random numbers are a function of (seed, epoch, sample id) only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/jpeg.h"

namespace ringtrain {

enum class Augmentation { none, random_resized_crop, pad_crop };

struct ImageTransform {
  std::int64_t size = 224;    // side of the result u8 [size, size, channels]
  std::int64_t channels = 3;  // 3: colours, and grey is repeated three times. 1: grey, as in grey_of()
  // The short side is resized to this number of pixels, in evaluations and in training without random_resized_crop. The
  // length of the long side is truncated, as in torchvision's Resize. Then the central size x size is cut out
  // (CenterCrop, offsets rounded half to even). 0: no resizing.
  std::int64_t resize = 256;
  Augmentation augmentation = Augmentation::random_resized_crop;  // for training
  double scale_low = 0.08, scale_high = 1;                        // random_resized_crop: share of the area
  double ratio_low = 3.0 / 4, ratio_high = 4.0 / 3;               // width / height, log-uniform
  std::int64_t pad = 4;  // pad_crop: black pixels on all sides of the size x size image (resized as above); then a
                         // random square of size x size is cut out
  bool flip = true;      // horizontal flip with probability 1/2
};

// The rectangle that is cut out of a training sample.
struct CropBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool flip = false;
  bool operator==(const CropBox&) const = default;
};

// The key of the random numbers of one sample's augmentation.
struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::uint64_t sample_id = 0;
};

// Chooses the crop of a height x width image as torchvision's RandomResizedCrop.get_params does (10 tries, then the
// central crop), and the flip as RandomHorizontalFlip does. For pad_crop, the crop is RandomCrop(size, padding) of a
// size x size image.
CropBox training_crop(const ImageTransform& transform, std::int64_t height, std::int64_t width, const SampleKey& key);

// Returns the grey value of a colour as Pillow's convert("L") does (ITU-R BT.601). Equal values give that value.
inline std::uint8_t grey_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  return static_cast<std::uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

// Decodes and transforms images. Each thread has its own decoder, because a decoder keeps scratch memory.
class ImageDecoder {
 public:
  explicit ImageDecoder(const ImageTransform& transform);
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  // Writes u8 [size, size, channels] to `out`. Throws Error that says what is wrong with the image; the caller adds
  // file and record. With one channel, the finished square of colours is turned to grey. Only the necessary rows and
  // columns are decoded. Returns the header of the JPEG file.
  JpegHeader training(std::span<const std::uint8_t> jpeg, const SampleKey& key, std::span<std::uint8_t> out);
  JpegHeader evaluation(std::span<const std::uint8_t> jpeg, std::span<std::uint8_t> out);
  // Does the part of training() after the choice of the crop: torchvision's resized_crop to size x size, then the flip.
  void resized_crop(std::span<const std::uint8_t> jpeg, const CropBox& box, std::span<std::uint8_t> out);
  // Decodes the crop of random_resized_crop, but does not resize or flip. With another augmentation it decodes the
  // whole image. `out` gets the beginnings of the rows; after its last row, its first row is overwritten. Benchmarks
  // use it.
  void decoded_only(std::span<const std::uint8_t> jpeg, const SampleKey& key, std::span<std::uint8_t> out);
  // Do the same as training() and evaluation() for stored pixels u8 [height, width, channels] with 1 or 3 channels.
  void training_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                    std::int64_t channels, const SampleKey& key, std::span<std::uint8_t> out);
  void evaluation_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                      std::int64_t channels, std::span<std::uint8_t> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
