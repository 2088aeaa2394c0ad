// This folder describes the operations that cuDNN computes and turns them into cuDNN's execution plans. DnnOperation
// describes a convolution with the operations fused to it, or a matrix product. It is plain data: it can be a key of
// caches and tables, it can be planned for a GPU that is only described, and tests can compute it with loops.
// DnnPlanner (plans.h) makes plans with cuDNN's graph API. RnnOperation describes LSTM layers.
// device/libraries.h opens cuDNN at run time. Begin reading here, then read plans.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/types.h"

namespace ringtrain::cuda {

// Activations are NHWC. Weights are KRSC: [output channel][kernel row][kernel column][input channel].
enum class DnnKind {
  convolution,      // y = conv(x, w)
  data_gradient,    // dx from dy, w
  weight_gradient,  // dw from dy, x; of type `result`
  matmul            // y[m, n] = a[m, k] b[k, n]; `transposed_*` say how a and b are stored
};

enum class Prologue {
  none,
  scale_bias_relu,  // x becomes relu(scale x + bias), per channel
};

enum class Epilogue {
  none,
  sums,       // convolution: the sums of y and of y^2 over n, h, w per channel, in fp32, from y as it is stored
  add,        // data_gradient: adds the shortcut's gradient
  relu_sums,  // data_gradient: applies the ReLU's derivative. The epilogue recomputes the ReLU's input, scale x + bias,
              // from the norm's input x. The result is dr. Also writes sum(dr) and sum(dr x) per channel, in fp32.
  relu_sums_output,  // as relu_sums; also writes relu(scale x + bias), the input of the weight gradient
  add_relu_sums,     // data_gradient: adds the shortcut's gradient and applies the ReLU's derivative, taken from the
                     // block's output y. Also writes the two sums with the norm's input x.
  bias               // matmul: adds bias[n], an fp32 vector
};

enum class DnnRole {
  x,  // the input of convolution and weight_gradient, before a prologue
  w,
  y,  // result of convolution and matmul
  dy,
  dx,  // result of data_gradient
  dw,  // result of weight_gradient, of type `result`
  scale,
  bias,  // scale and bias: per channel of x, in fp32, or in `type` for the prologue of Engine::specialised; matmul: [n]
  shortcut,    // the gradient that an epilogue adds
  norm_input,  // x of the epilogue
  output,      // y of add_relu_sums, or the tensor that relu_sums_output writes
  sum,
  sum_other,  // fp32 per channel
  a,
  b,     // a and b are the factors of matmul
  alpha  // an fp32 scalar on the host, passed by value: the factor of an fp32 weight gradient from 16-bit inputs
};

// Names the library that computes the operation.
enum class Engine {
  general,      // cuDNN, with any plan that its heuristics propose
  specialised,  // cuDNN's engines that are made for weight gradients with a prologue
  hopper        // this program's library of CUTLASS convolutions (backend/cuda/hopper): 16 bits, compute capability 9.0
};

struct DnnTensor {
  DnnRole role;
  Type type;
  std::vector<std::int64_t> dimensions,
      strides;  // dimensions in the order n c h w, as cuDNN expects; strides in elements
  bool output = false;
  std::int64_t elements() const;
};

struct DnnOperation {
  DnnKind kind = DnnKind::convolution;
  Type type = Type::fp32;  // type of activations and weights
  Math math = Math::fp32;
  std::int64_t n = 0, c = 0, h = 0, w = 0;             // shape of x
  std::int64_t k = 0, r = 0, stride = 1, padding = 0;  // output channels, square kernel
  std::int64_t m = 0;                                  // matmul: [m, k] x [k, n]
  bool transposed_a = false, transposed_b = false;     // matmul: a is stored as [k, m], b as [n, k]
  Type result = Type::fp32;                            // type of y of a matmul, and of dw
  Prologue prologue = Prologue::none;
  Epilogue epilogue = Epilogue::none;
  Engine engine = Engine::general;
  // Only Engine::hopper uses `groups`. The samples are then this many groups of equal size, one after the other. scale
  // and bias are [groups][c]. The tensor `sum` holds both sums of each group, [groups][2][channels], and there is no
  // sum_other.
  std::int64_t groups = 1;

