#include "data/jpeg.h"

#include <algorithm>
#include <csetjmp>
// Each of these headers needs the one before.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "data/resize.h"

namespace ringtrain {
namespace {

// An exception must not pass through libjpeg's C functions. An error therefore leaves them by longjmp, and is thrown
// after that.
struct JpegErrors : jpeg_error_mgr {
  std::jmp_buf escape;
  std::array<char, JMSG_LENGTH_MAX> text;
  std::array<char, JMSG_LENGTH_MAX> warning{};  // the first warning that is no error
  jpeg_progress_mgr progress{};                 // for limit_scans()
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* errors = static_cast<JpegErrors*>(info->err);
  errors->format_message(info, errors->text.data());
  std::longjmp(errors->escape, 1);
}

bool loses_data(int code) {
  switch (code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      return true;
    default:
      return false;
  }
}

void warn(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace message
  if (loses_data(info->err->msg_code)) leave(info);
  auto* errors = static_cast<JpegErrors*>(info->err);
  if (errors->num_warnings++ == 0) errors->format_message(info, errors->warning.data());
}

// Returns the value for cinfo->err. Warnings about lost data are errors too; JpegReader lists them.
jpeg_error_mgr* set_up(JpegErrors& errors) {
  jpeg_error_mgr* manager = jpeg_std_error(&errors);
  manager->error_exit = leave;
  manager->emit_message = warn;
  return manager;
}

// Limits the number of scans to 500. Each scan of a progressive file goes over the whole picture, even if the scan has
// few bytes. A file with thousands of empty scans would keep a reader busy for hours. Encoders write about ten scans.
void limit_scans(jpeg_decompress_struct& info, JpegErrors& errors) {
  errors.progress.progress_monitor = [](j_common_ptr common) {
    constexpr int most_scans = 500;
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= most_scans) return;
    auto* own = static_cast<JpegErrors*>(common->err);
    std::snprintf(own->text.data(), own->text.size(), "more than %d scans", most_scans);
    std::longjmp(own->escape, 1);
  };
  info.progress = &errors.progress;
}

// Reads the header. Call it in guarded().
void begin(jpeg_decompress_struct& info, JpegErrors& errors, std::span<const std::uint8_t> bytes) {
  jpeg_create_decompress(&info);
  limit_scans(info, errors);
  jpeg_mem_src(&info, bytes.data(), bytes.size());
  jpeg_read_header(&info, TRUE);
}

// Runs `calls`, which calls libjpeg. `calls` must not own objects with destructors.
template <class Calls>
void guarded(JpegErrors& errors, Calls calls) {
  if (setjmp(errors.escape) != 0) throw Error(cat("libjpeg: ", errors.text.data()));
  calls();
}

Image blank(std::int64_t height, std::int64_t width, std::int64_t channels) {
  return {height, width, channels, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * channels))};
}

void check(const Image& image) {
  if (image.height <= 0 || image.width <= 0 || (image.channels != 1 && image.channels != 3) ||
      std::ssize(image.pixels) != image.height * image.width * image.channels)
    throw Error(cat("an image of ", image.height, " x ", image.width, " x ", image.channels, " with ",
                    image.pixels.size(), " values; 1 or 3 channels and all their values were expected"));
}

// The state of libjpeg while it reads. The destructor frees it.
struct JpegDecoder {
  JpegErrors errors;
  jpeg_decompress_struct info{};
  JpegDecoder() { info.err = set_up(errors); }
  JpegDecoder(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }
};

// The same while it writes.
struct JpegWriter {
  JpegErrors errors;
  jpeg_compress_struct info{};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  JpegWriter() { info.err = set_up(errors); }
  JpegWriter(const JpegWriter&) = delete;
  ~JpegWriter() {
    jpeg_destroy_compress(&info);
    std::free(bytes);
  }
};

}  // namespace

