#include "data/image_transform.h"

#include <cmath>
#include <map>

#include "base/hash.h"
#include "data/jpeg.h"
#include "image_files.h"
#include "with_folder.h"

namespace ringtrain {
namespace {

ImageTransform transform_of(std::int64_t size, std::int64_t resize, Augmentation augmentation) {
  ImageTransform transform;
  transform.size = size;
  transform.resize = resize;
  transform.augmentation = augmentation;
  return transform;
}

Bytes room(const ImageTransform& transform) {
  return Bytes(static_cast<std::size_t>(transform.size * transform.size * transform.channels), std::uint8_t{77});
}

Bytes mirrored(const Bytes& square, std::int64_t size) {
  Bytes result(square.size());
  for (std::int64_t y = 0; y < size; ++y)
    for (std::int64_t x = 0; x < size; ++x)
      std::copy_n(square.begin() + (y * size + x) * 3, 3, result.begin() + (y * size + size - 1 - x) * 3);
  return result;
}

TEST(ImageDecoder, ResizedCropsEqualTorchvisions) {
  std::int64_t compared = 0;
  for (const nlohmann::json& file : golden_images("good")) {
    SCOPED_TRACE(file.at("name").get<std::string>());
    const Bytes bytes = golden_image(file.at("name"));
    for (const nlohmann::json& crop : file.at("resized_crops")) {
      const ImageTransform transform = transform_of(crop.at("size"), 0, Augmentation::random_resized_crop);
      ImageDecoder decoder(transform);
      Bytes out = room(transform);
      decoder.resized_crop(
          bytes, {crop.at("top"), crop.at("left"), crop.at("height"), crop.at("width"), crop.at("flip")}, out);
      EXPECT_EQ(crc32c(out), crop.at("crc32c")) << crop;
      ++compared;
    }
  }
  EXPECT_GE(compared, 250);
}

TEST(ImageDecoder, EvaluationEqualsTorchvisions) {
  for (const nlohmann::json& file : golden_images("good")) {
    SCOPED_TRACE(file.at("name").get<std::string>());
    const Bytes bytes = golden_image(file.at("name"));
    const Image image = decode_jpeg(bytes);
    for (const nlohmann::json& evaluation : file.at("evaluations")) {
      const ImageTransform transform =
          transform_of(evaluation.at("size"), evaluation.at("resize"), Augmentation::random_resized_crop);
      ImageDecoder decoder(transform);
      Bytes out = room(transform), raw = room(transform);
      decoder.evaluation(bytes, out);
      EXPECT_EQ(crc32c(out), evaluation.at("crc32c")) << evaluation;
      decoder.evaluation_raw(image.pixels, image.height, image.width, 3, raw);
      EXPECT_EQ(raw, out) << evaluation;
    }
  }
}

TEST(ImageDecoder, TrainingIsTheCropOfItsKeyResizedAndMirrored) {
  const ImageTransform transform = transform_of(40, 0, Augmentation::random_resized_crop);
  for (const char* name : {"420", "grey", "cmyk", "2400_wide"}) {
    const Bytes bytes = golden_image(name);
    const Image image = decode_jpeg(bytes);
    ImageDecoder decoder(transform);
    for (std::uint64_t sample = 0; sample < 20; ++sample) {
      const SampleKey key{5, 2, sample};
      CropBox box = training_crop(transform, image.height, image.width, key);
      Bytes out = room(transform), raw = room(transform), expected = room(transform);
      decoder.training(bytes, key, out);
      decoder.training_raw(image.pixels, image.height, image.width, 3, key, raw);
      const bool flip = std::exchange(box.flip, false);
      decoder.resized_crop(bytes, box, expected);
      EXPECT_EQ(out, flip ? mirrored(expected, 40) : expected);
      EXPECT_EQ(raw, out);
    }
  }
}

TEST(ImageDecoder, TrainingWithoutAugmentationIsEvaluationMirroredOrNot) {
  ImageTransform transform = transform_of(32, 37, Augmentation::none);
  const Bytes bytes = golden_image("422");
  ImageDecoder decoder(transform);
  Bytes straight = room(transform), out = room(transform);
  decoder.evaluation(bytes, straight);
  std::map<bool, int> flips;
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    const bool flip = training_crop(transform, 101, 150, {1, 0, sample}).flip;
    decoder.training(bytes, {1, 0, sample}, out);
    EXPECT_EQ(out, flip ? mirrored(straight, 32) : straight);
    ++flips[flip];
  }
  EXPECT_GT(flips[true], 10);
  EXPECT_GT(flips[false], 10);
  transform.flip = false;
  for (std::uint64_t sample = 0; sample < 50; ++sample)
    EXPECT_FALSE(training_crop(transform, 101, 150, {1, 0, sample}).flip);
}

// Computes pad_crop by its definition: the image of size x size gets a black border, then the crop is taken.
Bytes padded_crop(const Bytes& square, std::int64_t size, std::int64_t pad, const CropBox& box) {
  Bytes out(square.size(), 0);
  for (std::int64_t y = 0; y < size; ++y) {
    for (std::int64_t x = 0; x < size; ++x) {
      const std::int64_t from_y = box.top + y - pad, from_x = box.left + x - pad;
      if (from_y < 0 || from_y >= size || from_x < 0 || from_x >= size) continue;
      std::copy_n(square.begin() + (from_y * size + from_x) * 3, 3, out.begin() + (y * size + x) * 3);
    }
  }
  return box.flip ? mirrored(out, size) : out;
}

TEST(ImageDecoder, PadCropIsARandomCropOfThePaddedSquare) {
  for (const std::int64_t pad : {0, 4, 40}) {
    for (const std::int64_t channels : {1, 3}) {
      ImageTransform transform = transform_of(32, 0, Augmentation::pad_crop);
      transform.pad = pad;
      Bytes pixels(static_cast<std::size_t>(32 * 32 * channels));
      for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(1 + i * 7 % 255);
      Bytes square;
      for (const std::uint8_t value : pixels)
        for (std::int64_t c = 0; c < 3 / channels; ++c) square.push_back(value);
      ImageDecoder decoder(transform);
      std::map<std::int64_t, int> tops;
      for (std::uint64_t sample = 0; sample < 300; ++sample) {
        const CropBox box = training_crop(transform, 32, 32, {1, 3, sample});
        Bytes out = room(transform);
        decoder.training_raw(pixels, 32, 32, channels, {1, 3, sample}, out);
        ASSERT_EQ(out, padded_crop(square, 32, pad, box)) << box.top << ", " << box.left;
        ++tops[box.top];
      }
      if (pad < 40) {
        EXPECT_EQ(std::ssize(tops), 2 * pad + 1);
      }
      EXPECT_GE(tops.begin()->first, 0);
      EXPECT_LE(tops.rbegin()->first, 2 * pad);
    }
  }
}

TEST(ImageDecoder, PadCropOfOtherSizesStartsFromTheEvaluationImage) {
  for (const std::int64_t size : {32, 120}) {  // 120: the central crop has padded the image
    ImageTransform transform = transform_of(size, size == 32 ? 36 : 0, Augmentation::pad_crop);
    const Bytes bytes = golden_image("420");
    ImageDecoder decoder(transform);
    Bytes square = room(transform), out = room(transform);
    decoder.evaluation(bytes, square);
    for (std::uint64_t sample = 0; sample < 30; ++sample) {
      const CropBox box = training_crop(transform, 101, 150, {1, 0, sample});
      decoder.training(bytes, {1, 0, sample}, out);
      ASSERT_EQ(out, padded_crop(square, size, transform.pad, box));
    }
  }
}

TEST(ImageDecoder, PhotographsDecodedInPartEqualPhotographsDecodedWhole) {
  const auto paths = sample_photographs();
  if (paths.empty()) GTEST_SKIP() << "no ../shared/data/imagenet-samples";
  const ImageTransform transform = transform_of(224, 256, Augmentation::random_resized_crop);
  ImageDecoder decoder(transform);
  for (std::size_t i = 3; i < paths.size(); i += 12) {
    SCOPED_TRACE(paths[i].filename());
    const Bytes bytes = read_file(paths[i]);
    const Image whole = decode_jpeg(bytes);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      Bytes part = room(transform), raw = room(transform);
      decoder.training(bytes, {1, epoch, i}, part);
      decoder.training_raw(whole.pixels, whole.height, whole.width, 3, {1, epoch, i}, raw);
      ASSERT_EQ(part, raw);
      if (epoch > 0) continue;
      decoder.evaluation(bytes, part);
      decoder.evaluation_raw(whole.pixels, whole.height, whole.width, 3, raw);
      ASSERT_EQ(part, raw);
    }
  }
}

