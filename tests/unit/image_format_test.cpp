// Tests the kinds of files that the converter of images reads: JPEG with and without damage, CMYK, PNG and tar.
#include <gtest/gtest.h>
#include <sys/resource.h>
// clang-format off: each of these needs the one before
#include <jpeglib.h>

#include <cstdio>
// clang-format on

#include <cstdlib>
#include <cstring>

#include "data_prep/images/file_tree.h"
#include "data_prep/images/formats.h"
#include "data_prep/images/tar.h"
#include "tests/unit/image_folder.h"
#include "tests/unit/png_file.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

class ImageFormat : public ImageFolder {};
class JpegCheck : public testing::Test {};
class Tar : public ImageFolder {};

// Encodes images that the program's own encoder cannot write: 4 components as Photoshop writes them, or progressive.
Bytes jpeg_of(const Image& image, J_COLOR_SPACE space, bool progressive) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (std::int64_t y = 0; y < image.height; ++y) {
    auto* row = const_cast<JSAMPLE*>(image.pixels.data()) + y * image.width * image.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes bytes(out, out + size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return bytes;
}

// Returns a grey JPEG with this number of scans, at most 704: each of 64 coefficients has a scan for each of its 11
// bits.
Bytes jpeg_of_scans(int count) {
  std::vector<jpeg_scan_info> scans;
  for (int coefficient = 0; coefficient < DCTSIZE2; ++coefficient)
    for (int bit = 10; bit >= 0 && std::ssize(scans) < count; --bit)
      scans.push_back({.comps_in_scan = 1,
                       .component_index = {0},
                       .Ss = coefficient,
                       .Se = coefficient,
                       .Ah = bit == 10 ? 0 : bit + 1,
                       .Al = bit});
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &out, &size);
  info.image_width = info.image_height = DCTSIZE;
  info.input_components = 1;
  info.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&info);
  info.scan_info = scans.data();
  info.num_scans = count;
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < DCTSIZE; ++y) {
    JSAMPLE pixels[DCTSIZE];
    for (int x = 0; x < DCTSIZE; ++x) pixels[x] = static_cast<JSAMPLE>(17 * x + 11 * y);
    JSAMPLE* row = pixels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  Bytes bytes(out, out + size);
  jpeg_destroy_compress(&info);
  std::free(out);
  return bytes;
}

template <class Action>
bool throws(const Action& action) {
  return message_of(action) != "(no error)";
}

TEST_F(JpegCheck, FindsTheSameDamageAsDecodingDoes) {
  int damaged = 0, harmless = 0;
  for (const bool progressive : {false, true}) {
    const Bytes good = jpeg_of(test_image(33, 47, 1), JCS_RGB, progressive);
    EXPECT_EQ(check_jpeg(good).width, 47);
    const auto compare = [&](const Bytes& bytes, const std::string& what) {
      const bool bad = throws([&] { decode_jpeg(bytes); });
      EXPECT_EQ(throws([&] { check_jpeg(bytes); }), bad) << what << (progressive ? ", progressive" : "");
      ++(bad ? damaged : harmless);
    };
    for (std::size_t length = 0; length < good.size(); length += 3)
      compare({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length)}, cat("cut at ", length));
    for (std::uint64_t i = 0; i < 600; ++i) {
      Bytes flipped = good;
      const Random4 r = philox(i, progressive, 5);
      flipped[r.v[0] % flipped.size()] ^= static_cast<std::uint8_t>(1u << (r.v[1] % 8));
      compare(flipped, cat("flip ", i));
    }
  }
  EXPECT_GT(damaged, 400);
  EXPECT_GT(harmless, 100);
}

// A small file can have thousands of scans. To decode such a file would take minutes.
TEST_F(JpegCheck, MoreThan500ScansAreAnError) {
  EXPECT_EQ(decode_jpeg(jpeg_of_scans(500)).width, DCTSIZE);
  EXPECT_EQ(check_jpeg(jpeg_of_scans(500)).width, DCTSIZE);
  const Bytes more = jpeg_of_scans(501);
  EXPECT_LT(more.size(), 40u << 10);
  expect_contains(message_of([&] { decode_jpeg(more); }), "more than 500 scans");
  expect_contains(message_of([&] { check_jpeg(more); }), "more than 500 scans");
}

