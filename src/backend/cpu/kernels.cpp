// The kernels of text models, and those that all models share. See kernels.h for what is allowed here.
#include "backend/cpu/kernels.h"

#include "base/random.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

// One unit of an LSTM cell (Hochreiter and Schmidhuber 1997, with a forget gate, as in torch.nn.LSTM):
//   i, f, o = sigmoid(...), g = tanh(...);  c = f c' + i g;  h = o tanh(c)
// The GPU computes LSTM layers with cuDNN.

// The values of the gates, after sigmoid and tanh.
struct LstmGates {
  float i, f, g, o;
};

RINGTRAIN_HD float lstm_cell_state(const LstmGates& a, float c_previous) {
  return a.f * c_previous + a.i * a.g;
}
RINGTRAIN_HD float lstm_output(const LstmGates& a, float c) {
  return a.o * fast_tanh(c);
}

struct LstmGradient {
  LstmGates d;  // with respect to the values before sigmoid and tanh
  float dc_previous;
};

// `dh` is the gradient of h. `dc_next` is the gradient of c that comes from the next time step.
RINGTRAIN_HD LstmGradient lstm_gradient(const LstmGates& a, float c, float c_previous, float dh, float dc_next) {
  const float t = fast_tanh(c);
  const float dc = dc_next + dh * a.o * (1.0f - t * t);
  LstmGradient r;
  r.d.i = dc * a.g * a.i * (1.0f - a.i);
  r.d.f = dc * c_previous * a.f * (1.0f - a.f);
  r.d.g = dc * a.i * (1.0f - a.g * a.g);
  r.d.o = dh * t * a.o * (1.0f - a.o);
  r.dc_previous = dc * a.f;
  return r;
}

// The compiler vectorises every inner loop, because pointers do not alias and the bodies have no branches.
template <class T>
void lstm_forward_row(const LstmForward<T>& a, std::int64_t row, const float* __restrict addend) {
  const std::int64_t H = a.hidden;
  const float* __restrict x = a.products == nullptr ? nullptr : a.products + row * 4 * H;
  const float* __restrict c_previous = a.c_previous + row * H;
  float* __restrict c = a.c + row * H;
  T* __restrict out = a.out + row * a.ld_out;
  T* __restrict h = a.h == nullptr ? nullptr : a.h + row * a.ld_h;
  T* __restrict gates = a.gates == nullptr ? nullptr : a.gates + row * 4 * H;
  float* __restrict h_last = a.h_last == nullptr ? nullptr : a.h_last + row * H;

  constexpr int strip = 64;  // hidden values stay in registers and the first-level cache between the loops below
  for (std::int64_t begin = 0; begin < H; begin += strip) {
    const std::int64_t n = H - begin < strip ? H - begin : strip;
    float value[strip];
    float gate[4][strip];
    const float* __restrict b = addend + begin;
    if (x != nullptr) {
      const float* __restrict p = x + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) {
        gate[0][j] = fast_sigmoid(p[j] + b[j]);
        gate[1][j] = fast_sigmoid(p[H + j] + b[H + j]);
        gate[2][j] = fast_tanh(p[2 * H + j] + b[2 * H + j]);
        gate[3][j] = fast_sigmoid(p[3 * H + j] + b[3 * H + j]);
      }
    } else {
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) {
        gate[0][j] = fast_sigmoid(b[j]);
        gate[1][j] = fast_sigmoid(b[H + j]);
        gate[2][j] = fast_tanh(b[2 * H + j]);
        gate[3][j] = fast_sigmoid(b[3 * H + j]);
      }
    }
#pragma GCC ivdep
    for (std::int64_t j = 0; j < n; ++j) {
      const LstmGates g{gate[0][j], gate[1][j], gate[2][j], gate[3][j]};
      const float state = lstm_cell_state(g, c_previous[begin + j]);
      c[begin + j] = state;
      value[j] = lstm_output(g, state);
    }
    if (gates != nullptr)
      for (int k = 0; k < 4; ++k) {
        T* __restrict to = gates + k * H + begin;
#pragma GCC ivdep
        for (std::int64_t j = 0; j < n; ++j) to[j] = from_float<T>(gate[k][j]);
      }
    if (h != nullptr) {
      T* __restrict to = h + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) to[j] = from_float<T>(value[j]);
    }
    if (h_last != nullptr) {
      float* __restrict to = h_last + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) to[j] = value[j];
    }
    T* __restrict to = out + begin;
    if (a.mask != nullptr) {
      const std::uint8_t* __restrict mask = a.mask + row * H + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j)
        to[j] = from_float<T>(value[j] * (static_cast<float>(mask[j]) * a.mask_scale));
    } else {
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) to[j] = from_float<T>(value[j]);
    }
  }
}

