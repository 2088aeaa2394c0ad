// Kernels of image models for pixels, pooling, inputs and outputs of dense layers, and the loss. Maps are stored as
// [blocks][pixels][lanes] per image, vectors as [channels].
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"
#include "nn/math.h"

namespace ringtrain::cpu {

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

// Adds the bias to some rows of a dense layer's products, and applies the ReLU.
template <class T>
struct DenseRows {
  std::int64_t rows, columns;
  const float* products;  // [rows, columns]
  const float* bias;
  bool relu;
  T* y;           // [rows, columns]; not written if there are logits
  float* logits;  // [rows, columns], without the ReLU; null: y is written
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

struct ImageKernels {
  void (*pixels_f32)(const PixelRows<float>&);
  void (*pixels_bf16)(const PixelRows<BFloat16>&);
  void (*max_pool_f32)(const MaxPoolUnit<float>&);
  void (*max_pool_bf16)(const MaxPoolUnit<BFloat16>&);
  void (*max_pool_backward_f32)(const MaxPoolUnit<float>&);
  void (*max_pool_backward_bf16)(const MaxPoolUnit<BFloat16>&);
  // Averages: [pixels][lanes] -> [channels of the block].
  void (*average_f32)(std::int64_t pixels, std::int64_t channels, const float* x, float* y);
  void (*average_bf16)(std::int64_t pixels, std::int64_t channels, const BFloat16* x, BFloat16* y);
  void (*average_backward_f32)(std::int64_t pixels, std::int64_t channels, const float* dy, float* dx);
  void (*average_backward_bf16)(std::int64_t pixels, std::int64_t channels, const float* dy, BFloat16* dx);
  // Transposes: [pixels][lanes] <-> [channels of the block][pixels].
  void (*flatten_f32)(std::int64_t pixels, std::int64_t channels, const float* x, float* y);
  void (*flatten_bf16)(std::int64_t pixels, std::int64_t channels, const BFloat16* x, BFloat16* y);
  void (*flatten_backward_f32)(std::int64_t pixels, std::int64_t channels, const float* dy, float* dx);
  void (*flatten_backward_bf16)(std::int64_t pixels, std::int64_t channels, const float* dy, BFloat16* dx);
  void (*dense_f32)(const DenseRows<float>&);
  void (*dense_bf16)(const DenseRows<BFloat16>&);
  void (*dense_gradient_f32)(const DenseGradient<float>&);
  void (*dense_gradient_bf16)(const DenseGradient<BFloat16>&);
  // to = from x mask x scale
  void (*dropout_f32)(std::int64_t n, const float* from, const std::uint8_t* mask, float scale, float* to);
  void (*dropout_bf16)(std::int64_t n, const BFloat16* from, const std::uint8_t* mask, float scale, BFloat16* to);
  // Copies one block of a weight gradient, or adds it. `from` is [places][lanes in][lanes out]. `to` is
  // [lanes out][inputs][places]. places = kernel x kernel.
  void (*store_weights)(std::int64_t inputs, std::int64_t places, const float* from, float* to, bool accumulate);
  // Softmax cross-entropy of one row against the distribution (1 - smoothing) one-hot + smoothing / classes. Sets
  // `gradient` to scale x (softmax - distribution), unless it is null. It may be the same memory as the logits. With
  // target < 0 the row does not count, and the gradient is 0.
  ClassScore (*cross_entropy)(std::int64_t classes, const float* logits, std::int64_t target, double smoothing,
                              float scale, float* gradient);

  // clang-format off
  void pixels(const PixelRows<float>& a) const { pixels_f32(a); }
  void pixels(const PixelRows<BFloat16>& a) const { pixels_bf16(a); }
  void max_pool(const MaxPoolUnit<float>& a) const { max_pool_f32(a); }
  void max_pool(const MaxPoolUnit<BFloat16>& a) const { max_pool_bf16(a); }
  void max_pool_backward(const MaxPoolUnit<float>& a) const { max_pool_backward_f32(a); }
  void max_pool_backward(const MaxPoolUnit<BFloat16>& a) const { max_pool_backward_bf16(a); }
  void average(std::int64_t p, std::int64_t c, const float* x, float* y) const { average_f32(p, c, x, y); }
  void average(std::int64_t p, std::int64_t c, const BFloat16* x, BFloat16* y) const { average_bf16(p, c, x, y); }
  void average_backward(std::int64_t p, std::int64_t c, const float* dy, float* dx) const { average_backward_f32(p, c, dy, dx); }
  void average_backward(std::int64_t p, std::int64_t c, const float* dy, BFloat16* dx) const { average_backward_bf16(p, c, dy, dx); }
  void flatten(std::int64_t p, std::int64_t c, const float* x, float* y) const { flatten_f32(p, c, x, y); }
  void flatten(std::int64_t p, std::int64_t c, const BFloat16* x, BFloat16* y) const { flatten_bf16(p, c, x, y); }
  void flatten_backward(std::int64_t p, std::int64_t c, const float* dy, float* dx) const { flatten_backward_f32(p, c, dy, dx); }
  void flatten_backward(std::int64_t p, std::int64_t c, const float* dy, BFloat16* dx) const { flatten_backward_bf16(p, c, dy, dx); }
  void dense(const DenseRows<float>& a) const { dense_f32(a); }
  void dense(const DenseRows<BFloat16>& a) const { dense_bf16(a); }
  void dense_gradient(const DenseGradient<float>& a) const { dense_gradient_f32(a); }
  void dense_gradient(const DenseGradient<BFloat16>& a) const { dense_gradient_bf16(a); }
  void dropout(std::int64_t n, const float* from, const std::uint8_t* mask, float scale, float* to) const { dropout_f32(n, from, mask, scale, to); }
  void dropout(std::int64_t n, const BFloat16* from, const std::uint8_t* mask, float scale, BFloat16* to) const { dropout_bf16(n, from, mask, scale, to); }
  // clang-format on
};

const ImageKernels& image_kernels(Isa isa);

}  // namespace ringtrain::cpu
