// Pixels, pooling, dense layers and the loss of image models. See kernels.h for what is allowed here.
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace ringtrain::cpu {
namespace {

template <class T>
void pixels(const PixelRows<T>& a) {
  for (std::int64_t c = 0; c < a.channels; ++c) {
    const T* __restrict table = a.table + c * 256;
    const std::uint8_t* __restrict from = a.from + c;
    T* __restrict to = a.to + c * a.channel_stride;
    for (std::int64_t p = 0; p < a.pixels; ++p) to[p * a.pixel_stride] = table[from[p * a.channels]];
  }
}

std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}
std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

template <class T>
void max_pool(const MaxPoolUnit<T>& a) {
  for (std::int64_t i = 0; i < a.out_height; ++i)
    for (std::int64_t j = 0; j < a.out_width; ++j) {
      const std::int64_t top = i * a.stride - a.padding, left = j * a.stride - a.padding;
      const std::int64_t row_begin = larger(0, -top), row_end = smaller(a.kernel, a.height - top);
      const std::int64_t column_begin = larger(0, -left), column_end = smaller(a.kernel, a.width - left);
      Floats best = broadcast(-__builtin_inff());
      Ints place = Ints{} + static_cast<std::int32_t>(row_begin * a.kernel + column_begin);
      for (std::int64_t r = row_begin; r < row_end; ++r)
        for (std::int64_t c = column_begin; c < column_end; ++c) {
          const Floats v = load(a.x + ((top + r) * a.width + left + c) * lanes);
          const Ints wins = (v > best) | (v != v);  // the first of equal values wins; NaN stays
          best = wins ? v : best;
          place = wins ? Ints{} + static_cast<std::int32_t>(r * a.kernel + c) : place;
        }
      const std::int64_t at = (i * a.out_width + j) * lanes;
      store(a.y + at, best);
      if (a.place != nullptr) store_as(a.place + at, __builtin_convertvector(place, Bytes));
    }
}

// Every input pixel sums the gradients of those windows whose maximum it is. Each value is thus rounded and written
// once.
template <class T, bool two_sources>
void max_pool_gather(const MaxPoolUnit<T>& a) {
  for (std::int64_t i = 0; i < a.height; ++i) {
    const std::int64_t row_begin = larger(0, (i + a.padding - a.kernel + a.stride) / a.stride);
    const std::int64_t row_end = smaller(a.out_height, (i + a.padding) / a.stride + 1);
    std::int64_t begin = 0, end = 0;  // windows that cover column j, found without a division
    for (std::int64_t j = 0; j < a.width; ++j) {
      const std::int64_t column = j + a.padding;
      while (end < a.out_width && end * a.stride <= column) ++end;
      while (begin * a.stride + a.kernel <= column) ++begin;
      Floats sum{};
      for (std::int64_t r = row_begin; r < row_end; ++r) {
        const auto row_place = static_cast<std::int32_t>((i + a.padding - r * a.stride) * a.kernel + column);
        for (std::int64_t c = begin; c < end; ++c) {
          const std::int64_t at = (r * a.out_width + c) * lanes;
          const Ints place = __builtin_convertvector(load_as<Bytes>(a.place + at), Ints);
          Floats d = load(a.d0 + at);
          if constexpr (two_sources) d += load(a.d1 + at);
          sum += place == row_place - static_cast<std::int32_t>(c * a.stride) ? d : Floats{};
        }
      }
      store(a.dx + (i * a.width + j) * lanes, sum);
    }
  }
}

// max_pool_gather() for ResNet's 3 x 3 windows with stride 2 and padding 1. An even row or column is the middle of one
// window. An odd one is the end of one window and the start of the next.
template <class T, bool two_sources>
void max_pool_gather_3_2_1(const MaxPoolUnit<T>& a) {
  struct Window {
    Floats d;
    Ints place;
    RINGTRAIN_INLINE Floats at(std::int32_t where) const { return place == where ? d : Floats{}; }
  };
  const auto window = [&](std::int64_t r, std::int64_t c) __attribute__((always_inline)) {
    if (r >= a.out_height || c >= a.out_width) return Window{Floats{}, Ints{} - 1};
    const std::int64_t at = (r * a.out_width + c) * lanes;
    Floats d = load(a.d0 + at);
    if constexpr (two_sources) d += load(a.d1 + at);
    return Window{d, __builtin_convertvector(load_as<Bytes>(a.place + at), Ints)};
  };
  for (std::int64_t i = 0; i < a.height; ++i) {
    const std::int64_t r = i / 2;
    T* to = a.dx + i * a.width * lanes;
    const auto row = [&](const auto& columns) __attribute__((always_inline)) {
      auto now = columns(0);
      for (std::int64_t c = 0; c < a.out_width; ++c) {
        const auto next = columns(c + 1);
        store(to + 2 * c * lanes, now.middle);
        if (2 * c + 1 < a.width) store(to + (2 * c + 1) * lanes, now.last + next.first);
        now = next;
      }
    };
    struct Column {
      Floats first, middle, last;
    };
    if (i % 2 == 0)
      row([&](std::int64_t c) __attribute__((always_inline)) {
        const Window w = window(r, c);
        return Column{w.at(3), w.at(4), w.at(5)};
      });
    else
      row([&](std::int64_t c) __attribute__((always_inline)) {
        const Window above = window(r, c), below = window(r + 1, c);
        return Column{above.at(6) + below.at(0), above.at(7) + below.at(1), above.at(8) + below.at(2)};
      });
  }
}

template <class T>
void max_pool_backward(const MaxPoolUnit<T>& a) {
  if (a.kernel == 3 && a.stride == 2 && a.padding == 1)
    return a.d1 == nullptr ? max_pool_gather_3_2_1<T, false>(a) : max_pool_gather_3_2_1<T, true>(a);
  return a.d1 == nullptr ? max_pool_gather<T, false>(a) : max_pool_gather<T, true>(a);
}

template <class T>
void average(std::int64_t n, std::int64_t channels, const T* x, T* y) {
  Floats sum{};
  for (std::int64_t p = 0; p < n; ++p) sum += load(x + p * lanes);
  T out[lanes];
  store(out, sum / static_cast<float>(n));
  for (std::int64_t c = 0; c < channels; ++c) y[c] = out[c];
}

template <class T>
void average_backward(std::int64_t n, std::int64_t channels, const float* dy, T* dx) {
  float d[lanes] = {};
  for (std::int64_t c = 0; c < channels; ++c) d[c] = dy[c] / static_cast<float>(n);
  const Floats v = load(d);
  for (std::int64_t p = 0; p < n; ++p) store(dx + p * lanes, v);
}

template <class T>
void flatten(std::int64_t n, std::int64_t channels, const T* __restrict x, T* __restrict y) {
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t p = 0; p < n; ++p) y[c * n + p] = x[p * lanes + c];
}