std::string shape_fault(const std::array<std::int64_t, 3>& found, std::span<const std::int32_t, 3> stored) {
  if (std::ranges::equal(found, stored)) return "";
  return cat("is ", found[0], " x ", found[1], " x ", found[2], " (height x width x channels), but 'shapes' says ",
             stored[0], " x ", stored[1], " x ", stored[2]);
}

std::string shape_fault(const JpegHeader& jpeg, std::span<const std::int32_t, 3> stored) {
  const bool grey_as_colour = jpeg.components == 1 && stored[2] == 3;
  const std::array<std::int64_t, 3> found = {jpeg.height, jpeg.width, grey_as_colour ? 3 : jpeg.components};
  return shape_fault(found, stored);
}

JpegHeader read_jpeg_header(std::span<const std::uint8_t> bytes) {
  return JpegReader(bytes).header();
}

Image decode_jpeg(std::span<const std::uint8_t> bytes) {
  JpegReader reader(bytes);
  Image image = blank(reader.header().height, reader.header().width, 3);
  const auto row_bytes = static_cast<std::size_t>(image.width * 3);
  reader.start({0, 0, image.height, image.width}, 0);
  for (std::int64_t row = 0; row < image.height; row += 2) {
    const auto [first, second] = reader.read(std::min<std::int64_t>(2, image.height - row));
    std::uint8_t* out = image.pixels.data() + row * image.width * 3;
    std::memcpy(out, first, row_bytes);
    if (second != nullptr) std::memcpy(out + row_bytes, second, row_bytes);
  }
  reader.finish();
  return image;
}

std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality) {
  check(image);
  if (quality < 1 || quality > 100) throw Error(cat("JPEG quality ", quality, " is not in 1 ... 100"));
  JpegWriter writer;
  jpeg_compress_struct& info = writer.info;
  guarded(writer.errors, [&] {
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &writer.bytes, &writer.size);
    info.image_width = static_cast<JDIMENSION>(image.width);
    info.image_height = static_cast<JDIMENSION>(image.height);
    info.input_components = static_cast<int>(image.channels);
    info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPLE*>(image.pixels.data()) + static_cast<std::size_t>(info.next_scanline) *
                                                                  info.image_width *
                                                                  static_cast<unsigned>(info.input_components);
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  });
  return {writer.bytes, writer.bytes + writer.size};
}

Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width) {
  check(image);
  if (height <= 0 || width <= 0) throw Error(cat("an image cannot be resized to ", height, " x ", width));
  BilinearResizer resizer;
  Image result = blank(height, width, 3);
  resizer.start({image.height, height, 0, height}, {image.width, width, 0, width}, result.pixels.data(), width * 3);
  const auto stride = static_cast<std::size_t>(image.width * 3 + resizer.padding_bytes());
  std::vector<std::uint8_t> rows(stride * 2);
  for (std::int64_t row = 0; row < image.height; row += 2) {
    const std::int64_t count = std::min<std::int64_t>(2, image.height - row);
    for (std::int64_t i = 0; i < count; ++i)
      copy_rgb(image.pixels.data() + (row + i) * image.width * image.channels, image.channels, image.width,
               rows.data() + static_cast<std::size_t>(i) * stride);
    resizer.push(rows.data(), count > 1 ? rows.data() + stride : nullptr);
  }
  if (image.channels == 3) return result;
  Image grey = blank(height, width, 1);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) grey.pixels[i] = result.pixels[i * 3];
  return grey;
}

namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
// A file with fewer bytes cannot have so many pixels. With Huffman codes, a block of 8 x 8 pixels takes at least one
// bit of a scan. An arithmetic coder may need only a hundredth of that. Small pictures are always accepted.
constexpr std::int64_t kMostPixelsPerByte = 512, kArithmeticGain = 100, kFewPixels = 1 << 20;
// Fancy upsampling needs one chroma sample on either side, which is up to two pixels.
constexpr std::int64_t kContextPixels = 2;