TEST(TrainingCrop, DependsOnSeedEpochAndSampleAlone) {
  const ImageTransform transform;
  const SampleKey key{7, 3, 1234};
  const CropBox box = training_crop(transform, 375, 500, key);
  training_crop(transform, 100, 100, {1, 1, 1});
  EXPECT_EQ(training_crop(transform, 375, 500, key), box);
  EXPECT_NE(training_crop(transform, 375, 500, {8, 3, 1234}), box);
  EXPECT_NE(training_crop(transform, 375, 500, {7, 4, 1234}), box);
  EXPECT_NE(training_crop(transform, 375, 500, {7, 3, 1235}), box);
}

TEST(TrainingCrop, StaysTheSameAcrossVersions) {  // resumed runs need the same crops
  const CropBox box = training_crop(ImageTransform{}, 375, 500, {1, 0, 0});
  EXPECT_EQ(box, (CropBox{44, 108, 318, 392, true}));
}

TEST(TrainingCrop, SharesRatiosAndPlacesAreDistributedAsTorchvisionSays) {
  const ImageTransform transform;
  constexpr std::int64_t height = 1000, width = 1000, samples = 20000;
  double share_sum = 0, log_ratio_sum = 0, place_sum = 0, flips = 0;
  std::int64_t small_shares = 0, placed = 0;
  for (std::uint64_t sample = 0; sample < samples; ++sample) {
    const CropBox box = training_crop(transform, height, width, {3, 0, sample});
    ASSERT_GE(box.top, 0);
    ASSERT_GE(box.left, 0);
    ASSERT_LE(box.top + box.height, height);
    ASSERT_LE(box.left + box.width, width);
    const double share = static_cast<double>(box.height * box.width) / (height * width);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    ASSERT_GT(share, 0.0795);
    ASSERT_LE(share, 1);
    ASSERT_GT(ratio, 0.745);
    ASSERT_LT(ratio, 1.34);
    share_sum += share;
    small_shares += share < 0.4;
    log_ratio_sum += std::log(ratio);
    flips += box.flip;
    if (box.height < height) {
      place_sum += static_cast<double>(box.top) / static_cast<double>(height - box.height);
      ++placed;
    }
  }
  // Large shares with long ratios do not fit and are drawn again. The expected means are torchvision's over 60,000
  // draws.
  EXPECT_NEAR(share_sum / samples, 0.4778, 0.008);
  EXPECT_NEAR(static_cast<double>(small_shares) / samples, 0.4045, 0.014);
  EXPECT_NEAR(log_ratio_sum / samples, 0.0, 0.005);
  EXPECT_NEAR(place_sum / static_cast<double>(placed), 0.5, 0.009);
  EXPECT_NEAR(flips / samples, 0.5, 0.012);
}