TEST_F(ImageFormat, CmykJpegsAndPngsBecomeRgbJpegsAndAreListed) {
  put("in/ant/print.jpg", jpeg_of(test_image(16, 20, 1, 4), JCS_CMYK, false));
  put("in/ant/really_png.JPEG", encode_png(test_image(10, 12, 2)));
  put("in/ant/grey.jpg", encode_jpeg(test_image(10, 12, 3, 1), 90));
  const ImagesReport report = convert(options());
  EXPECT_EQ(report.converted.size(), 2u);
  expect_contains(log_.str(), "ant/print.jpg: CMYK JPEG");
  expect_contains(log_.str(), "ant/really_png.JPEG: PNG");
  EXPECT_EQ(faults(), "");
  const auto records = stored("out/set-train");
  EXPECT_EQ(records.at("ant/grey.jpg").bytes, bytes_of_file(path("in/ant/grey.jpg")));
  EXPECT_EQ(records.at("ant/really_png.JPEG").bytes, encode_jpeg(test_image(10, 12, 2), 95));
  EXPECT_EQ(records.at("ant/print.jpg").bytes, encode_jpeg(decode_jpeg(bytes_of_file(path("in/ant/print.jpg"))), 95));
  EXPECT_EQ(read_jpeg_header(records.at("ant/print.jpg").bytes).components, 3);
}

TEST_F(ImageFormat, PngsOfAllKindsDecodeToTheirColours) {
  const Image colour = test_image(7, 9, 4);
  EXPECT_EQ(decode_png(encode_png(colour)).pixels, colour.pixels);
  const Image grey = test_image(7, 9, 4, 1);
  const Image from_grey = decode_png(encode_png(grey));
  for (std::size_t i = 0; i < from_grey.pixels.size(); ++i) ASSERT_EQ(from_grey.pixels[i], grey.pixels[i / 3]);
  Bytes with_alpha;
  std::vector<std::uint16_t> wide;
  for (std::size_t i = 0; i < colour.pixels.size(); ++i) {
    with_alpha.push_back(colour.pixels[i]);
    if (i % 3 == 2) with_alpha.push_back(static_cast<std::uint8_t>(i));  // some pixels are nearly transparent
    wide.push_back(static_cast<std::uint16_t>(colour.pixels[i] * 256 + 77));
  }
  EXPECT_EQ(decode_png(png_of(PNG_FORMAT_RGBA, 7, 9, with_alpha.data())).pixels, colour.pixels);
  EXPECT_EQ(decode_png(png_of(PNG_FORMAT_LINEAR_RGB, 7, 9, wide.data())).pixels, colour.pixels);
  const Bytes palette = {10, 20, 30, 200, 100, 50}, indices = {0, 1, 1, 0};
  const Image from_palette = decode_png(png_of(PNG_FORMAT_RGB_COLORMAP, 2, 2, indices.data(), palette.data(), 2));
  EXPECT_EQ(from_palette.pixels, (Bytes{10, 20, 30, 200, 100, 50, 200, 100, 50, 10, 20, 30}));
}

TEST_F(ImageFormat, APngThatIsCutAnywhereIsAnError) {
  const Bytes good = encode_png(test_image(7, 9, 4));
  for (std::size_t length = 8; length < good.size(); ++length) {
    EXPECT_TRUE(throws([&] { decode_png({good.data(), length}); })) << length;
  }
  Bytes flipped = good;
  flipped[good.size() / 2] ^= 1;
  EXPECT_TRUE(throws([&] { decode_png(flipped); }));
}

std::string octal(std::uint64_t value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
  return text;
}

// Returns one member of an archive with its padding, as `tar` writes it.
std::string member(const std::string& name, const std::string& content, char type = '0',
                   const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto set = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  set(0, name.substr(0, 100));
  set(100, "0000644");
  set(124, octal(content.size(), 11));
  set(148, "        ");
  header[156] = type;
  set(257, std::string("ustar\0"
                       "00",
                       8));
  set(345, prefix);
  std::uint64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  set(148, octal(sum, 6) + std::string(1, '\0') + " ");
  return header + content + std::string((512 - content.size() % 512) % 512, '\0');
}

std::string pax_record(const std::string& key, const std::string& value) {
  const std::string rest = " " + key + "=" + value + "\n";
  std::size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  return std::to_string(length) + rest;
}

std::string text_of(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST_F(Tar, MembersOfTarFilesBecomeTheSameRecordsAsFilesInFolders) {
  const std::string long_name = std::string(150, 'y') + ".jpg";
  const Bytes a = test_jpeg(8, 9, 1), b = test_jpeg(9, 8, 2), c = test_jpeg(10, 10, 3), d = test_jpeg(6, 6, 4);
  const std::string end(1024, '\0');
  put_text("in/train/ant.tar", member("ant/", "", '5') + member("./a.jpg", text_of(a)) +
                                   member("././@LongLink", long_name + std::string(1, '\0'), 'L') +
                                   member(long_name.substr(0, 100), text_of(b)) + end);
  put_text("in/train/bee.tar",
           member("pax", pax_record("path", "k\xC3\xA4-fer/" + long_name) + pax_record("mtime", "1.5"), 'x') +
               member("short", text_of(c)) + member("d.jpg", text_of(d), '0', "some/prefix") + end);
  convert(options());
  EXPECT_EQ(faults(), "");
  const auto records = stored("out/set-train");
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records.at("train/ant.tar/a.jpg").bytes, a);
  EXPECT_EQ(records.at("train/ant.tar/" + long_name).bytes, b);
  EXPECT_EQ(records
                .at("train/bee.tar/k\xC3\xA4-"
                    "fer/" +
                    long_name)
                .bytes,
            c);
  EXPECT_EQ(records.at("train/bee.tar/some/prefix/d.jpg").bytes, d);
  EXPECT_EQ(records.at("train/bee.tar/some/prefix/d.jpg").label, 1);
  EXPECT_EQ(read_dataset_index(path("out/set-train")).image.class_ids, (std::vector<std::string>{"ant", "bee"}));
}