// Converts as Pillow's cmyk2rgb does for inverted values, where 255 means no ink.
void cmyk_to_rgb(const std::uint8_t* ink, std::int64_t pixels, std::uint8_t* rgb) {
  for (std::int64_t i = 0; i < pixels; ++i, ink += 4, rgb += 3) {
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - ink[c]) * ink[3] + 128;
      rgb[c] = static_cast<std::uint8_t>(std::clamp(ink[3] - ((product + (product >> 8)) >> 8), 0, 255));
    }
  }
}

}  // namespace

struct JpegReader::Codec : JpegDecoder {
  std::vector<std::uint8_t> samples, rgb;  // two rows of libjpeg's output, and of RGB if that differs
  std::int64_t samples_stride = 0, rgb_stride = 0;
  std::int64_t width = 0, skipped_columns = 0;

  // Returns whether libjpeg smooths blocks. Smoothing guesses missing coefficients of an unfinished progressive file
  // from blocks that are further away.
  bool smooths() const {
    if (info.progressive_mode == 0 || info.coef_bits == nullptr) return false;
    for (int c = 0; c < info.num_components; ++c)
      if (std::any_of(info.coef_bits[c] + 1, info.coef_bits[c] + DCTSIZE2, [](int bits) { return bits != 0; }))
        return true;
    return false;
  }
};

JpegReader::JpegReader(std::span<const std::uint8_t> bytes) : codec_(std::make_unique<Codec>()) {
  jpeg_decompress_struct& info = codec_->info;
  guarded(codec_->errors, [&] { begin(info, codec_->errors, bytes); });
  header_ = {info.image_height, info.image_width, info.num_components};
  if (header_.components != 1 && header_.components != 3 && header_.components != 4)
    throw Error(cat("the JPEG has ", header_.components, " components; 1 (grey), 3 (colour) or 4 (CMYK) can be read"));
  if (header_.height * header_.width > kMostPixels)
    throw Error(cat("the JPEG claims to have ", header_.width, " x ", header_.height, " pixels; at most ", kMostPixels,
                    " are read"));
  const std::int64_t most = std::ssize(bytes) * kMostPixelsPerByte * (info.arith_code != 0 ? kArithmeticGain : 1);
  if (header_.height * header_.width > std::max(kFewPixels, most))
    throw Error(cat("the JPEG claims to have ", header_.width, " x ", header_.height, " pixels, more than its ",
                    bytes.size(), " bytes can hold: it is damaged or cut off"));
}

JpegReader::~JpegReader() = default;

void JpegReader::start(const PixelBox& box, std::int64_t padding_bytes) {
  Codec& codec = *codec_;
  jpeg_decompress_struct& info = codec.info;
  info.out_color_space = header_.components == 4 ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  const std::int64_t left = std::max<std::int64_t>(0, box.left - kContextPixels);
  const std::int64_t right = std::min(header_.width, box.left + box.width + kContextPixels);
  auto offset = static_cast<JDIMENSION>(left), columns = static_cast<JDIMENSION>(right - left);
  auto skip = static_cast<JDIMENSION>(box.top);
  guarded(codec.errors, [&] {
    jpeg_start_decompress(&info);
    if (codec.smooths()) {
      offset = 0;
      columns = info.output_width;
    } else {
      jpeg_crop_scanline(&info, &offset, &columns);
    }
  });
  codec.samples_stride = std::int64_t{columns} * info.output_components + padding_bytes;
  codec.samples.resize(static_cast<std::size_t>(codec.samples_stride * 2));
  codec.width = box.width;
  codec.skipped_columns = box.left - offset;
  if (info.out_color_space == JCS_CMYK) {
    codec.rgb_stride = box.width * 3 + padding_bytes;
    codec.rgb.resize(static_cast<std::size_t>(codec.rgb_stride * 2));
  }
  guarded(codec.errors, [&] {
    if (skip > 0) jpeg_skip_scanlines(&info, skip);
  });
}