template <class T>
void lstm_forward(const LstmForward<T>& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const float* addend = a.addend;
    if (a.tokens != nullptr) addend += a.tokens[r * a.token_stride] * 4 * a.hidden;
    lstm_forward_row(a, r, addend);
  }
}

template <class T>
void lstm_backward_row(const LstmBackward<T>& a, std::int64_t row, float* __restrict d_sum) {
  const std::int64_t H = a.hidden;
  T* __restrict gates = a.gates + row * 4 * H;
  const float* __restrict c = a.c + row * H;
  const float* __restrict c_previous = a.c_previous + row * H;
  const float* __restrict d_out = a.d_out + row * a.ld_out;
  float* __restrict d_c = a.d_c + row * H;

  constexpr int strip = 64;
  for (std::int64_t begin = 0; begin < H; begin += strip) {
    const std::int64_t n = H - begin < strip ? H - begin : strip;
    float dh[strip];
    float d[4][strip];
    const float* __restrict from = d_out + begin;
    if (a.mask != nullptr) {
      const std::uint8_t* __restrict mask = a.mask + row * H + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) dh[j] = from[j] * (static_cast<float>(mask[j]) * a.mask_scale);
    } else {
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) dh[j] = from[j];
    }
    if (a.d_h != nullptr) {
      const float* __restrict d_h = a.d_h + row * a.ld_h + begin;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) dh[j] += d_h[j];
    }
    T* __restrict g = gates + begin;
    float* __restrict sum = d_sum + begin;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < n; ++j) {
      const LstmGates act{to_float(g[j]), to_float(g[H + j]), to_float(g[2 * H + j]), to_float(g[3 * H + j])};
      const LstmGradient r = lstm_gradient(act, c[begin + j], c_previous[begin + j], dh[j], d_c[begin + j]);
      d_c[begin + j] = r.dc_previous;
      d[0][j] = r.d.i;
      d[1][j] = r.d.f;
      d[2][j] = r.d.g;
      d[3][j] = r.d.o;
    }
    for (int k = 0; k < 4; ++k) {
      T* __restrict to = g + k * H;
      float* __restrict s = sum + k * H;
#pragma GCC ivdep
      for (std::int64_t j = 0; j < n; ++j) {
        to[j] = from_float<T>(d[k][j]);
        s[j] += d[k][j];
      }
    }
  }
}

template <class T>
void lstm_backward(const LstmBackward<T>& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    float* sum = a.d_bias;
    if (a.tokens != nullptr) sum = a.d_tokens + a.tokens[r * a.token_stride] * 4 * a.hidden;
    lstm_backward_row(a, r, sum);
  }
}

void dropout_mask(const DropoutMask& a, std::int64_t rows, std::int64_t hidden, std::uint8_t* mask) {
  constexpr int groups = 16;  // outputs of the generator Philox that are computed together; each serves 8 units
  for (std::int64_t r = 0; r < rows; ++r) {
    std::uint8_t* __restrict row = mask + r * hidden;
    for (std::int64_t begin = 0; begin < hidden; begin += 8 * groups) {
      std::uint32_t words[4][groups];
      const DropoutCounter counter = dropout_counter(a.step, a.layer, a.first_row + r, a.time, begin / 8);
#pragma GCC ivdep
      for (int k = 0; k < groups; ++k) {
        const Random4 random = philox(a.key, counter.low + static_cast<std::uint64_t>(k), counter.high);
        for (int w = 0; w < 4; ++w) words[w][k] = random.v[w];
      }
      // Unit begin + u takes 16 bits: half u / 64 of word (u / 16) % 4 of Philox block u % 16.
      std::uint8_t keep[8 * groups];
      for (int w = 0; w < 4; ++w)
#pragma GCC ivdep
        for (int k = 0; k < groups; ++k) {
          keep[w * groups + k] = (words[w][k] & 0xffffu) >= a.threshold;
          keep[(w + 4) * groups + k] = (words[w][k] >> 16) >= a.threshold;
        }
      const std::int64_t n = hidden - begin < 8 * groups ? hidden - begin : 8 * groups;
      for (std::int64_t j = 0; j < n; ++j) row[begin + j] = keep[j];
    }
  }
}