TEST(TrainingCrop, EveryPlaceIsEquallyLikely) {
  ImageTransform transform;
  transform.scale_low = transform.scale_high = 0.25;
  transform.ratio_low = transform.ratio_high = 1;
  std::map<std::pair<std::int64_t, std::int64_t>, int> places;  // a 4 x 4 crop of 8 x 8 has 5 x 5 places
  for (std::uint64_t sample = 0; sample < 25000; ++sample) {
    const CropBox box = training_crop(transform, 8, 8, {1, 0, sample});
    ASSERT_EQ(box.height, 4);
    ASSERT_EQ(box.width, 4);
    ++places[{box.top, box.left}];
  }
  EXPECT_EQ(places.size(), 25u);
  for (const auto& [place, count] : places) EXPECT_NEAR(count, 1000, 160);
}

TEST(TrainingCrop, FallsBackToTorchvisionsCentralCrop) {
  for (const nlohmann::json& c : golden_images("fallback_crops")) {
    ImageTransform transform;
    transform.scale_low = c.at("scale").at(0);
    transform.scale_high = c.at("scale").at(1);
    transform.ratio_low = c.at("ratio").at(0);
    transform.ratio_high = c.at("ratio").at(1);
    transform.flip = false;
    const CropBox expected{c.at("box").at(0), c.at("box").at(1), c.at("box").at(2), c.at("box").at(3), false};
    for (std::uint64_t sample = 0; sample < 50; ++sample)
      EXPECT_EQ(training_crop(transform, c.at("height"), c.at("width"), {1, 0, sample}), expected) << c;
  }
}