TEST_F(Tar, MoreTarFilesThanMayBeOpenAtOnceAreReadToo) {
  for (int i = 0; i < 150; ++i) {
    const Bytes jpeg = test_jpeg(6, 6, static_cast<std::uint64_t>(i));
    put_text(cat("in/n", 1000 + i, ".tar"), member("a.jpg", text_of(jpeg)) + std::string(1024, '\0'));
  }
  for (const bool can_be_raised : {true, false}) {
    const auto convert_with_few_files = [&] {  // in a child process, because the limit holds for a whole process
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 100;
      if (!can_be_raised) limit.rlim_max = 100;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      ImagesOptions many = options();
      many.force = true;
      std::exit(message_of([&] { convert(many); }) == "(no error)" ? 0 : 1);
    };
    EXPECT_EXIT(convert_with_few_files(), testing::ExitedWithCode(0), "") << can_be_raised;
    EXPECT_EQ(faults(), "");
    EXPECT_EQ(stored("out/set-train").size(), 150u);
  }
}

TEST_F(Tar, DamagedOnesAreNamedWithTheByte) {
  const std::string end(1024, '\0'), first = member("a.jpg", text_of(test_jpeg(8, 9, 1)));
  const std::string whole = first + member("b.jpg", text_of(test_jpeg(40, 40, 2))) + end;
  const std::size_t second = first.size();
  std::string bad = whole;
  bad[second + 3] ^= 1;
  put_text("in/ant.tar", bad);
  expect_contains(error_of(options()), cat("ant.tar: is damaged at byte ", second));
  put_text("in/ant.tar", whole.substr(0, second + 600));
  for (const char* broken : {"fail", "skip"}) {  // nobody would miss the members after the cut
    ImagesOptions all = options();
    all.broken = broken;
    expect_contains(error_of(all),
                    cat("ant.tar: is damaged at byte ", second + 600, ": it is cut off within the member 'b.jpg'"));
  }
  for (const std::size_t length : {second - 1, second, second + 100}) {  // nothing else shows that b.jpg is missing
    put_text("in/ant.tar", whole.substr(0, length));
    expect_contains(error_of(options()), cat("ant.tar: is damaged at byte ", length, ": the empty block that ends"));
  }
  put_text("in/ant.tar", "\x1f\x8b" + std::string(600, 'x'));
  expect_contains(error_of(options()), "a compressed one (gzip)");
  expect_contains(error_of(options()), cat("uncompress it first: gzip -dc ", path("in/ant.tar"), " > NEW.tar"));
  put_text("in/ant.tar", std::string(600, 'x'));
  expect_contains(error_of(options()), "is not a plain tar file");
  put_text("in/ant.tar", member("x", "no pax record", 'x') + whole);
  expect_contains(error_of(options()), "a pax header is malformed");
  put_text("in/ant.tar", member("a.jpg", "1") + member("a.jpg", "2") + end);
  expect_contains(error_of(options()), "this name occurs twice");
  put_text("in/ant.tar", whole);
  put("in/bee/1.jpg", test_jpeg(8, 8, 1));
  expect_contains(error_of(options()), "holds both folders ('bee') and tar files ('ant.tar')");
}

// Writes the right checksum into the header that begins at byte `at`.
void seal(std::string& archive, std::size_t at) {
  archive.replace(at + 148, 8, "        ");
  std::uint64_t sum = 0;
  for (const char c : archive.substr(at, 512)) sum += static_cast<unsigned char>(c);
  archive.replace(at + 148, 8, octal(sum, 6) + std::string(1, '\0') + " ");
}

TEST_F(Tar, HeadersWithAnyFlippedBitAndARightChecksumAreErrorsOrHarmless) {
  const std::string whole =
      member("x", pax_record("path", "b.jpg"), 'x') + member("a.jpg", "content") + std::string(1024, '\0');
  int errors = 0;
  for (std::size_t bit = 0; bit < 1536 * 8; bit += 3) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    for (const std::size_t header : {0, 1024}) seal(flipped, header);
    const std::string file = put_text("a.tar", flipped);
    try {
      for (const TarMember& each : list_tar(file)) EXPECT_LE(each.offset, flipped.size());
    } catch (const Error& error) {
      expect_contains(error.what(), "a.tar: ");
      ++errors;
    }
  }
  EXPECT_GT(errors, 20);
}

}  // namespace
}  // namespace ringtrain
