// The CPU backend's own kernels of text models, and those that all models share: dropout masks, sums, norms and
// updates. image_kernels.h and norm_kernels.h have the other kernels of image models. kernels.cpp is compiled once per
// instruction set. A table of pointers is chosen at run time.
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"
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
  std::uint64_t key;  // with the next four values it decides every random bit; see nn/dropout.h
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

struct Kernels {
  void (*lstm_forward_f32)(const LstmForward<float>&);
  void (*lstm_forward_bf16)(const LstmForward<BFloat16>&);
  void (*lstm_backward_f32)(const LstmBackward<float>&);
  void (*lstm_backward_bf16)(const LstmBackward<BFloat16>&);
  void (*dropout_mask)(const DropoutMask&, std::int64_t rows, std::int64_t hidden, std::uint8_t* mask);
  CrossEntropySums (*cross_entropy_f32)(const CrossEntropyRows<float>&);
  CrossEntropySums (*cross_entropy_bf16)(const CrossEntropyRows<BFloat16>&);
  void (*to_bf16)(std::int64_t n, const float* from, BFloat16* to);
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

  void lstm_forward(const LstmForward<float>& a) const { lstm_forward_f32(a); }
  void lstm_forward(const LstmForward<BFloat16>& a) const { lstm_forward_bf16(a); }
  void lstm_backward(const LstmBackward<float>& a) const { lstm_backward_f32(a); }
  void lstm_backward(const LstmBackward<BFloat16>& a) const { lstm_backward_bf16(a); }
  CrossEntropySums cross_entropy(const CrossEntropyRows<float>& a) const { return cross_entropy_f32(a); }
  CrossEntropySums cross_entropy(const CrossEntropyRows<BFloat16>& a) const { return cross_entropy_bf16(a); }
};

const Kernels& kernels(Isa isa);

}  // namespace ringtrain::cpu
