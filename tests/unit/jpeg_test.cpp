#include "data/jpeg.h"

#include "base/hash.h"
#include "before_guard_page.h"
#include "data/resize.h"
#include "image_files.h"
#include "with_folder.h"

namespace ringtrain {
namespace {

TEST(Jpeg, HeaderAndPixelsEqualPillowsForEveryKindOfFile) {
  const nlohmann::json good = golden_images("good");
  ASSERT_GE(good.size(), 25u);
  for (const nlohmann::json& file : good) {
    SCOPED_TRACE(file.at("name").get<std::string>());
    const Bytes bytes = golden_image(file.at("name"));
    const JpegHeader header = read_jpeg_header(bytes);
    EXPECT_EQ(header.height, file.at("height"));
    EXPECT_EQ(header.width, file.at("width"));
    const std::string mode = file.at("mode");
    EXPECT_EQ(header.components, mode == "L" ? 1 : mode == "RGB" ? 3 : 4);
    const Image image = decode_jpeg(bytes);
    EXPECT_EQ(image.height, file.at("height"));
    EXPECT_EQ(image.width, file.at("width"));
    EXPECT_EQ(image.channels, 3);
    EXPECT_EQ(crc32c(image.pixels), file.at("crc32c"));
  }
}

TEST(Jpeg, EncodedBytesEqualPillows) {
  for (const nlohmann::json& file : golden_images("good")) {
    SCOPED_TRACE(file.at("name").get<std::string>());
    EXPECT_EQ(crc32c(encode_jpeg(decode_jpeg(golden_image(file.at("name"))), 85)),
              file.at("encoded_quality_85_crc32c"));
  }
}

TEST(Jpeg, GreyImagesAreEncodedWithOneComponent) {
  Image grey{9, 11, 1, Bytes(99)};
  for (std::size_t i = 0; i < 99; ++i) grey.pixels[i] = static_cast<std::uint8_t>(i * 2);
  const Bytes bytes = encode_jpeg(grey, 100);
  EXPECT_EQ(read_jpeg_header(bytes).components, 1);
  const Image back = decode_jpeg(bytes);
  for (std::size_t i = 0; i < 99; ++i) EXPECT_NEAR(back.pixels[i * 3], grey.pixels[i], 3);
}

TEST(Jpeg, ResizedPixelsEqualPillows) {
  for (const nlohmann::json& file : golden_images("good")) {
    SCOPED_TRACE(file.at("name").get<std::string>());
    const Image image = decode_jpeg(golden_image(file.at("name")));
    for (const nlohmann::json& size : file.at("resizes"))
      EXPECT_EQ(crc32c(resize_bilinear(image, size.at("height"), size.at("width")).pixels), size.at("crc32c")) << size;
  }
}

TEST(Jpeg, ResizingGreyEqualsResizingItAsColour) {
  const Image colour = decode_jpeg(golden_image("grey"));
  Image grey{colour.height, colour.width, 1, Bytes(colour.pixels.size() / 3)};
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) grey.pixels[i] = colour.pixels[i * 3];
  const Image a = resize_bilinear(colour, 40, 51), b = resize_bilinear(grey, 40, 51);
  ASSERT_EQ(b.channels, 1);
  for (std::size_t i = 0; i < b.pixels.size(); ++i) ASSERT_EQ(a.pixels[i * 3], b.pixels[i]);
}

TEST(BilinearResizer, TheProcessorsKernelsEqualThePortableOnes) {
  const Image image = decode_jpeg(golden_image("444"));
  for (const auto& [rows, columns] : std::vector<std::pair<AxisWindow, AxisWindow>>{
           {{101, 64, 3, 50, false}, {150, 64, 0, 64, true}},     // columns first
           {{101, 20, 0, 20, false}, {150, 149, 2, 141, false}},  // rows first
           {{101, 20, 1, 19, false}, {150, 211, 7, 33, true}},
           {{101, 224, 0, 224, false}, {150, 224, 0, 224, false}},
           {{101, 5, 0, 5, false}, {150, 7, 0, 7, false}},
           {{101, 101, 0, 1, false}, {150, 150, 149, 1, false}}}) {
    Bytes results[2];
    for (const bool portable : {false, true}) {
      Bytes& out = results[portable];
      out.resize(static_cast<std::size_t>(rows.count * columns.count * 3));
      BilinearResizer resizer(portable);
      resizer.start(rows, columns, out.data(), columns.count * 3);
      Bytes row(static_cast<std::size_t>(150 * 3 + resizer.padding_bytes()));
      for (std::int64_t y = resizer.rows().begin(); y < resizer.rows().end(); ++y) {
        const auto first = image.pixels.begin() + (y * 150 + resizer.columns().begin()) * 3;
        std::copy(first, image.pixels.begin() + (y + 1) * 150 * 3, row.begin());
        resizer.push(row.data(), nullptr);
      }
    }
    EXPECT_EQ(results[0], results[1]) << rows.out << " x " << columns.out;
  }
}

// Returns whether JpegReader gives the rows of the image.
::testing::AssertionResult reads(const Bytes& bytes, const Image& whole, const PixelBox& box) {
  JpegReader reader(bytes);
  reader.start(box, 7);
  for (std::int64_t row = 0; row < box.height; row += 2) {
    const auto [first, second] = reader.read(std::min<std::int64_t>(2, box.height - row));
    const std::uint8_t* rows[] = {first, second};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(2, box.height - row); ++i) {
      const std::uint8_t* expected = whole.pixels.data() + ((box.top + row + i) * whole.width + box.left) * 3;
      if (!std::equal(expected, expected + box.width * 3, rows[i]))
        return ::testing::AssertionFailure() << "row " << row + i << " of " << box.height << " x " << box.width
                                             << " at " << box.top << ", " << box.left;
    }
  }
  return ::testing::AssertionSuccess();
}

