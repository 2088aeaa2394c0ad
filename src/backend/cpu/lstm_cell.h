// One unit of an LSTM cell (Hochreiter and Schmidhuber 1997, with a forget gate, as in torch.nn.LSTM):
//   i, f, o = sigmoid(...), g = tanh(...);  c = f c' + i g;  h = o tanh(c)
// The GPU computes LSTM layers with cuDNN.
#pragma once

#include "nn/math.h"

namespace ringtrain::cpu {

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

}  // namespace ringtrain::cpu
