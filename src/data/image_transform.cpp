#include "data/image_transform.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "data/jpeg.h"
#include "data/resize.h"

namespace ringtrain {
namespace {

// Rounds half to even, as Python's round() does.
std::int64_t rounded(double x) {
  return static_cast<std::int64_t>(std::nearbyint(x));
}

// The random numbers of one sample's augmentation. Each has a place of its own, so that it does not depend on the
// number of earlier tries.
class Draws {
 public:
  explicit Draws(const SampleKey& key)
      : key_(random_key(key.seed, RandomPurpose::augmentation)),
        sample_(key.sample_id),
        epoch_(static_cast<std::uint64_t>(key.epoch) << 8) {}
  // Returns a number in [0, 1) with 32 bits, which are enough for all places in an image.
  double operator()(std::uint64_t block, int i) const {
    return static_cast<double>(philox(key_, sample_, epoch_ | block).v[i]) * 0x1.0p-32;
  }
  // Returns an integer from 0 to `most`, uniformly.
  std::int64_t place(std::int64_t most, std::uint64_t block, int i) const {
    return static_cast<std::int64_t>((*this)(block, i) * static_cast<double>(most + 1));
  }

 private:
  std::uint64_t key_, sample_, epoch_;
};

constexpr std::uint64_t kTries = 10, kFlipBlock = 10, kPadBlock = 11;

CropBox random_resized_crop(const ImageTransform& transform, std::int64_t height, std::int64_t width,
                            const Draws& draws) {
  const double area = static_cast<double>(height * width);
  const double ratio_low = std::log(transform.ratio_low), ratio_high = std::log(transform.ratio_high);
  for (std::uint64_t attempt = 0; attempt < kTries; ++attempt) {
    const double share = transform.scale_low + (transform.scale_high - transform.scale_low) * draws(attempt, 0);
    const double aspect = std::exp(ratio_low + (ratio_high - ratio_low) * draws(attempt, 1));
    const std::int64_t w = rounded(std::sqrt(area * share * aspect)), h = rounded(std::sqrt(area * share / aspect));
    if (0 < w && w <= width && 0 < h && h <= height)
      return {draws.place(height - h, attempt, 2), draws.place(width - w, attempt, 3), h, w};
  }
  const double aspect = static_cast<double>(width) / static_cast<double>(height);
  std::int64_t h = height, w = width;
  if (aspect < transform.ratio_low)
    h = rounded(static_cast<double>(width) / transform.ratio_low);
  else if (aspect > transform.ratio_high)
    w = rounded(static_cast<double>(height) * transform.ratio_high);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

// Says how an output is made. The part `source` of the image is resized to height x width. `window` of the result is
// put at row `top` and column `left` of the output. The rest is black. The output may then be mirrored.
struct Cut {
  PixelBox source;
  std::int64_t height = 0, width = 0;
  PixelBox window;
  std::int64_t top = 0, left = 0;
  bool flip = false;
};

// Does torchvision's CenterCrop along one axis: `place` in the output, `start` and `count` in the resized image.
void center(std::int64_t length, std::int64_t size, std::int64_t& place, std::int64_t& start, std::int64_t& count) {
  place = length < size ? (size - length) / 2 : 0;
  start = length < size ? 0 : rounded(static_cast<double>(length - size) / 2.0);
  count = std::min(length, size);
}

Cut evaluation_cut(const ImageTransform& transform, std::int64_t height, std::int64_t width) {
  Cut cut{{0, 0, height, width}, height, width, {}, 0, 0, false};
  if (transform.resize > 0) {
    const std::int64_t shorter = std::min(height, width), longer = std::max(height, width);
    const auto resized =
        static_cast<std::int64_t>(static_cast<double>(transform.resize * longer) / static_cast<double>(shorter));
    cut.height = width <= height ? resized : transform.resize;
    cut.width = width <= height ? transform.resize : resized;
  }
  center(cut.height, transform.size, cut.top, cut.window.top, cut.window.height);
  center(cut.width, transform.size, cut.left, cut.window.left, cut.window.width);
  return cut;
}

// Moves the frame of the output by `by` pixels along one axis. Pixels of the image that are then outside the frame are
// lost.
void shift(std::int64_t by, std::int64_t size, std::int64_t& place, std::int64_t& start, std::int64_t& count) {
  const std::int64_t first = std::max<std::int64_t>(0, place - by), last = std::min(size, place - by + count);
  start += first - (place - by);
  count = std::max<std::int64_t>(0, last - first);
  place = first;
}

Cut training_cut(const ImageTransform& transform, std::int64_t height, std::int64_t width, const SampleKey& key) {
  const CropBox box = training_crop(transform, height, width, key);
  const std::int64_t size = transform.size;
  Cut cut;
  if (transform.augmentation == Augmentation::random_resized_crop) {
    cut = {{box.top, box.left, box.height, box.width}, size, size, {0, 0, size, size}, 0, 0, false};
  } else {
    cut = evaluation_cut(transform, height, width);
    if (transform.augmentation == Augmentation::pad_crop) {
      shift(box.top - transform.pad, size, cut.top, cut.window.top, cut.window.height);
      shift(box.left - transform.pad, size, cut.left, cut.window.left, cut.window.width);
    }
  }
  cut.flip = box.flip;
  return cut;
}

}  // namespace

CropBox training_crop(const ImageTransform& transform, std::int64_t height, std::int64_t width, const SampleKey& key) {
  const Draws draws(key);
  CropBox box{0, 0, height, width};
  if (transform.augmentation == Augmentation::random_resized_crop)
    box = random_resized_crop(transform, height, width, draws);
  else if (transform.augmentation == Augmentation::pad_crop)
    box = {draws.place(2 * transform.pad, kPadBlock, 0), draws.place(2 * transform.pad, kPadBlock, 1), transform.size,
           transform.size};
  box.flip = transform.flip && draws(kFlipBlock, 0) < 0.5;
  return box;
}

struct ImageDecoder::State {
  ImageTransform transform;
  BilinearResizer resizer;
  std::vector<std::uint8_t> rows;     // two rows, for images in memory
  std::vector<std::uint8_t> colours;  // the square before it is turned to grey

