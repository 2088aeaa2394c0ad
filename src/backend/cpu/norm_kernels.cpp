// Norms, ReLU and the residual addition. See kernels.h for what is allowed here.
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

namespace ringtrain::cpu {
namespace {

constexpr std::int64_t chunk = 256;  // pixels per sum in single precision; these sums are added in double precision

struct Normaliser {
  Floats mean, scale, beta;
  explicit Normaliser(const Affine& a)
      : mean(a.mean == nullptr ? Floats{} : load(a.mean)),
        scale(a.mean == nullptr ? broadcast(1) : load(a.scale)),
        beta(a.mean == nullptr ? Floats{} : load(a.beta)) {}
  RINGTRAIN_INLINE Floats operator()(Floats x) const { return (x - mean) * scale + beta; }
};

// Sums differences from the first pixel. The squares then do not cancel, even if the mean is far from zero.
template <class T>
void moments(std::int64_t pixels, const T* x, double* result) {
  const Floats shift = load(x);
  Doubles sum{}, squares{};
  for (std::int64_t begin = 0; begin < pixels; begin += chunk) {
    const std::int64_t end = pixels - begin < chunk ? pixels : begin + chunk;
    Floats s[4] = {}, q[4] = {};
    std::int64_t p = begin;
    for (; p + 4 <= end; p += 4)
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const Floats d = load(x + (p + k) * lanes) - shift;
        s[k] += d;
        q[k] += d * d;
      }
    for (; p < end; ++p) {
      const Floats d = load(x + p * lanes) - shift;
      s[0] += d;
      q[0] += d * d;
    }
    sum += widen((s[0] + s[1]) + (s[2] + s[3]));
    squares += widen((q[0] + q[1]) + (q[2] + q[3]));
  }
  const double n = static_cast<double>(pixels);
  store_as(result, widen(shift) + sum / n);
  store_as(result + lanes, squares - sum * sum / n);
}

enum class Second { none, plain, norm };

template <class T, bool first, Second second, bool relu, bool mask>
void forward_loop(const NormForward<T>& a) {
  const T* x = a.x;
  const T* x2 = a.second;
  T* y = a.y;
  std::uint8_t* bits = a.mask;
  const Normaliser norm(a.norm), norm2(a.norm2);
  for (std::int64_t p = 0; p < a.pixels; ++p) {
    Floats z = load(x + p * lanes);
    if constexpr (first) z = norm(z);
    if constexpr (second == Second::plain) z += load(x2 + p * lanes);
    if constexpr (second == Second::norm) z += norm2(load(x2 + p * lanes));
    if constexpr (mask) store_positive(bits + p * (lanes / 8), z);
    if constexpr (relu) z = rectify(z);
    store(y + p * lanes, z);
  }
}

template <class T, bool first, Second second>
void forward_case(const NormForward<T>& a) {
  if (a.relu && a.mask != nullptr) return forward_loop<T, first, second, true, true>(a);
  if (a.relu) return forward_loop<T, first, second, true, false>(a);
  return forward_loop<T, first, second, false, false>(a);
}

template <class T>
void forward(const NormForward<T>& a) {
  if (a.norm.mean == nullptr)
    return a.second == nullptr ? forward_case<T, false, Second::none>(a) : forward_case<T, false, Second::plain>(a);
  if (a.second == nullptr) return forward_case<T, true, Second::none>(a);
  if (a.norm2.mean == nullptr) return forward_case<T, true, Second::plain>(a);
  return forward_case<T, true, Second::norm>(a);
}

enum class Passes { all, bits, positive_values, positive_norm };

template <class T, Passes passes, bool two_sources, bool two_norms>
void sums_loop(const NormBackwardSums<T>& a) {
  const T *x = a.x, *x2 = a.x2, *d0 = a.d0, *d1 = a.d1, *values = a.values;
  T *dz = a.dz, *activation = a.activation;
  const std::uint8_t* bits = a.mask;
  const Normaliser norm(a.norm);
  const Floats mean2 = two_norms ? load(a.mean2) : Floats{};
  Doubles sum{}, product{}, product2{};
  for (std::int64_t begin = 0; begin < a.pixels; begin += chunk) {
    const std::int64_t end = a.pixels - begin < chunk ? a.pixels : begin + chunk;
    Floats s[2] = {}, q[2] = {}, q2[2] = {};
    const auto pixel = [&](std::int64_t p, int k) __attribute__((always_inline)) {
      Floats d = load(d0 + p * lanes);
      if constexpr (two_sources) d += load(d1 + p * lanes);
      const Floats from = load(x + p * lanes);
      if constexpr (passes == Passes::bits) d = keep(bits + p * (lanes / 8), d);
      if constexpr (passes == Passes::positive_values) d = keep_positive(load(values + p * lanes), d);
      if constexpr (passes == Passes::positive_norm) {
        const Floats z = norm(from);
        d = keep_positive(z, d);
        if (activation != nullptr) store(activation + p * lanes, rectify(z));
      }
      if constexpr (passes == Passes::all)
        if (activation != nullptr) store(activation + p * lanes, norm(from));
      if (dz != nullptr) store(dz + p * lanes, d);
      s[k] += d;
      q[k] += d * (from - norm.mean);
      if constexpr (two_norms) q2[k] += d * (load(x2 + p * lanes) - mean2);
    };
    std::int64_t p = begin;
    for (; p + 2 <= end; p += 2) {
      pixel(p, 0);
      pixel(p + 1, 1);
    }
    if (p < end) pixel(p, 0);
    sum += widen(s[0] + s[1]);
    product += widen(q[0] + q[1]);
    if constexpr (two_norms) product2 += widen(q2[0] + q2[1]);
  }
  store_as(a.sums, sum);
  store_as(a.sums + lanes, product);
  store_as(a.sums + 2 * lanes, product2);
}

// Without a norm, adds the gradients and applies the mask.
template <class T, Passes passes>
void combine_loop(const NormBackwardSums<T>& a) {
  for (std::int64_t p = 0; p < a.pixels; ++p) {
    Floats d = load(a.d0 + p * lanes);
    if (a.d1 != nullptr) d += load(a.d1 + p * lanes);
    if constexpr (passes == Passes::bits) d = keep(a.mask + p * (lanes / 8), d);
    if constexpr (passes == Passes::positive_values) d = keep_positive(load(a.values + p * lanes), d);
    store(a.dz + p * lanes, d);
    if (a.dz2 != nullptr) store(a.dz2 + p * lanes, d);
  }
}

template <class T, Passes passes>
void backward_sums_case(const NormBackwardSums<T>& a) {
  if (a.d1 == nullptr)
    return a.x2 == nullptr ? sums_loop<T, passes, false, false>(a) : sums_loop<T, passes, false, true>(a);
  return a.x2 == nullptr ? sums_loop<T, passes, true, false>(a) : sums_loop<T, passes, true, true>(a);
}

template <class T>
void backward_sums(const NormBackwardSums<T>& a) {
  if (a.x == nullptr) {
    if (a.mask != nullptr) return combine_loop<T, Passes::bits>(a);
    if (a.values != nullptr) return combine_loop<T, Passes::positive_values>(a);
    return combine_loop<T, Passes::all>(a);
  }
  if (a.mask != nullptr) return backward_sums_case<T, Passes::bits>(a);
  if (a.values != nullptr) return backward_sums_case<T, Passes::positive_values>(a);
  if (a.relu) return backward_sums_case<T, Passes::positive_norm>(a);
  return backward_sums_case<T, Passes::all>(a);
}

template <class T, bool relu, bool two_norms>
void apply_loop(const NormBackwardApply<T>& a) {
  const T *x = a.x, *x2 = a.x2, *dz = a.dz;
  T *dx = a.dx, *dx2 = a.dx2;
  const Normaliser norm(a.norm), norm2(a.norm2);
  const Floats slope = load(a.slope), constant = load(a.constant);
  const Floats slope2 = two_norms ? load(a.slope2) : Floats{}, constant2 = two_norms ? load(a.constant2) : Floats{};
  for (std::int64_t p = 0; p < a.pixels; ++p) {
    Floats d = load(dz + p * lanes);
    const Floats from = load(x + p * lanes);
    if constexpr (relu) d = keep_positive(norm(from), d);
    store(dx + p * lanes, norm.scale * d + (slope * (from - norm.mean) + constant));
    if constexpr (two_norms)
      store(dx2 + p * lanes, norm2.scale * d + (slope2 * (load(x2 + p * lanes) - norm2.mean) + constant2));
  }
}

template <class T>
void backward_apply(const NormBackwardApply<T>& a) {
  if (a.x2 != nullptr) return a.relu ? apply_loop<T, true, true>(a) : apply_loop<T, false, true>(a);
  return a.relu ? apply_loop<T, true, false>(a) : apply_loop<T, false, false>(a);
}

}  // namespace

const NormKernels& RINGTRAIN_PASTE(norm_kernels_, RINGTRAIN_ISA)();
const NormKernels& RINGTRAIN_PASTE(norm_kernels_, RINGTRAIN_ISA)() {
  static constexpr NormKernels table{lanes,
                                     {&moments<float>, &moments<BFloat16>},
                                     {&forward<float>, &forward<BFloat16>},
                                     {&backward_sums<float>, &backward_sums<BFloat16>},
                                     {&backward_apply<float>, &backward_apply<BFloat16>}};
  return table;
}

}  // namespace ringtrain::cpu