template <class T>
CrossEntropySums cross_entropy(const CrossEntropyRows<T>& a) {
  constexpr int most = 256;
  CrossEntropySums sums{0, 0, 0};
  float z[most];
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const std::int32_t target = a.targets[(r % a.block) * a.target_stride + r / a.block];
    T* __restrict d = a.d_logits == nullptr ? nullptr : a.d_logits + r * a.width;
    if (target < 0) {
      if (d != nullptr)
        for (std::int64_t j = 0; j < a.width; ++j) d[j] = from_float<T>(0.0f);
      continue;
    }
    const float* __restrict x = a.logits + r * a.width;
    const float* __restrict bias = a.bias;
    float top = -1e30f;
    for (std::int64_t j = 0; j < a.width; ++j) z[j] = x[j] + bias[j];
#pragma omp simd reduction(max : top)
    for (std::int64_t j = 0; j < a.width; ++j) top = maximum(top, z[j]);
    const float at_target = z[target];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < a.width; ++j) {
      z[j] = fast_exp(z[j] - top);
      sum += z[j];
    }
    sums.loss += static_cast<double>(__builtin_logf(sum)) + (static_cast<double>(top) - static_cast<double>(at_target));
    sums.correct += at_target >= top ? 1 : 0;
    ++sums.targets;
    if (d == nullptr) continue;
    const float factor = a.scale / sum;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < a.width; ++j) z[j] *= factor;
    z[target] -= a.scale;
    float* __restrict d_bias = a.d_bias;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < a.width; ++j) {
      d[j] = from_float<T>(z[j]);
      d_bias[j] += z[j];
    }
  }
  return sums;
}

void add(std::int64_t n, const float* __restrict from, float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}

double squared_norm(std::int64_t n, const float* __restrict values) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

double squared_change(std::int64_t n, const float* __restrict values, float* __restrict before) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    const auto change = static_cast<double>(values[i] - before[i]);
    sum += change * change;
    before[i] = values[i];
  }
  return sum;
}

// The kind is a constant in each function, so the compiler keeps only this kind's formula in the loop.
template <OptimizerKind kind>
__attribute__((always_inline)) inline void update_as(UpdateRule rule, std::int64_t n, float* __restrict w,
                                                     const float* __restrict g, float* __restrict first,
                                                     float* __restrict second) {
  rule.kind = kind;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    float a = first[i], b = 0;
    if constexpr (has_second_state(kind)) b = second[i];
    w[i] = updated_weight(rule, w[i], g[i], a, b);
    first[i] = a;
    if constexpr (has_second_state(kind)) second[i] = b;
  }
}

// Defines one function per kind, so that a profile shows the name of the kind.
#define RINGTRAIN_UPDATE(kind, values)                                                                                \
  __attribute__((noinline)) void kind(const UpdateRule& rule, std::int64_t n, float* w, const float* g, float* first, \
                                      float* second) {                                                                \
    update_as<OptimizerKind::kind>(rule, n, w, g, first, second);                                                     \
  }
RINGTRAIN_OPTIMIZER_KINDS(RINGTRAIN_UPDATE)
#undef RINGTRAIN_UPDATE

void update(const UpdateRule& rule, std::int64_t n, float* w, const float* g, float* first, float* second) {
  switch (rule.kind) {
#define RINGTRAIN_CASE(kind, values) \
  case OptimizerKind::kind:          \
    return kind(rule, n, w, g, first, second);
    RINGTRAIN_OPTIMIZER_KINDS(RINGTRAIN_CASE)
#undef RINGTRAIN_CASE
  }
}

double lamb_moments(const UpdateRule& rule, std::int64_t n, const float* __restrict w, const float* __restrict g,
                    float* __restrict m, float* __restrict v) {
  const UpdateRule r = rule;
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    float first = m[i], second = v[i];
    move_moments(r, scaled_gradient(r, g[i]), first, second);
    m[i] = first;
    v[i] = second;
    const auto direction = static_cast<double>(lamb_direction(r, w[i], first, second));
    sum += direction * direction;
  }
  return sum;
}

void average_weights(const UpdateRule& rule, std::int64_t n, const float* __restrict w, float* __restrict average) {
  const UpdateRule r = rule;
  for (std::int64_t i = 0; i < n; ++i) average[i] = averaged_weight(r, average[i], w[i]);
}

void muon_directions(const UpdateRule& rule, std::int64_t n, const float* __restrict g, float* __restrict momentum,
                     float* __restrict directions) {
  const UpdateRule r = rule;
  for (std::int64_t i = 0; i < n; ++i) {
    float moved = momentum[i];
    directions[i] = muon_direction(r, g[i], moved);
    momentum[i] = moved;
  }
}

}  // namespace

const Kernels& RINGTRAIN_PASTE(kernels_, RINGTRAIN_ISA)();
const Kernels& RINGTRAIN_PASTE(kernels_, RINGTRAIN_ISA)() {
  static constexpr Kernels table{{&lstm_forward<float>, &lstm_forward<BFloat16>},
                                 {&lstm_backward<float>, &lstm_backward<BFloat16>},
                                 &dropout_mask,
                                 {&cross_entropy<float>, &cross_entropy<BFloat16>},
                                 &add,
                                 &squared_norm,
                                 &squared_change,
                                 &update,
                                 &lamb_moments,
                                 &average_weights,
                                 &muon_directions};
  return table;
}

}  // namespace ringtrain::cpu
