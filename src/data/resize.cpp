#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/rounding.h"

namespace ringtrain {
namespace {

constexpr int kPrecisionBits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);
constexpr int kLowBits = 11;
constexpr std::int64_t register_bytes = 32;  // of AVX2

// The portable kernels define the result. The AVX2 kernels compute the same integers.
void resize_columns_portable(const ResizeAxis& axis, const std::uint8_t* in, std::uint8_t* out) {
  for (std::int64_t i = 0; i < axis.count(); ++i, out += 3) {
    const std::uint8_t* pixel = in + axis.starts()[i] * 3;
    const std::int32_t* weight = axis.weights(i);
    std::int32_t red = kHalf, green = kHalf, blue = kHalf;
    for (std::int64_t t = 0; t < axis.taps(); ++t, pixel += 3) {
      red += pixel[0] * weight[t];
      green += pixel[1] * weight[t];
      blue += pixel[2] * weight[t];
    }
    out[0] = static_cast<std::uint8_t>(red >> kPrecisionBits);
    out[1] = static_cast<std::uint8_t>(green >> kPrecisionBits);
    out[2] = static_cast<std::uint8_t>(blue >> kPrecisionBits);
  }
}

// Computes bytes [from, bytes) of one output row. Its input rows are stride_bytes apart.
void resize_rows_portable(const std::int32_t* weights, std::int64_t taps, const std::uint8_t* in,
                          std::int64_t stride_bytes, std::int64_t from, std::int64_t bytes, std::uint8_t* out) {
  for (std::int64_t x = from; x < bytes; ++x) {
    std::int32_t sum = kHalf;
    for (std::int64_t t = 0; t < taps; ++t) sum += in[t * stride_bytes + x] * weights[t];
    out[x] = static_cast<std::uint8_t>(sum >> kPrecisionBits);
  }
}

#if defined(__x86_64__)

// Computes two rows at once, one in each half of the registers. The 16-bit pixels of taps 0 and 1 are side by side for
// each colour. Writes one byte after each output row.
template <int kPairs>
__attribute__((target("avx2"))) void resize_columns_avx2(const ResizeAxis& axis, const std::uint8_t* in_a,
                                                         const std::uint8_t* in_b, std::uint8_t* out_a,
                                                         std::uint8_t* out_b) {
  const __m256i pick =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i pick_second =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const __m256i half = _mm256_set1_epi32(kHalf);
  const std::int64_t pairs = kPairs > 0 ? kPairs : axis.taps() / 2, count = axis.count();
  const std::int16_t* halves = axis.halves();
  const std::int32_t* starts = axis.starts();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = std::int64_t{starts[i]} * 3;
    __m256i high = _mm256_setzero_si256(), low = half;
    const auto add = [&](__m256i pixels) __attribute__((target("avx2"))) {
      std::int32_t both[2];
      std::memcpy(both, halves, sizeof both);
      halves += 4;
      high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, _mm256_set1_epi32(both[0])));
      low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, _mm256_set1_epi32(both[1])));
    };
    for (std::int64_t p = 0; p < pairs; p += 2) {
      const __m256i bytes = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in_a + start + p * 6))),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in_b + start + p * 6)), 1);
      add(_mm256_shuffle_epi8(bytes, pick));
      if (p + 1 < pairs) add(_mm256_shuffle_epi8(bytes, pick_second));
    }
    __m256i sum = _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low), kPrecisionBits);
    sum = _mm256_packus_epi32(sum, sum);
    sum = _mm256_packus_epi16(sum, sum);
    const std::int32_t a = _mm256_extract_epi32(sum, 0), b = _mm256_extract_epi32(sum, 4);
    std::memcpy(out_a + i * 3, &a, 4);
    std::memcpy(out_b + i * 3, &b, 4);
  }
}

__attribute__((target("avx2"))) std::int64_t resize_rows_avx2(const std::int32_t* weights, std::int64_t taps,
                                                              const std::uint8_t* in, std::int64_t stride_bytes,
                                                              std::int64_t bytes, std::uint8_t* out) {
  std::int64_t x = 0;
  for (; x + 32 <= bytes; x += 32) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (std::int64_t t = 0; t < taps; ++t) {
      const __m256i weight = _mm256_set1_epi32(weights[t]);
      const std::uint8_t* row = in + t * stride_bytes + x;
      for (int i = 0; i < 4; ++i) {
        const __m256i pixels = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i * 8)));
        sums[i] = _mm256_add_epi32(sums[i], _mm256_mullo_epi32(pixels, weight));
      }
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kPrecisionBits);
    const __m256i packed =
        _mm256_packus_epi16(_mm256_packus_epi32(sums[0], sums[1]), _mm256_packus_epi32(sums[2], sums[3]));
    const __m256i ordered = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x), ordered);
  }
  return x;
}

