// From one stored image to the square of pixels that a model sees: torchvision's transforms, bit for bit, but with
// random numbers that are a function of (seed, epoch, sample id) alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace ringtrain {

enum class Augmentation { none, random_resized_crop, pad_crop };

struct ImageTransform {
  std::int64_t size = 224;  // of the result: u8 [size, size, 3]
  // Evaluation, and training with Augmentation::none: the short side is resized to this (the long side truncated as
  // torchvision's Resize does), then the central size x size is cut out (CenterCrop, offsets rounded half to even).
  // 0: no resizing.
  std::int64_t resize = 256;
  Augmentation augmentation = Augmentation::random_resized_crop;  // of training
  double scale_low = 0.08, scale_high = 1;                        // random_resized_crop: share of the area
  double ratio_low = 3.0 / 4, ratio_high = 4.0 / 3;               // width / height, log-uniform
  std::int64_t pad = 4;  // pad_crop: black pixels on all sides of the size x size image (resized as above), then a
                         // random size x size
  bool flip = true;      // horizontally, probability 1/2
};

// Where a training sample is cut out; a pure function of its arguments.
struct CropBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
  bool flip = false;
  bool operator==(const CropBox&) const = default;
};

// The numbers of one sample's augmentation.
struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::uint64_t sample_id = 0;
};

// torchvision's RandomResizedCrop.get_params on a height x width image (10 tries, then the central crop) followed by
// RandomHorizontalFlip; pad_crop: RandomCrop(size, padding) of a size x size image.
CropBox training_crop(const ImageTransform& transform, std::int64_t height, std::int64_t width, const SampleKey& key);

// One per thread: it keeps libjpeg's state and its scratch memory.
class ImageDecoder {
 public:
  explicit ImageDecoder(const ImageTransform& transform);
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  // `out`: u8 [size, size, 3]. Throws Error saying what is wrong with the image (the caller adds file and record).
  // JPEG: grey is repeated to three channels; only the rows and columns that are needed are decoded.
  void training(std::span<const std::uint8_t> jpeg, const SampleKey& key, std::span<std::uint8_t> out);
  void evaluation(std::span<const std::uint8_t> jpeg, std::span<std::uint8_t> out);
  // torchvision's resized_crop to size x size at a given place, then the mirror: what training() does.
  void resized_crop(std::span<const std::uint8_t> jpeg, const CropBox& box, std::span<std::uint8_t> out);
  // For benchmarks: decodes what training() does, and neither resizes nor mirrors it: `out` is filled with the rows'
  // beginnings.
  void decoded_only(std::span<const std::uint8_t> jpeg, const SampleKey& key, std::span<std::uint8_t> out);
  // The same on stored pixels u8 [height, width, channels]; channels 1 or 3.
  void training_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                    std::int64_t channels, const SampleKey& key, std::span<std::uint8_t> out);
  void evaluation_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                      std::int64_t channels, std::span<std::uint8_t> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