  // Calls `write` with room for three channels. If the model sees one channel, turns the result to grey.
  template <class Write>
  void in_channels(std::span<std::uint8_t> out, Write write) {
    if (std::ssize(out) != transform.size * transform.size * transform.channels)
      throw Error(cat("room for ", out.size(), " values was given for an image of ", transform.size, " x ",
                      transform.size, " x ", transform.channels));
    if (transform.channels == 3) return write(out);
    colours.resize(out.size() * 3);
    write(std::span<std::uint8_t>(colours));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = grey_of(colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]);
  }

  // `start(box)` prepares a part of the image, and `read(count)` returns its next one or two rows.
  template <class Start, class Read>
  void write(const Cut& cut, Start start, Read read, std::span<std::uint8_t> out) {
    const std::int64_t size = transform.size;
    if (cut.window.height < size || cut.window.width < size) std::fill(out.begin(), out.end(), std::uint8_t{0});
    if (cut.window.height == 0 || cut.window.width == 0) return;
    const std::int64_t left = cut.flip ? size - cut.left - cut.window.width : cut.left;
    resizer.start({cut.source.height, cut.height, cut.window.top, cut.window.height},
                  {cut.source.width, cut.width, cut.window.left, cut.window.width, cut.flip},
                  out.data() + (cut.top * size + left) * 3, size * 3);
    const ResizeAxis &vertical = resizer.rows(), &horizontal = resizer.columns();
    const std::int64_t height = vertical.end() - vertical.begin();
    start({cut.source.top + vertical.begin(), cut.source.left + horizontal.begin(), height,
           horizontal.end() - horizontal.begin()});
    for (std::int64_t row = 0; row < height; row += 2) {
      const auto [first, second] = read(std::min<std::int64_t>(2, height - row));
      resizer.push(first, second);
    }
  }

  void from_jpeg(JpegReader& reader, const Cut& cut, std::span<std::uint8_t> out) {
    in_channels(out, [&](std::span<std::uint8_t> to) {
      write(
          cut, [&](const PixelBox& box) { reader.start(box, resizer.padding_bytes()); },
          [&](std::int64_t count) { return reader.read(count); }, to);
    });
  }

  // Reads the rows that `cut` needs and copies their beginnings into the rows of `out`. After the last row of `out` it
  // continues with the first.
  void from_jpeg_as_it_is(JpegReader& reader, const Cut& cut, std::span<std::uint8_t> out) {
    const std::int64_t size = transform.size, width = std::min(size, cut.source.width);
    in_channels(out, [&](std::span<std::uint8_t> to) {
      reader.start(cut.source, 0);
      for (std::int64_t row = 0; row < cut.source.height; row += 2) {
        const std::int64_t count = std::min<std::int64_t>(2, cut.source.height - row);
        const auto [first, second] = reader.read(count);
        std::copy_n(first, width * 3, to.data() + row % size * size * 3);
        if (count > 1) std::copy_n(second, width * 3, to.data() + (row + 1) % size * size * 3);
      }
    });
  }