JpegReader::Rows JpegReader::read(std::int64_t count) {
  Codec& codec = *codec_;
  jpeg_decompress_struct& info = codec.info;
  JSAMPROW rows[2] = {codec.samples.data(), codec.samples.data() + codec.samples_stride};
  guarded(codec.errors, [&] {
    for (JDIMENSION done = 0, wanted = static_cast<JDIMENSION>(count); done < wanted;)
      done += jpeg_read_scanlines(&info, rows + done, wanted - done);
  });
  for (int i = 0; i < 2; ++i) {
    rows[i] += codec.skipped_columns * info.output_components;
    if (i >= count || info.out_color_space != JCS_CMYK) continue;
    std::uint8_t* rgb = codec.rgb.data() + i * codec.rgb_stride;
    cmyk_to_rgb(rows[i], codec.width, rgb);
    rows[i] = rgb;
  }
  return {rows[0], count > 1 ? rows[1] : nullptr};
}

void JpegReader::finish() {
  guarded(codec_->errors, [this] { jpeg_finish_decompress(&codec_->info); });
}

namespace {

// Returns the length of the longest run of zero bytes after the first marker of a scan.
std::size_t longest_run_of_zeros(std::span<const std::uint8_t> bytes) {
  constexpr std::array<std::uint8_t, 2> start_of_scan = {0xFF, 0xDA};
  const auto scan = std::search(bytes.begin(), bytes.end(), start_of_scan.begin(), start_of_scan.end());
  std::size_t run = 0, longest = 0;
  for (auto at = scan; at != bytes.end(); ++at) {
    run = *at == 0 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

// Returns whether zero bits stand for a flat picture. They do in some optimized files, where the shortest code is the
// end of a block. With the usual tables, they stand for blocks full of noise, which no camera writes.
bool zeros_are_usual(const jpeg_decompress_struct& info) {
  if (info.progressive_mode != 0 || info.arith_code != 0) return true;
  const JHUFF_TBL* table = info.ac_huff_tbl_ptrs[info.comp_info[0].ac_tbl_no];
  return table == nullptr || table->huffval[0] == 0;
}

}  // namespace

CheckedJpeg check_jpeg(std::span<const std::uint8_t> bytes) {
  CheckedJpeg checked{read_jpeg_header(bytes), ""};
  JpegDecoder decoder;
  jpeg_decompress_struct& info = decoder.info;
  std::vector<JSAMPLE> row;
  std::size_t row_bytes = 0;
  bool zeros_are_damage = false;
  std::size_t rest = 0;  // bytes after the end of the picture, which are nobody's
  guarded(decoder.errors, [&] {
    begin(info, decoder.errors, bytes);
    info.scale_num = 1;
    info.scale_denom = 8;
    info.out_color_space = info.jpeg_color_space;  // no conversion
    info.do_fancy_upsampling = FALSE;
    info.do_block_smoothing = FALSE;
    jpeg_start_decompress(&info);
    row_bytes = std::size_t{info.output_width} * static_cast<std::size_t>(info.output_components);
  });
  row.resize(row_bytes);
  guarded(decoder.errors, [&] {
    JSAMPROW rows[1] = {row.data()};
    while (info.output_scanline < info.output_height) jpeg_read_scanlines(&info, rows, 1);
    zeros_are_damage = !zeros_are_usual(info);
    jpeg_finish_decompress(&info);
    rest = info.src->bytes_in_buffer;
  });
  if (decoder.errors.num_warnings > 0) checked.warning = decoder.errors.warning.data();
  // Disks and transfers leave zeros where a block got lost. libjpeg decodes them without a word.
  constexpr std::size_t many_zeros = 32;
  if (const std::size_t zeros = zeros_are_damage ? longest_run_of_zeros(bytes.first(bytes.size() - rest)) : 0;
      checked.warning.empty() && zeros >= many_zeros)
    checked.warning = cat(zeros, " zero bytes in a row within the picture's data");
  return checked;
}

}  // namespace ringtrain
