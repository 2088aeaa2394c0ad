// The CPU backend's own kernels, in three tables of pointers, each with a source file of its name:
//   Kernels        text models, and what all models share: dropout masks, sums, norms and updates
//   NormKernels    norms, ReLU and the residual addition
//   ImageKernels   pixels, pooling, inputs and outputs of dense layers, and the loss
// These files are compiled once per instruction set, with RINGTRAIN_ISA = baseline | avx2 | avx512 | avx512_bf16.
// Nothing in them may use the standard library's inline functions. The linker keeps one copy of such a function for all
// files, and that could be the AVX-512 copy. A table is chosen at run time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cpu/processor.h"
#include "nn/math.h"
#include "nn/update_rule.h"

namespace ringtrain::cpu {

// One time step of `rows` rows of one LSTM layer. H = hidden. `T` is the type in which activations are stored.
template <class T>
struct LstmForward {
  std::int64_t rows, hidden;
  const float* products;       // [rows, 4H] matrix products, or null (all zero)
  const float* addend;         // bias [4H]; with `tokens`: one row [4H] per symbol (weights' columns + bias)
  const std::uint8_t* tokens;  // symbol of row r at tokens[r * token_stride], or null
  std::int64_t token_stride;
  const float* c_previous;  // [rows, H]
  float* c;                 // [rows, H]
  T* gates;                 // [rows, 4H] activated i f g o, kept for backward; null: not kept
  T* h;                     // [rows, ld_h]: next time step's input, or null
  std::int64_t ld_h;
  T* out;  // [rows, ld_out]: next layer's input, dropout applied
  std::int64_t ld_out;
  std::uint8_t* mask;  // [rows, H] 1 = kept; null: no dropout
  float mask_scale;    // 1 / (1 - p)
  float* h_last;       // [rows, H] fp32, for carried state; null: not wanted
};

template <class T>
struct LstmBackward {
  std::int64_t rows, hidden;
  T* gates;                 // in: activated gates; out: their gradients before activation, [rows, 4H]
  const float* c;           // [rows, H]
  const float* c_previous;  // [rows, H]
  const float* d_out;       // [rows, ld_out] from the next layer
  std::int64_t ld_out;
  const std::uint8_t* mask;  // dropout mask of that output; null: no dropout
  float mask_scale;
  const float* d_h;  // [rows, ld_h] from the next time step; null at the last one
  std::int64_t ld_h;
  float* d_c;       // [rows, H] in: from the next time step; out: for the one before
  float* d_bias;    // [4H], added to; null: d_tokens is used instead
  float* d_tokens;  // [symbols, 4H], each symbol adds to its row; null: no one-hot input
  const std::uint8_t* tokens;
  std::int64_t token_stride;
};

struct DropoutMask {
  std::uint64_t key;  // with the next four values it decides every random bit; see nn/math.h
  std::int64_t step, layer, first_row, time;
  std::uint32_t threshold;  // a unit is dropped if its 16 random bits are below this
};

struct CrossEntropySums {
  double loss;
  std::int64_t correct, targets;
};

// Softmax cross-entropy of rows of logits, and its gradient. There are `width` >= classes columns: a multiple of 16, at
// most 256. The bias of the additional columns is -1e30.
template <class T>
struct CrossEntropyRows {
  std::int64_t rows, classes, width;
  const float* logits;          // [rows, width] without bias
  const float* bias;            // [width]
  const std::int32_t* targets;  // row r (time-major): targets[(r % block) * target_stride + r / block]
  std::int64_t block, target_stride;
  float scale;
  T* d_logits;    // [rows, width]; null: not wanted
  float* d_bias;  // [width], added to; null if d_logits is null
};

// A kernel for each type in which activations are stored. A call chooses by its arguments.
template <class F32, class Bf16>
struct TypedKernel {
  F32* f32;
  Bf16* bf16;
  template <class... Arguments>
  auto operator()(const Arguments&... arguments) const {
    if constexpr (std::is_invocable_v<F32, const Arguments&...>)
      return f32(arguments...);
    else
      return bf16(arguments...);
  }
};
// The arguments are one of the structs here.
template <template <class> class Arguments, class Result = void>
using KernelOf = TypedKernel<Result(const Arguments<float>&), Result(const Arguments<BFloat16>&)>;

struct Kernels {
  KernelOf<LstmForward> lstm_forward;
  KernelOf<LstmBackward> lstm_backward;
  void (*dropout_mask)(const DropoutMask&, std::int64_t rows, std::int64_t hidden, std::uint8_t* mask);
  KernelOf<CrossEntropyRows, CrossEntropySums> cross_entropy;
  void (*add)(std::int64_t n, const float* from, float* to);
  double (*squared_norm)(std::int64_t n, const float* values);
  // Returns the squared norm of values - before, and sets before = values.
  double (*squared_change)(std::int64_t n, const float* values, float* before);
  // Applies updated_weight() to n elements of one tensor. `second` is null for kinds with one state.
  void (*update)(const UpdateRule&, std::int64_t n, float* w, const float* g, float* first, float* second);
  // The first pass of LAMB. Updates the moments and returns the squared norm of the directions.
  double (*lamb_moments)(const UpdateRule&, std::int64_t n, const float* w, const float* g, float* m, float* v);
  // Applies averaged_weight() to n elements.
  void (*average_weights)(const UpdateRule&, std::int64_t n, const float* w, float* average);
  // Applies muon_direction() to n elements of one matrix.
  void (*muon_directions)(const UpdateRule&, std::int64_t n, const float* g, float* momentum, float* directions);
};

// Norms, ReLU and the residual addition over blocked activations, with as few passes over memory as possible. A call
// works on one unit: the pixels of one image and one block of `lanes` channels, [pixels][lanes].

// The coefficients of one block of channels: z = (x - mean) scale + beta. All arrays are [lanes].
struct Affine {
  const float *mean, *scale, *beta;  // all null: z = x
};

// y = activation(norm(x) + second). `second` is norm2(x2), plain x2, or absent.
template <class T>
struct NormForward {
  std::int64_t pixels;
  const T* x;
  Affine norm;
  const T* second;  // null: none
  Affine norm2;     // of `second`
  bool relu;
  T* y;
  std::uint8_t* mask;  // lanes / 8 bytes per pixel: y > 0; null: not wanted
};

// The first half of the backward pass computes dz, the gradient of z = norm(x) + second, and its sums over the unit.
// dz = d0 + d1 where the ReLU passes it, otherwise 0. The ReLU passes it where the bits of `mask` are set. Without a
// mask, it passes where `values` are positive. Without both and with `relu`, it passes where norm(x) is positive.
// Otherwise it passes everywhere.
template <class T>
struct NormBackwardSums {
  std::int64_t pixels;
  const T *d0, *d1;          // gradients of y from one or two consumers; d1 may be null
  const std::uint8_t* mask;  // lanes / 8 bytes per pixel; null: none
  const T* values;           // null: none
  bool relu;
  const T* x;  // null: no sums
  Affine norm;
  const T* x2;  // input of the second norm; null: none
  const float* mean2;
  T *dz, *dz2;    // may be d0 or d1; null: not wanted; dz2 is a copy of dz, only if x is null
  T* activation;  // relu(norm(x)), recomputed for a convolution's weight gradient; null: not wanted
  double* sums;   // [3][lanes]: dz, dz (x - mean), dz (x2 - mean2)
};

// The second half of the backward pass: dx = scale dz + slope (x - mean) + constant; dx2 likewise for the second norm.
template <class T>
struct NormBackwardApply {
  std::int64_t pixels;
  const T* dz;
  bool relu;  // dz is not masked yet; it passes where norm(x) is positive
  const T* x;
  Affine norm;
  const float *slope, *constant;  // [lanes]
  T* dx;                          // may be dz
  const T* x2;                    // null: none
  Affine norm2;
  const float *slope2, *constant2;
  T* dx2;  // may be dz
};

struct NormKernels {
  int lanes;
  // Computes the mean and the sum of squared differences from it, [2][lanes].
  TypedKernel<void(std::int64_t pixels, const float* x, double* result),
              void(std::int64_t pixels, const BFloat16* x, double* result)>
      moments;
  KernelOf<NormForward> forward;
  KernelOf<NormBackwardSums> backward_sums;
  KernelOf<NormBackwardApply> backward_apply;
};

// Kernels of image models for pixels, pooling, dense layers and the loss. Maps are stored as [blocks][pixels][lanes]
// per image, vectors as [channels].

// Converts pixels of one image, u8 [pixels, channels], with a table of normalised values. The value of pixel p and
// channel c is written at p * pixel_stride + c * channel_stride.
template <class T>
struct PixelRows {
  std::int64_t pixels, channels;
  const std::uint8_t* from;
  const T* table;  // [channels][256]
  T* to;
  std::int64_t pixel_stride, channel_stride;
};

// Max pooling of one image and one block of channels.
template <class T>
struct MaxPoolUnit {
  std::int64_t height, width, out_height, out_width, kernel, stride, padding;
  const T* x;
  T* y;
  std::uint8_t* place;  // [out_height x out_width][lanes]: row x kernel + column within the window; null: not needed
  const T *d0, *d1;     // backward: gradients of y; d1 may be null
  T* dx;
};

// Adds the bias to a row of a dense layer's products, and applies the ReLU.
template <class T>
struct DenseRow {
  std::int64_t columns;
  float* products;  // [columns]
  const float* bias;
  bool relu;
  T* y;  // [columns]; null: the products become logits, without the ReLU
};

// Applies the ReLU's mask to columns [begin, end) of the gradient of all rows, converts them to T, and sums each
// column.
template <class T>
struct DenseGradient {
  std::int64_t rows, columns, begin, end;
  const float* d;   // [rows, columns]
  const T* values;  // the gradient passes where they are positive; null: everywhere
  T* out;
  float* d_bias;  // [columns]
  bool accumulate;
};

struct ClassScore {
  double loss;
  bool correct, correct5;
};

// Kernels from a map of a block of channels, [pixels][lanes], to a part of a vector, and back.
template <class T>
using ToVector = void(std::int64_t pixels, std::int64_t channels, const T* x, T* y);
template <class T>
using ToMap = void(std::int64_t pixels, std::int64_t channels, const float* dy, T* dx);

struct ImageKernels {
  KernelOf<PixelRows> pixels;
  KernelOf<MaxPoolUnit> max_pool, max_pool_backward;
  // Averages: [pixels][lanes] -> [channels of the block].
  TypedKernel<ToVector<float>, ToVector<BFloat16>> average;
  TypedKernel<ToMap<float>, ToMap<BFloat16>> average_backward;
  // Transposes: [pixels][lanes] <-> [channels of the block][pixels].
  TypedKernel<ToVector<float>, ToVector<BFloat16>> flatten;
  TypedKernel<ToMap<float>, ToMap<BFloat16>> flatten_backward;
  KernelOf<DenseRow> dense;
  KernelOf<DenseGradient> dense_gradient;
  // to = from x mask x scale
  TypedKernel<void(std::int64_t n, const float* from, const std::uint8_t* mask, float scale, float* to),
              void(std::int64_t n, const BFloat16* from, const std::uint8_t* mask, float scale, BFloat16* to)>
      dropout;
  // Copies one block of a weight gradient, or adds it. `from` is [places][lanes in][lanes out]. `to` is
  // [lanes out][inputs][places]. places = kernel x kernel.
  void (*store_weights)(std::int64_t inputs, std::int64_t places, const float* from, float* to, bool accumulate);
  // Softmax cross-entropy of one row against the distribution (1 - smoothing) one-hot + smoothing / classes. Sets
  // `gradient` to scale x (softmax - distribution), unless it is null. It may be the same memory as the logits. With
  // target < 0 the row does not count, and the gradient is 0.
  ClassScore (*cross_entropy)(std::int64_t classes, const float* logits, std::int64_t target, double smoothing,
                              float scale, float* gradient);
};

const Kernels& kernels(Isa isa);
const NormKernels& norm_kernels(Isa isa);
const ImageKernels& image_kernels(Isa isa);

// In a file of kernels: the name of this copy's function, such as norm_kernels_avx2.
#define RINGTRAIN_PASTE2(a, b) a##b
#define RINGTRAIN_PASTE(a, b) RINGTRAIN_PASTE2(a, b)

}  // namespace ringtrain::cpu