  void from_pixels(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width, std::int64_t channels,
                   const Cut& cut, std::span<std::uint8_t> out) {
    if ((channels != 1 && channels != 3) || std::ssize(pixels) != height * width * channels)
      throw Error(cat("an image of ", height, " x ", width, " x ", channels, " with ", pixels.size(),
                      " values; 1 or 3 channels and all their values were expected"));
    PixelBox box;
    std::int64_t next = 0, stride = 0;
    const auto start = [&](const PixelBox& wanted) {
      box = wanted;
      next = box.top;
      stride = box.width * 3 + resizer.padding_bytes();
      rows.resize(static_cast<std::size_t>(stride * 2));
    };
    const auto read = [&](std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, ++next)
        copy_rgb(pixels.data() + (next * width + box.left) * channels, channels, box.width, rows.data() + i * stride);
      return JpegReader::Rows{rows.data(), count > 1 ? rows.data() + stride : nullptr};
    };
    in_channels(out, [&](std::span<std::uint8_t> to) { write(cut, start, read, to); });
  }
};

ImageDecoder::ImageDecoder(const ImageTransform& transform) : state_(std::make_unique<State>()) {
  if (transform.size < 1 || (transform.channels != 1 && transform.channels != 3) || transform.resize < 0 ||
      transform.pad < 0 || !(transform.scale_low > 0) || !(transform.scale_low <= transform.scale_high) ||
      !(transform.ratio_low > 0) || !(transform.ratio_low <= transform.ratio_high))
    throw Error(
        "an image transform needs size >= 1, 1 or 3 channels, resize >= 0, pad >= 0, 0 < scale_low <= scale_high and "
        "0 < ratio_low <= ratio_high");
  state_->transform = transform;
}

ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;

JpegHeader ImageDecoder::training(std::span<const std::uint8_t> jpeg, const SampleKey& key,
                                  std::span<std::uint8_t> out) {
  JpegReader reader(jpeg);
  const JpegHeader& header = reader.header();
  state_->from_jpeg(reader, training_cut(state_->transform, header.height, header.width, key), out);
  return header;
}

void ImageDecoder::decoded_only(std::span<const std::uint8_t> jpeg, const SampleKey& key, std::span<std::uint8_t> out) {
  JpegReader reader(jpeg);
  const JpegHeader& header = reader.header();
  state_->from_jpeg_as_it_is(reader, training_cut(state_->transform, header.height, header.width, key), out);
}

JpegHeader ImageDecoder::evaluation(std::span<const std::uint8_t> jpeg, std::span<std::uint8_t> out) {
  JpegReader reader(jpeg);
  const JpegHeader& header = reader.header();
  state_->from_jpeg(reader, evaluation_cut(state_->transform, header.height, header.width), out);
  return header;
}

void ImageDecoder::resized_crop(std::span<const std::uint8_t> jpeg, const CropBox& box, std::span<std::uint8_t> out) {
  JpegReader reader(jpeg);
  const JpegHeader& header = reader.header();
  if (box.top < 0 || box.left < 0 || box.height < 1 || box.width < 1 || box.top + box.height > header.height ||
      box.left + box.width > header.width)
    throw Error(cat("a crop of ", box.height, " x ", box.width, " at row ", box.top, ", column ", box.left,
                    " does not lie in an image of ", header.height, " x ", header.width));
  const std::int64_t size = state_->transform.size;
  state_->from_jpeg(reader,
                    {{box.top, box.left, box.height, box.width}, size, size, {0, 0, size, size}, 0, 0, box.flip}, out);
}

void ImageDecoder::training_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                                std::int64_t channels, const SampleKey& key, std::span<std::uint8_t> out) {
  state_->from_pixels(pixels, height, width, channels, training_cut(state_->transform, height, width, key), out);
}

void ImageDecoder::evaluation_raw(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                                  std::int64_t channels, std::span<std::uint8_t> out) {
  state_->from_pixels(pixels, height, width, channels, evaluation_cut(state_->transform, height, width), out);
}

}  // namespace ringtrain