// Returns a random number below `count`. It is good enough to choose boxes.
std::int64_t below(std::int64_t count, std::uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(count));
}

PixelBox random_box(const Image& image, std::uint64_t& state) {
  PixelBox box;
  box.height = 1 + below(below(2, state) ? image.height : std::min<std::int64_t>(20, image.height), state);
  box.width = 1 + below(below(2, state) ? image.width : std::min<std::int64_t>(20, image.width), state);
  box.top = below(image.height - box.height + 1, state);
  box.left = below(image.width - box.width + 1, state);
  return box;
}

TEST(JpegReader, DecodesAnyPartAsItIsInTheWholeImage) {
  std::uint64_t state = 1;
  std::vector<std::string> names = golden_images("unfinished");
  ASSERT_EQ(names.size(), 2u);
  for (const nlohmann::json& file : golden_images("good")) names.push_back(file.at("name"));
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Bytes bytes = golden_image(name);
    const Image whole = decode_jpeg(bytes);
    for (int i = 0; i < 150; ++i) ASSERT_TRUE(reads(bytes, whole, random_box(whole, state)));
  }
}

TEST(JpegReader, DecodesEveryRowAndColumnOffsetExactly) {
  for (const char* name : {"420", "440", "411", "422", "mixed_sampling", "progressive_420", "420_scan_per_component"}) {
    SCOPED_TRACE(name);
    const Bytes bytes = golden_image(name);
    const Image whole = decode_jpeg(bytes);
    for (std::int64_t top = 0; top < whole.height; ++top) {
      const std::int64_t left = top * whole.width / whole.height;
      ASSERT_TRUE(reads(bytes, whole, {top, left, 1 + (whole.height - top - 1) % 18, 1 + top % 2}));
      ASSERT_TRUE(reads(bytes, whole, {top, 0, whole.height - top, left + 1}));
      ASSERT_TRUE(reads(bytes, whole, {top, 0, 1, 1}));
      ASSERT_TRUE(reads(bytes, whole, {top, whole.width - 1, 1, 1}));
    }
  }
}

TEST(JpegReader, DecodesAnyPartOfPhotographs) {
  const auto paths = sample_photographs();
  if (paths.empty()) GTEST_SKIP() << "no ../shared/data/imagenet-samples";
  std::uint64_t state = 2;
  for (std::size_t i = 0; i < paths.size(); i += 8) {
    SCOPED_TRACE(paths[i].filename());
    const Bytes bytes = read_file(paths[i]);
    const Image whole = decode_jpeg(bytes);
    for (int box = 0; box < 8; ++box) ASSERT_TRUE(reads(bytes, whole, random_box(whole, state)));
  }
}

