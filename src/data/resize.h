// Pillow's resize(BILINEAR), bit for bit: a triangle filter, widened for reducing (anti-aliasing), in fixed point with
// 22 fractional bits (Pillow: src/libImaging/Resample.c). One axis after the other, rounded to u8 in between, so the
// order shows in the last bit: columns first in all versions of Pillow up to 12; since 13 rows first where the height
// shrinks by more than twice as many pixels as the width. This follows 13.
#pragma once

#include <cstdint>
#include <vector>

namespace ringtrain {

// Of an axis of `in` samples resized to `out` samples: the output samples [first, first + count).
struct AxisWindow {
  std::int64_t in = 0, out = 0, first = 0, count = 0;
  bool reversed = false;  // the last of them comes first
  bool operator==(const AxisWindow&) const = default;
};

// Which input samples each output sample takes, and how much of each.
class ResizeAxis {
 public:
  void plan(const AxisWindow& window);
  // The input samples that any output sample takes: [begin, end).
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t count() const { return window_.count; }
  // Output sample i takes starts()[i], ..., starts()[i] + taps() - 1, counted from begin(). Those that the filter does
  // not reach have weight 0; they may lie beyond end().
  const std::int32_t* starts() const { return starts_.data(); }
  std::int64_t taps() const { return taps_; }  // even
  const std::int32_t* weights(std::int64_t i) const { return weights_.data() + i * taps_; }
  // For every pair of weights a, b the upper and lower halves: a >> 11, b >> 11, a & 2047, b & 2047.
  const std::int16_t* halves() const { return halves_.data(); }

 private:
  AxisWindow window_;
  std::int64_t begin_ = 0, end_ = 0, taps_ = 0;
  std::vector<std::int32_t> starts_, weights_;
  std::vector<std::int16_t> halves_;
};

// `pixels` pixels of 1 or 3 channels as RGB; grey is repeated.
void copy_rgb(const std::uint8_t* in, std::int64_t channels, std::int64_t pixels, std::uint8_t* out);

// RGB rows in, RGB rows out. Keeps its memory from image to image, and of an image only the rows that output rows
// still need.
class BilinearResizer {
 public:
  // `portable`: without the kernels for this processor; the result is the same.
  explicit BilinearResizer(bool portable = false);
  // The result goes to `out`: u8 [rows.count, columns.count, 3], a row every stride_bytes. It is complete when the last
  // row has been pushed.
  void start(const AxisWindow& rows, const AxisWindow& columns, std::uint8_t* out, std::int64_t stride_bytes);
  const ResizeAxis& rows() const { return rows_; }
  const ResizeAxis& columns() const { return columns_; }
  // Bytes that must be readable behind a row's last needed pixel; what they hold does not matter.
  std::int64_t padding_bytes() const { return columns_.taps() * 3 + 32; }
  // The input rows rows().begin() ... rows().end() - 1 in order, one or two (second != nullptr) a call, from column
  // columns().begin() on.
  void push(const std::uint8_t* first, const std::uint8_t* second);

 private:
  std::uint8_t* held(std::int64_t row) { return held_.data() + (row - held_from_) * held_stride_; }
  void make_room();
  void write_rows();
  void resize_columns(const std::uint8_t* first, const std::uint8_t* second, std::uint8_t* out_first,
                      std::uint8_t* out_second) const;
  void resize_row(std::int64_t row, std::int64_t bytes, std::uint8_t* out);

  ResizeAxis rows_, columns_;
  bool avx2_, rows_first_ = false;
  std::uint8_t* out_ = nullptr;
  std::int64_t out_stride_ = 0, written_ = 0;  // written_: output rows
  // Input rows [held_from_, pushed_), with their columns resized unless rows_first_.
  std::vector<std::uint8_t> held_;
  std::int64_t held_stride_ = 0, held_capacity_ = 0, held_from_ = 0, pushed_ = 0;
  std::vector<std::uint8_t> pair_;  // up to two output rows on their way
};

}  // namespace ringtrain
