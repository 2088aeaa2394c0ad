// Pillow's resize(BILINEAR), bit for bit. It is a triangle filter in fixed point with 22 fractional bits, which is
// wider when the image shrinks (anti-aliasing; Pillow: src/libImaging/Resample.c). One axis is resized after the other,
// with rounding to u8 in between, so the order of the axes changes the last bit. Pillow up to 12 resizes columns first.
// Since 13, rows come first if the height shrinks by more than twice as many pixels as the width. This file follows 13.
#pragma once

#include <cstdint>
#include <vector>

namespace ringtrain {

// The output samples [first, first + count) of an axis of `in` samples that is resized to `out` samples.
struct AxisWindow {
  std::int64_t in = 0, out = 0, first = 0, count = 0;
  bool reversed = false;  // true: the last sample comes first
  bool operator==(const AxisWindow&) const = default;
};

// The input samples of each output sample, with their weights.
class ResizeAxis {
 public:
  void plan(const AxisWindow& window);
  // The output samples need the input samples [begin, end).
  std::int64_t begin() const { return begin_; }
  std::int64_t end() const { return end_; }
  std::int64_t count() const { return window_.count; }
  // Output sample i uses the input samples starts()[i], ..., starts()[i] + taps() - 1, counted from begin(). Samples
  // outside the filter have weight 0 and may be beyond end().
  const std::int32_t* starts() const { return starts_.data(); }
  std::int64_t taps() const { return taps_; }  // an even number
  const std::int32_t* weights(std::int64_t i) const { return weights_.data() + i * taps_; }
  // Holds a >> 11, b >> 11, a & 2047 and b & 2047 for every pair of weights a, b.
  const std::int16_t* halves() const { return halves_.data(); }

 private:
  AxisWindow window_;
  std::int64_t begin_ = 0, end_ = 0, taps_ = 0;
  std::vector<std::int32_t> starts_, weights_;
  std::vector<std::int16_t> halves_;
};

// Copies `pixels` pixels of 1 or 3 channels as RGB. Grey is repeated.
void copy_rgb(const std::uint8_t* in, std::int64_t channels, std::int64_t pixels, std::uint8_t* out);

// Takes RGB rows and writes resized RGB rows. It keeps its memory from image to image. It holds only those rows of an
// image that later output rows need.
class BilinearResizer {
 public:
  // `portable` disables the kernels for this processor. The result is the same.
  explicit BilinearResizer(bool portable = false);
  // Begins an image. The result is written to `out` as u8 [rows.count, columns.count, 3] with stride_bytes per row. It
  // is complete after the last row was pushed.
  void start(const AxisWindow& rows, const AxisWindow& columns, std::uint8_t* out, std::int64_t stride_bytes);
  const ResizeAxis& rows() const { return rows_; }
  const ResizeAxis& columns() const { return columns_; }
  // Returns the number of bytes after a row's last needed pixel that must be readable. Their values do not matter.
  std::int64_t padding_bytes() const { return columns_.taps() * 3 + 32; }
  // Takes the input rows rows().begin() ... rows().end() - 1 in order, one or two (second != nullptr) per call. A row
  // begins at column columns().begin().
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
  std::int64_t out_stride_ = 0, written_ = 0;  // written_: number of output rows
  // Input rows [held_from_, pushed_). Their columns are already resized, unless rows_first_ is true.
  std::vector<std::uint8_t> held_;
  std::int64_t held_stride_ = 0, held_capacity_ = 0, held_from_ = 0, pushed_ = 0;
  std::vector<std::uint8_t> pair_;  // up to two unfinished output rows
};

}  // namespace ringtrain