template <class T>
void flatten_backward(std::int64_t n, std::int64_t channels, const float* __restrict dy, T* __restrict dx) {
  for (std::int64_t p = 0; p < n; ++p)
    for (std::int64_t c = 0; c < lanes; ++c) dx[p * lanes + c] = from_float<T>(c < channels ? dy[c * n + p] : 0.0f);
}

template <class T>
void dense(const DenseRow<T>& a) {
  const float* __restrict bias = a.bias;
  float* __restrict z = a.products;
  if (a.y == nullptr) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < a.columns; ++j) z[j] += bias[j];
    return;
  }
  T* __restrict to = a.y;
  const bool relu = a.relu;
#pragma GCC ivdep
  for (std::int64_t j = 0; j < a.columns; ++j) {
    const float v = z[j] + bias[j];
    to[j] = from_float<T>(relu && v < 0 ? 0.0f : v);
  }
}

template <class T>
void dense_gradient(const DenseGradient<T>& a) {
  float* __restrict d_bias = a.d_bias;
  if (!a.accumulate)
    for (std::int64_t j = a.begin; j < a.end; ++j) d_bias[j] = 0;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const float* __restrict d = a.d + r * a.columns;
    T* __restrict out = a.out + r * a.columns;
    if (a.values == nullptr) {
#pragma GCC ivdep
      for (std::int64_t j = a.begin; j < a.end; ++j) {
        out[j] = from_float<T>(d[j]);
        d_bias[j] += d[j];
      }
      continue;
    }
    const T* __restrict values = a.values + r * a.columns;
#pragma GCC ivdep
    for (std::int64_t j = a.begin; j < a.end; ++j) {
      const float passed = to_float(values[j]) > 0 ? d[j] : 0.0f;
      out[j] = from_float<T>(passed);
      d_bias[j] += passed;
    }
  }
}

