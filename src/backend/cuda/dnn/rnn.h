// Describes LSTM layers for cuDNN's recurrent calls. Sequences are [length, batch, features]. The gates are in the
// order i f g o, as in torch.nn.LSTM and cuDNN. cuDNN applies no dropout. The program applies its own dropout between
// layers, whose random bits depend on the position in the batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/types.h"

namespace ringtrain::cuda {

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
