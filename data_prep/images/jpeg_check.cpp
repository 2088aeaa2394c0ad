#include "data_prep/images/jpeg_check.h"

#include <vector>

#include "data/jpeg_error.h"

namespace ringtrain {
namespace {

struct Decoder {
  JpegErrors errors;
  jpeg_decompress_struct info{};
  Decoder() { info.err = set_up(errors); }
  Decoder(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&info); }
};

}  // namespace

JpegHeader check_jpeg(std::span<const std::uint8_t> bytes) {
  const JpegHeader header = read_jpeg_header(bytes);
  Decoder decoder;
  jpeg_decompress_struct& info = decoder.info;
  std::vector<JSAMPLE> row;
  std::size_t row_bytes = 0;
  guarded(decoder.errors, [&] {
    jpeg_create_decompress(&info);
    limit_scans(info, decoder.errors);
    jpeg_mem_src(&info, bytes.data(), bytes.size());
    jpeg_read_header(&info, TRUE);
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
    jpeg_finish_decompress(&info);
  });
  return header;
}

}  // namespace ringtrain