template <class T>
void dropout(std::int64_t n, const T* from, const std::uint8_t* mask, float scale, T* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] = from_float<T>(to_float(from[i]) * (static_cast<float>(mask[i]) * scale));
}

void store_weights(std::int64_t inputs, std::int64_t places, const float* from, float* to, bool accumulate) {
  for (std::int64_t o = 0; o < lanes; ++o) {
    float* __restrict row = to + o * inputs * places;
    const float* __restrict column = from + o;
    if (accumulate) {
      for (std::int64_t i = 0; i < lanes; ++i)
        for (std::int64_t p = 0; p < places; ++p) row[i * places + p] += column[(p * lanes + i) * lanes];
    } else if (places == 1) {
      for (std::int64_t i = 0; i < lanes; ++i) row[i] = column[i * lanes];
    } else {
      for (std::int64_t i = 0; i < lanes; ++i)
        for (std::int64_t p = 0; p < places; ++p) row[i * places + p] = column[(p * lanes + i) * lanes];
    }
  }
}

ClassScore cross_entropy(std::int64_t classes, const float* logits, std::int64_t target, double smoothing, float scale,
                         float* gradient) {
  if (target < 0) {
    if (gradient != nullptr)
      for (std::int64_t j = 0; j < classes; ++j) gradient[j] = 0;
    return {0, false, false};
  }
  const float at_target = logits[target];
  float top = -__builtin_inff(), total = 0;
  // Counts the classes that rank before the target. These have larger logits, or equal logits and a smaller index, as
  // in PyTorch's argmax. If the target's logit is NaN, all classes count.
  std::int32_t above = 0;
#pragma omp simd reduction(max : top) reduction(+ : total, above)
  for (std::int64_t j = 0; j < classes; ++j) {
    top = maximum(top, logits[j]);
    total += logits[j];
    above += j < target ? !(logits[j] < at_target) : !(logits[j] <= at_target);
  }
  constexpr std::int64_t piece = 4096;  // part of a long row that is summed in single precision
  double sum = 0;
  for (std::int64_t begin = 0; begin < classes; begin += piece) {
    const std::int64_t end = smaller(classes, begin + piece);
    float part = 0;
    if (gradient != nullptr) {
#pragma omp simd reduction(+ : part)
      for (std::int64_t j = begin; j < end; ++j) {
        const float e = fast_exp(logits[j] - top);
        gradient[j] = e;
        part += e;
      }
    } else {
#pragma omp simd reduction(+ : part)
      for (std::int64_t j = begin; j < end; ++j) part += fast_exp(logits[j] - top);
    }
    sum += static_cast<double>(part);
  }
  const double share = smoothing / static_cast<double>(classes);
  const double log_sum = __builtin_log(sum) + static_cast<double>(top);
  const double loss = log_sum - (1 - smoothing) * static_cast<double>(at_target) - share * static_cast<double>(total);
  if (gradient != nullptr) {
    const float factor = scale / static_cast<float>(sum), even = scale * static_cast<float>(share);
#pragma GCC ivdep
    for (std::int64_t j = 0; j < classes; ++j) gradient[j] = gradient[j] * factor - even;
    gradient[target] -= scale * static_cast<float>(1 - smoothing);
  }
  return {loss, above == 0, above < 5};
}

}  // namespace

const ImageKernels& RINGTRAIN_PASTE(image_kernels_, RINGTRAIN_ISA)();
const ImageKernels& RINGTRAIN_PASTE(image_kernels_, RINGTRAIN_ISA)() {
  static constexpr ImageKernels table{{&pixels<float>, &pixels<BFloat16>},
                                      {&max_pool<float>, &max_pool<BFloat16>},
                                      {&max_pool_backward<float>, &max_pool_backward<BFloat16>},
                                      {&average<float>, &average<BFloat16>},
                                      {&average_backward<float>, &average_backward<BFloat16>},
                                      {&flatten<float>, &flatten<BFloat16>},
                                      {&flatten_backward<float>, &flatten_backward<BFloat16>},
                                      {&dense<float>, &dense<BFloat16>},
                                      {&dense_gradient<float>, &dense_gradient<BFloat16>},
                                      {&dropout<float>, &dropout<BFloat16>},
                                      &store_weights,
                                      &cross_entropy};
  return table;
}

}  // namespace ringtrain::cpu