#endif

}  // namespace

void ResizeAxis::plan(const AxisWindow& window) {
  if (window == window_) return;
  window_ = window;
  const auto scale = static_cast<double>(static_cast<float>(window.in)) / static_cast<double>(window.out);
  const double filter_scale = std::max(scale, 1.0), inverse = 1.0 / filter_scale, support = filter_scale;
  const auto count = static_cast<std::size_t>(window.count);
  const auto bounds = [&](std::int64_t i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto low = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto high = std::min<std::int64_t>(window.in, static_cast<std::int64_t>(center + support + 0.5));
    return std::pair(low, high);
  };
  begin_ = bounds(window.first).first;
  end_ = bounds(window.first + window.count - 1).second;
  std::int64_t most = 1;
  for (std::int64_t i = 0; i < window.count; ++i) {
    const auto [low, high] = bounds(window.first + i);
    most = std::max(most, high - low);
  }
  taps_ = (most + 1) / 2 * 2;
  starts_.resize(count);
  weights_.assign(count * static_cast<std::size_t>(taps_), 0);
  halves_.resize(weights_.size() * 2);
  std::vector<double> exact(static_cast<std::size_t>(taps_));
  for (std::int64_t i = 0; i < window.count; ++i) {
    const std::int64_t sample = window.first + (window.reversed ? window.count - 1 - i : i);
    const auto [low, high] = bounds(sample);
    const double center = (static_cast<double>(sample) + 0.5) * scale;
    double total = 0;
    for (std::int64_t t = 0; t < high - low; ++t) {
      const double distance = std::abs((static_cast<double>(t + low) - center + 0.5) * inverse);
      exact[static_cast<std::size_t>(t)] = distance < 1.0 ? 1.0 - distance : 0.0;
      total += exact[static_cast<std::size_t>(t)];
    }
    starts_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(low - begin_);
    std::int32_t* weights = weights_.data() + i * taps_;
    for (std::int64_t t = 0; t < high - low; ++t) {
      const double share =
          total != 0.0 ? exact[static_cast<std::size_t>(t)] / total : exact[static_cast<std::size_t>(t)];
      weights[t] = static_cast<std::int32_t>(0.5 + share * (1 << kPrecisionBits));
    }
    std::int16_t* halves = halves_.data() + i * taps_ * 2;
    for (std::int64_t t = 0; t < taps_; ++t) {
      halves[t / 2 * 4 + t % 2] = static_cast<std::int16_t>(weights[t] >> kLowBits);
      halves[t / 2 * 4 + 2 + t % 2] = static_cast<std::int16_t>(weights[t] & ((1 << kLowBits) - 1));
    }
  }
}

void copy_rgb(const std::uint8_t* in, std::int64_t channels, std::int64_t pixels, std::uint8_t* out) {
  if (channels == 3) {
    std::memcpy(out, in, static_cast<std::size_t>(pixels * 3));
    return;
  }
  for (std::int64_t i = 0; i < pixels; ++i) std::memset(out + i * 3, in[i], 3);
}

BilinearResizer::BilinearResizer(bool portable) {
#if defined(__x86_64__)
  avx2_ = !portable && __builtin_cpu_supports("avx2");
#else
  static_cast<void>(portable);
  avx2_ = false;
#endif
}