// The values of Pillow's convert("L").
TEST(ImageDecoder, GreyIsThatOfPillow) {
  EXPECT_EQ(grey_of(255, 0, 0), 76);
  EXPECT_EQ(grey_of(0, 255, 0), 150);
  EXPECT_EQ(grey_of(0, 0, 255), 29);
  EXPECT_EQ(grey_of(12, 200, 99), 132);
  for (int value = 0; value < 256; ++value) {
    const auto v = static_cast<std::uint8_t>(value);
    EXPECT_EQ(grey_of(v, v, v), v);
  }
}

// With one channel, the result is the grey form of the result with three, cut and mirrored alike.
TEST(ImageDecoder, OneChannelIsTheGreyOfThree) {
  const Bytes jpeg = golden_image(golden_images("good").at(0).at("name"));
  const Image whole = decode_jpeg(jpeg);
  for (const Augmentation augmentation :
       {Augmentation::none, Augmentation::random_resized_crop, Augmentation::pad_crop}) {
    ImageTransform transform = transform_of(24, 30, augmentation);
    ImageDecoder colour(transform);
    Bytes colours = room(transform), of_pixels = colours;
    transform.channels = 1;
    ImageDecoder grey(transform);
    Bytes greys = room(transform), of_grey_pixels = greys;
    const auto expect_grey = [&](const Bytes& from, const Bytes& to) {
      for (std::size_t i = 0; i < to.size(); ++i)
        ASSERT_EQ(to[i], grey_of(from[3 * i], from[3 * i + 1], from[3 * i + 2])) << i;
    };
    for (std::uint64_t id = 0; id < 4; ++id) {
      const SampleKey key{7, 1, id};
      colour.training(jpeg, key, colours);
      grey.training(jpeg, key, greys);
      expect_grey(colours, greys);
      grey.training_raw(whole.pixels, whole.height, whole.width, 3, key, of_grey_pixels);
      colour.training_raw(whole.pixels, whole.height, whole.width, 3, key, of_pixels);
      expect_grey(of_pixels, of_grey_pixels);
    }
    colour.evaluation(jpeg, colours);
    grey.evaluation(jpeg, greys);
    expect_grey(colours, greys);
  }
}

// Stored grey pixels of the model's size reach the model as they are.
TEST(ImageDecoder, GreyPixelsAreUnchanged) {
  ImageTransform transform = transform_of(8, 0, Augmentation::none);
  transform.channels = 1;
  transform.flip = false;
  Bytes pixels(64), out = room(transform);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(4 * i + 1);
  ImageDecoder decoder(transform);
  decoder.evaluation_raw(pixels, 8, 8, 1, out);
  EXPECT_EQ(out, pixels);
  decoder.training_raw(pixels, 8, 8, 1, {1, 0, 5}, out);
  EXPECT_EQ(out, pixels);
}

TEST(ImageDecoder, SaysWhatIsWrong) {
  const ImageTransform transform = transform_of(16, 20, Augmentation::random_resized_crop);
  ImageDecoder decoder(transform);
  Bytes out = room(transform);
  expect_contains(message_of([&] { decoder.training(golden_image("png"), {}, out); }), "Not a JPEG file");
  expect_contains(message_of([&] { decoder.evaluation(golden_image("truncated"), out); }),
                  "Premature end of JPEG file");
  expect_contains(message_of([&] {
                    decoder.resized_crop(golden_image("420"), {90, 0, 20, 20, false}, out);
                  }),
                  "a crop of 20 x 20 at row 90, column 0 does not lie in an image of 101 x 150");
  expect_contains(message_of([&] { decoder.evaluation_raw(Bytes(11), 2, 2, 3, out); }), "2 x 2 x 3 with 11 values");
  expect_contains(message_of([&] { decoder.training(golden_image("420"), {}, std::span(out).first(5)); }),
                  "room for 5 values");
  expect_contains(message_of([] { ImageDecoder(transform_of(0, 0, Augmentation::none)); }), "size >= 1");
  // The decoder still works after these errors.
  decoder.training(golden_image("420"), {}, out);
}

}  // namespace
}  // namespace ringtrain
