// Operations that cuDNN's graph API runs: convolutions with what is fused to them, and matrix products. A description
// is plain data, so that it can be a key of caches and tables, be planned for a GPU that is only described, and be
// computed by loops in tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/types.h"

namespace ringtrain::cuda {

// Activations are NHWC, weights KRSC: [k][r][s][c].
enum class DnnKind {
  convolution,      // y = conv(x, w)
  data_gradient,    // dx from dy, w
  weight_gradient,  // dw from dy, x; fp32
  matmul            // y[m, n] = a[m, k] b[k, n], each possibly transposed in memory; see `transposed_*`
};

enum class Prologue {
  none,
  scale_bias_relu,  // of x, per channel: relu(scale x + bias)
};

enum class Epilogue {
  none,
  sums,       // convolution: sum and sum of squares of y over n, h, w, per channel, fp32 (from y as it is stored)
  add,        // data_gradient: + shortcut gradient
  relu_sums,  // data_gradient: dReLU of the norm output scale x + bias, recomputed from the norm's input x; then
              // sum(dr), sum(dr x) per channel, fp32. dr is what is written.
  relu_sums_output,  // the same, and relu(scale x + bias) is written as well: the weight gradient's input
  add_relu_sums,     // data_gradient: + shortcut gradient, dReLU from the block's output y, then the two sums with the
                     // norm's input x
  bias               // matmul: + bias[n] (fp32 vector)
};

enum class DnnRole {
  x,  // convolution, weight_gradient: the input (before a prologue)
  w,
  y,  // result of convolution and matmul
  dy,
  dx,  // result of data_gradient
  dw,  // result of weight_gradient, fp32
  scale,
  bias,        // per channel of x, fp32 (in the prologue of a specialised operation: its own type)
  shortcut,    // added in an epilogue
  norm_input,  // the epilogue's x
  output,      // the epilogue's y (add_relu_sums), or what relu_sums_output writes
  sum,
  sum_other,  // fp32 per channel
  a,
  b,     // of matmul
  alpha  // fp32 scalar on the host, passed by value: factor of an fp32 weight gradient from 16-bit inputs
};

// Who computes it.
enum class Engine {
  general,      // cuDNN: any plan of its heuristics
  specialised,  // cuDNN: the engines made for exactly this fusion (fp16: genstats and its kin)
  hopper        // our library of CUTLASS's convolutions (backend/cuda/hopper): 16 bits, compute capability 9.0
};

struct DnnTensor {
  DnnRole role;
  Type type;
  std::vector<std::int64_t> dimensions,
      strides;  // n c h w order of dimensions, as cuDNN wants them; strides in elements
  bool output = false;
  std::int64_t elements() const;
};

struct DnnOperation {
  DnnKind kind = DnnKind::convolution;
  Type type = Type::fp32;  // of activations and weights
  Math math = Math::fp32;
  std::int64_t n = 0, c = 0, h = 0, w = 0;             // x
  std::int64_t k = 0, r = 0, stride = 1, padding = 0;  // output channels, square kernel
  std::int64_t m = 0;                                  // matmul: [m, k] x [k, n]
  bool transposed_a = false, transposed_b = false;     // matmul: a is stored [k, m], b is stored [n, k]
  Type result = Type::fp32;                            // of y (matmul), of dw
  Prologue prologue = Prologue::none;
  Epilogue epilogue = Epilogue::none;
  Engine engine = Engine::general;
  // Of Engine::hopper: scale, bias and sums are those of so many equal runs of samples, [groups][c]; `sum` is both sums
  // of a group one behind the other, [groups][2][channels], and there is no sum_other.
  std::int64_t groups = 1;

  bool operator==(const DnnOperation&) const = default;
  std::int64_t out_h() const { return (h + 2 * padding - r) / stride + 1; }
  std::int64_t out_w() const { return (w + 2 * padding - r) / stride + 1; }
  double flops() const;
  std::vector<DnnTensor> tensors() const;  // inputs, then results; the order of Device::run's addresses
  std::string key() const;  // unique, one line: "conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +sums"
};

// The operation with this key(); throws Error naming the part it does not understand.
DnnOperation parse_operation(const std::string& key);

// What a device made of it. Made and owned by the device.
class DnnPlan {
 public:
  virtual ~DnnPlan() = default;
  virtual const DnnOperation& operation() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;
  virtual std::string engine() const = 0;  // cuDNN's name of the engine and its knobs
};

}  // namespace ringtrain::cuda