TEST(Jpeg, BrokenFilesSayWhy) {
  const std::vector<std::pair<std::string, std::string>> reasons = {
      {"truncated", "libjpeg: Premature end of JPEG file"},
      {"truncated_header", "libjpeg: Premature end of JPEG file"},
      {"truncated_progressive", "libjpeg: Premature end of JPEG file"},
      {"corrupt", "libjpeg: Corrupt JPEG data: premature end of data segment"},
      {"corrupt_restarts", "libjpeg: Corrupt JPEG data: found marker 0xd5 instead of RST2"},
      {"png", "libjpeg: Not a JPEG file: starts with 0x89 0x50"},
      {"empty", "libjpeg: Empty input file"},
      {"not_a_image", "libjpeg: Not a JPEG file: starts with 0x54 0x68"},
      {"huge", "the JPEG claims to have 65280 x 65280 pixels; at most 268435456 are read"}};
  EXPECT_EQ(golden_images("broken").size(), reasons.size());
  for (const auto& [name, reason] : reasons) {
    SCOPED_TRACE(name);
    const Bytes bytes = golden_image(name);
    expect_contains(message_of([&] { decode_jpeg(bytes); }), reason);
  }
}

TEST(Jpeg, EveryTruncationIsAnErrorAndNothingIsReadBehindIt) {
  for (const char* name : {"420", "progressive_444", "cmyk", "420_restarts"}) {
    const Bytes bytes = golden_image(name);
    EXPECT_EQ(decode_jpeg(BeforeGuardPage(bytes).bytes()).pixels, decode_jpeg(bytes).pixels) << name;
    for (std::size_t size = 0; size < bytes.size(); size += 61) {
      const BeforeGuardPage part(std::span<const std::uint8_t>(bytes).first(size));
      EXPECT_THROW(decode_jpeg(part.bytes()), Error) << name << " cut to " << size;
    }
    Bytes endless(bytes.begin(), bytes.end() - 2);
    EXPECT_THROW(decode_jpeg(BeforeGuardPage(endless).bytes()), Error) << name << " without its end marker";
    endless.resize(bytes.size() + 40, 0);
    EXPECT_THROW(decode_jpeg(BeforeGuardPage(endless).bytes()), Error) << name << " with zeros for its end marker";
  }
}

TEST(Jpeg, FlippedBitsNeverCrash) {
  std::uint64_t state = 3;
  for (const char* name : {"420", "progressive_420", "ycck", "411", "420_scan_per_component"}) {
    const Bytes bytes = golden_image(name);
    for (int i = 0; i < 100; ++i) {
      Bytes damaged = bytes;
      for (int bit = 0; bit < 4; ++bit)
        damaged[static_cast<std::size_t>(below(std::ssize(bytes), state))] ^=
            static_cast<std::uint8_t>(1 << below(8, state));
      const BeforeGuardPage guarded(damaged);
      try {
        JpegReader reader(guarded.bytes());
        const std::int64_t height = reader.header().height, width = reader.header().width;
        if (height * width > 1 << 20) continue;
        const std::int64_t top = height / 3, left = width / 3;
        reader.start({top, left, height - top, width - left}, 0);
        for (std::int64_t row = top; row < height; ++row) reader.read(1);
      } catch (const Error&) {
      }
    }
  }
}

TEST(Jpeg, BadArgumentsAreErrors) {
  const Image image = decode_jpeg(golden_image("5x3"));
  expect_contains(message_of([&] { encode_jpeg(image, 0); }), "JPEG quality 0 is not in 1 ... 100");
  expect_contains(message_of([&] { encode_jpeg({2, 2, 3, Bytes(11)}, 90); }), "2 x 2 x 3 with 11 values");
  expect_contains(message_of([&] { resize_bilinear(image, 0, 4); }), "cannot be resized to 0 x 4");
}

}  // namespace
}  // namespace ringtrain