  bool operator==(const DnnOperation&) const = default;
  std::int64_t out_h() const { return (h + 2 * padding - r) / stride + 1; }
  std::int64_t out_w() const { return (w + 2 * padding - r) / stride + 1; }
  double flops() const;
  std::vector<DnnTensor> tensors() const;  // inputs first, then results; Device::run takes addresses in this order
  std::string key() const;  // unique, one line: "conv bf16 n32 c64 56x56 k256 r1 s1 p0 +scale_bias_relu +sums"
};

// The three products of a dense layer y = x W^T on `rows` rows, where x has `input` columns and y, which is of type
// `result`, has `output` columns. The gradient of the weights is fp32.
struct DenseProducts {
  DnnOperation forward, data_gradient, weight_gradient;
};
DenseProducts dense_products(Type type, Math math, std::int64_t rows, std::int64_t input, std::int64_t output,
                             Type result);

// Returns the operation with this key(). Throws Error that names the part it does not understand.
DnnOperation parse_operation(const std::string& key);

// A DnnPlan is a device's plan for an operation. The device makes and owns it.
class DnnPlan {
 public:
  virtual ~DnnPlan() = default;
  virtual const DnnOperation& operation() const = 0;
  virtual std::int64_t workspace_bytes() const = 0;
  virtual std::string engine() const = 0;  // cuDNN's name for the engine and its knobs
};

// Holds cuDNN's answer about one operation on one device. Answers have this one form everywhere: for a described
// device, in the cache, in messages to other ranks and in a run's folder.
struct PlanAnswer {
  bool found = false;
  std::int64_t workspace_bytes = 0;
  std::string engine = {};  // when found: cuDNN's name for the engine and its knobs
  std::string why = {};     // when refused: the reason in cuDNN's words
  int timed = 0;            // the plan was the fastest of up to this many; 0: cuDNN's first guess
  std::string bytes = {};   // the plan as cuDNN serialises it, 0.1 to 0.3 MB; empty for a device that is only described
  bool operator==(const PlanAnswer&) const = default;
};

// Writes "found", the workspace and the engine, or "refused", 0 and the reason, with `separator` between them. The
// engine and the reason contain neither the separator nor a line break.
std::string to_line(const PlanAnswer& answer, char separator);
PlanAnswer parse_answer(const std::string& line, char separator);  // throws Error

// Describes LSTM layers for cuDNN's recurrent calls. Sequences are [length, batch, features]. The gates are in the
// order i f g o, as in torch.nn.LSTM and cuDNN. cuDNN applies no dropout. The program applies its own dropout between
// layers, whose random bits depend on the position in the batch.
enum class RnnAlgorithm { standard, persist_static, persist_dynamic, persist_small_h };
inline constexpr RnnAlgorithm rnn_algorithms[] = {RnnAlgorithm::standard, RnnAlgorithm::persist_static,
                                                  RnnAlgorithm::persist_dynamic, RnnAlgorithm::persist_small_h};
const char* rnn_algorithm_name(RnnAlgorithm algorithm);
// Returns the reason why no plan may use this algorithm, or "". The variable RINGTRAIN_WITHOUT_RNN names algorithms
// that are excluded, with commas between them. Throws Error when it has another name.
std::string why_excluded(RnnAlgorithm algorithm);

struct RnnOperation {
  std::int64_t layers = 1, input = 0, hidden = 0, length = 0, batch = 0;
  Type type = Type::fp32;
  Math math = Math::fp32;
  RnnAlgorithm algorithm = RnnAlgorithm::standard;
  bool training = true;
  bool operator==(const RnnOperation&) const = default;
  std::string key()
      const;  // unique, one line: "lstm bf16 layers4 input128 hidden512 length64 batch4096 standard training"
  double flops() const;  // operations of a forward pass; a backward pass has twice as many
};

// Holds the place of one tensor in cuDNN's weight space. offset and count are in elements of the operation's type.
struct RnnWeight {
  std::int64_t layer = 0;
  bool recurrent = false;  // true: multiplies h; false: multiplies x
  bool bias = false;       // true: [hidden]; false: [hidden, features], row-major
  int gate = 0;            // 0..3: i f g o
  std::int64_t offset = 0, count = 0;
};

class RnnPlan {
 public:
  virtual ~RnnPlan() = default;
  virtual const RnnOperation& operation() const = 0;
  virtual std::int64_t weight_bytes() const = 0;  // size of the weight space, and of its gradient
  virtual std::int64_t workspace_bytes() const = 0;
  virtual std::int64_t reserve_bytes() const = 0;  // memory from forward to backward; 0 in inference
  virtual const std::vector<RnnWeight>& weights() const = 0;
};

// Device addresses. h0, c0, hn and cn are [layers, batch, hidden]. When h0 and c0 are null, the state begins with
// zeros. When hn and cn are null, the final state is not written.
struct RnnForward {
  const void *x = nullptr, *weights = nullptr, *h0 = nullptr, *c0 = nullptr;
  void *y = nullptr, *hn = nullptr, *cn = nullptr, *workspace = nullptr, *reserve = nullptr;
};
// Computes the data gradient, then the weight gradient. `dx` is null when it is not wanted. The weight gradient is
// added to `dweights`.
struct RnnBackward {
  const void *x = nullptr, *weights = nullptr, *h0 = nullptr, *c0 = nullptr, *y = nullptr, *dy = nullptr;
  void *dx = nullptr, *dweights = nullptr, *workspace = nullptr, *reserve = nullptr;
};

}  // namespace ringtrain::cuda