void BilinearResizer::start(const AxisWindow& rows, const AxisWindow& columns, std::uint8_t* out,
                            std::int64_t stride_bytes) {
  rows_.plan(rows);
  columns_.plan(columns);
  rows_first_ = rows.out < rows.in && rows.in - rows.out > 2 * (columns.in - columns.out);
  out_ = out;
  out_stride_ = stride_bytes;
  written_ = held_from_ = pushed_ = 0;
  // Leaves room for whole registers, and for the byte that the AVX2 kernel writes after a row.
  const std::int64_t pixels = rows_first_ ? columns_.end() - columns_.begin() : columns_.count();
  held_stride_ = round_up(pixels * 3 + 1, register_bytes);
  held_capacity_ = 2 * rows_.taps() + 16;
  const std::int64_t out_row = round_up(columns_.count() * 3 + 1, register_bytes);
  // The memory after the held rows is read by taps of weight 0: by those of the last output row, and by those of the
  // columns of the last held row.
  held_.resize(static_cast<std::size_t>((held_capacity_ + rows_.taps()) * held_stride_ + padding_bytes()));
  pair_.resize(static_cast<std::size_t>(2 * (rows_first_ ? held_stride_ + padding_bytes() : out_row) + 2 * out_row));
}

void BilinearResizer::push(const std::uint8_t* first, const std::uint8_t* second) {
  make_room();
  std::uint8_t* out = held(pushed_);
  const std::int64_t count = second != nullptr ? 2 : 1;
  if (rows_first_) {
    const auto bytes = static_cast<std::size_t>((columns_.end() - columns_.begin()) * 3);
    std::memcpy(out, first, bytes);
    if (second != nullptr) std::memcpy(out + held_stride_, second, bytes);
  } else {
    resize_columns(first, second, out, out + held_stride_);
  }
  pushed_ += count;
  write_rows();
}

// Makes room for two more rows, and for one row whose values are not used.
void BilinearResizer::make_room() {
  if (pushed_ - held_from_ + 3 <= held_capacity_) return;
  const std::int64_t needed_from = written_ < rows_.count() ? rows_.starts()[written_] : pushed_;
  if (needed_from < pushed_)
    std::memmove(held_.data(), held(needed_from), static_cast<std::size_t>((pushed_ - needed_from) * held_stride_));
  held_from_ = std::min(needed_from, pushed_);
}

// Writes the output rows whose input rows are complete.
void BilinearResizer::write_rows() {
  const std::int64_t all = rows_.end() - rows_.begin(), bytes = columns_.count() * 3;
  const auto ready = [&](std::int64_t row) {
    return row < rows_.count() && std::min(all, rows_.starts()[row] + rows_.taps()) <= pushed_;
  };
  if (!rows_first_) {
    for (; ready(written_); ++written_) resize_row(written_, bytes, out_ + written_ * out_stride_);
    return;
  }
  const std::int64_t tall_stride = held_stride_ + padding_bytes(), out_row = round_up(bytes + 1, register_bytes);
  std::uint8_t *tall = pair_.data(), *done = tall + 2 * tall_stride;
  while (ready(written_) && (ready(written_ + 1) || written_ + 1 == rows_.count())) {
    const std::int64_t count = std::min<std::int64_t>(2, rows_.count() - written_);
    for (std::int64_t i = 0; i < count; ++i) resize_row(written_ + i, held_stride_, tall + i * tall_stride);
    resize_columns(tall, count > 1 ? tall + tall_stride : nullptr, done, done + out_row);
    for (std::int64_t i = 0; i < count; ++i, ++written_)
      std::memcpy(out_ + written_ * out_stride_, done + i * out_row, static_cast<std::size_t>(bytes));
  }
}

void BilinearResizer::resize_columns(const std::uint8_t* first, const std::uint8_t* second, std::uint8_t* out_first,
                                     std::uint8_t* out_second) const {
#if defined(__x86_64__)
  if (avx2_) {
    const auto both = columns_.taps() == 2   ? resize_columns_avx2<1>
                      : columns_.taps() == 4 ? resize_columns_avx2<2>
                      : columns_.taps() == 6 ? resize_columns_avx2<3>
                                             : resize_columns_avx2<0>;
    both(columns_, first, second != nullptr ? second : first, out_first, out_second);
    return;
  }
#endif
  resize_columns_portable(columns_, first, out_first);
  if (second != nullptr) resize_columns_portable(columns_, second, out_second);
}

void BilinearResizer::resize_row(std::int64_t row, std::int64_t bytes, std::uint8_t* out) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (avx2_)
    done = resize_rows_avx2(rows_.weights(row), rows_.taps(), held(rows_.starts()[row]), held_stride_, bytes, out);
#endif
  resize_rows_portable(rows_.weights(row), rows_.taps(), held(rows_.starts()[row]), held_stride_, done, bytes, out);
}

}  // namespace ringtrain
