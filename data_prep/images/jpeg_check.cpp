#include "data_prep/images/jpeg_check.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
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
  Decoder decoder;
  jpeg_decompress_struct& info = decoder.info;
  std::vector<JSAMPLE> row;
  std::size_t row_bytes = 0;
  bool zeros_are_damage = false;
  std::size_t rest = 0;  // bytes after the end of the picture, which are nobody's
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
