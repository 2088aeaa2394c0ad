// One unit of an LSTM cell (Hochreiter and Schmidhuber 1997, with a forget gate, as in torch.nn.LSTM):
//   i, f, o = sigmoid(...), g = tanh(...);  c = f c' + i g;  h = o tanh(c)
#pragma once

#include "nn/math.h"

namespace ringtrain {

struct LstmGates {
  float i, f, g, o;
};

RINGTRAIN_HD LstmGates lstm_gates(float i, float f, float g, float o) {
  return {fast_sigmoid(i), fast_sigmoid(f), fast_tanh(g), fast_sigmoid(o)};
}
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

// Dropout (Srivastava et al. 2014). A unit is dropped if its 16 random bits are below this threshold. The random bits
// come from Philox, a counter-based generator (base/random.h). They depend on the place in the data, never on the rank
// or thread. One Philox block gives 16 bits to each of eight units, so the drop probability is a multiple of 1/65536.
// Among 128 neighbouring units, unit u takes half u / 64 of word (u / 16) % 4 of block u % 16. Neighbouring units are
// thus in neighbouring lanes of a vector register.
RINGTRAIN_HD std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 65536.0 + 0.5);
}
// Philox's counter. `low` has 32 bits of the global row, the lower 16 bits of the time step, and 16 bits of the block.
// `high` has the next 8 bits of the time step, 40 bits of the training step, and 16 bits of the layer. A time step of
// 2^24 or more would repeat the bits of an earlier time step; data.sequence allows at most 10^6.
struct DropoutCounter {
  std::uint64_t low, high;
};
RINGTRAIN_HD DropoutCounter dropout_counter(std::int64_t step, std::int64_t layer, std::int64_t global_row,
                                            std::int64_t time, std::int64_t block) {
  const auto t = static_cast<std::uint64_t>(time);
  return {(static_cast<std::uint64_t>(global_row) << 32) | ((t & 0xffffu) << 16) | static_cast<std::uint64_t>(block),
          (t >> 16 << 56) | (static_cast<std::uint64_t>(step) << 16) | static_cast<std::uint64_t>(layer)};
}

}  // namespace ringtrain
