#include "tests/emulation/reference_rnn.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/emulation/typed_memory.h"

namespace ringtrain::cuda {

namespace {

using Values = std::vector<float>;

constexpr std::int64_t gap = 5;  // elements before and after every tensor

// Adds x w to y: y[rows, columns] += x[rows, inner] w[inner, columns].
void add_product(float* y, const float* x, const float* w, std::int64_t rows, std::int64_t inner,
                 std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < inner; ++i) {
      const float value = x[r * inner + i];
      for (std::int64_t c = 0; c < columns; ++c) y[r * columns + c] += value * w[i * columns + c];
    }
}

// Adds u^T v to y: y[a, b] += sum over rows of u[row, a] v[row, b].
void add_outer_product(float* y, const float* u, const float* v, std::int64_t rows, std::int64_t a, std::int64_t b) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < a; ++i) {
      const float value = u[r * a + i];
      for (std::int64_t j = 0; j < b; ++j) y[i * b + j] += value * v[r * b + j];
    }
}

Values transposed(const Values& w, std::int64_t rows, std::int64_t columns) {
  Values result(w.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      result[static_cast<std::size_t>(c * rows + r)] = w[static_cast<std::size_t>(r * columns + c)];
  return result;
}

// The weights of one layer, with the gates one below another. w_x is [4 hidden, features], w_h is [4 hidden, hidden],
// and `bias` is the sum of both biases.
struct LayerWeights {
  Values w_x, w_h, bias;
};

std::int64_t features(const RnnOperation& op, std::int64_t layer) {
  return layer == 0 ? op.input : op.hidden;
}

Values operand(const RnnOperation& op, Values values) {
  if (op.math == Math::tf32)
    for (float& v : values) v = round_to_tf32(v);
  return values;
}

LayerWeights read_layer(const RnnOperation& op, const void* space, std::int64_t layer) {
  LayerWeights result;
  result.w_x.resize(static_cast<std::size_t>(4 * op.hidden * features(op, layer)));
  result.w_h.resize(static_cast<std::size_t>(4 * op.hidden * op.hidden));
  result.bias.resize(static_cast<std::size_t>(4 * op.hidden), 0.0f);
  for (const RnnWeight& w : weight_layout(op)) {
    if (w.layer != layer) continue;
    const Values from = load(op.type, static_cast<const char*>(space) + w.offset * bytes_of(op.type), w.count);
    Values& to = w.bias ? result.bias : w.recurrent ? result.w_h : result.w_x;
    float* place = to.data() + w.gate * w.count;
    for (std::size_t i = 0; i < from.size(); ++i) place[i] = w.bias ? place[i] + from[i] : from[i];
  }
  result.w_x = operand(op, std::move(result.w_x));
  result.w_h = operand(op, std::move(result.w_h));
  return result;
}

// The values of the forward pass that the backward pass reads, per layer: gates after their sigmoid or tanh, cell
// states, and outputs.
struct Reserve {
  float *gates, *cells, *outputs;
};
Reserve reserve_of(const RnnOperation& op, void* memory, std::int64_t layer) {
  const std::int64_t units = op.length * op.batch * op.hidden;
  float* base = static_cast<float*>(memory) + layer * 6 * units;
  return {base, base + 4 * units, base + 5 * units};
}

Values state_of(const RnnOperation& op, const void* states, std::int64_t layer) {
  const std::int64_t count = op.batch * op.hidden;
  if (states == nullptr) return Values(static_cast<std::size_t>(count), 0.0f);
  return load(op.type, static_cast<const char*>(states) + layer * count * bytes_of(op.type), count);
}
void store_state(const RnnOperation& op, void* states, std::int64_t layer, Values values) {
  if (states == nullptr) return;
  store(op.type, static_cast<char*>(states) + layer * op.batch * op.hidden * bytes_of(op.type), values);
}

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

}  // namespace

std::vector<RnnWeight> weight_layout(const RnnOperation& op) {
  std::vector<RnnWeight> result;
  std::int64_t offset = gap;
  for (std::int64_t layer = op.layers; layer-- > 0;)
    for (const bool bias : {true, false})
      for (const int gate : {2, 0, 3, 1})
        for (const bool recurrent : {true, false}) {
          const std::int64_t width = bias ? 1 : recurrent ? op.hidden : features(op, layer);
          result.push_back({layer, recurrent, bias, gate, offset, op.hidden * width});
          offset += op.hidden * width + gap;
        }
  return result;
}

std::int64_t weight_elements(const RnnOperation& op) {
  const RnnWeight last = weight_layout(op).back();
  return last.offset + last.count + gap;
}

std::int64_t reserve_elements(const RnnOperation& op) {
  return op.training ? op.layers * 6 * op.length * op.batch * op.hidden : 0;
}

void forward(const RnnOperation& op, const RnnForward& a) {
  const std::int64_t rows = op.batch, hidden = op.hidden, all = op.length * rows;
  Values x = load(op.type, a.x, all * op.input);
  Values memory(static_cast<std::size_t>(op.training ? 0 : 6 * all * hidden));
  for (std::int64_t layer = 0; layer < op.layers; ++layer) {
    const LayerWeights w = read_layer(op, a.weights, layer);
    const std::int64_t width = features(op, layer);
    const Values w_h = transposed(w.w_h, 4 * hidden, hidden);
    const Reserve r = op.training ? reserve_of(op, a.reserve, layer) : reserve_of(op, memory.data(), 0);
    for (std::int64_t row = 0; row < all; ++row) std::copy(w.bias.begin(), w.bias.end(), r.gates + row * 4 * hidden);
    add_product(r.gates, operand(op, x).data(), transposed(w.w_x, 4 * hidden, width).data(), all, width, 4 * hidden);

    Values h = state_of(op, a.h0, layer), c = state_of(op, a.c0, layer);
    for (std::int64_t t = 0; t < op.length; ++t) {
      float* gates = r.gates + t * rows * 4 * hidden;
      add_product(gates, operand(op, h).data(), w_h.data(), rows, hidden, 4 * hidden);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t j = 0; j < hidden; ++j) {
          float* g = gates + row * 4 * hidden + j;
          const auto at = static_cast<std::size_t>(row * hidden + j);
          const float i = g[0] = sigmoid(g[0]), f = g[hidden] = sigmoid(g[hidden]);
          const float z = g[2 * hidden] = std::tanh(g[2 * hidden]), o = g[3 * hidden] = sigmoid(g[3 * hidden]);
          c[at] = f * c[at] + i * z;
          h[at] = round_to(op.type, o * std::tanh(c[at]));
        }
      std::copy(c.begin(), c.end(), r.cells + t * rows * hidden);
      std::copy(h.begin(), h.end(), r.outputs + t * rows * hidden);
    }
    store_state(op, a.hn, layer, h);
    store_state(op, a.cn, layer, c);
    x.assign(r.outputs, r.outputs + all * hidden);
  }
  store(op.type, a.y, x);
}

void backward(const RnnOperation& op, const RnnBackward& a) {
  const std::int64_t rows = op.batch, hidden = op.hidden, all = op.length * rows, state = rows * hidden;
  Values dy = load(op.type, a.dy, all * hidden);
  for (std::int64_t layer = op.layers; layer-- > 0;) {
    const LayerWeights w = read_layer(op, a.weights, layer);
    const Reserve r = reserve_of(op, a.reserve, layer);
    const std::int64_t width = features(op, layer);
    const Values h0 = state_of(op, a.h0, layer), c0 = state_of(op, a.c0, layer);

    Values d(static_cast<std::size_t>(all * 4 * hidden));  // with respect to the values before sigmoid and tanh
    Values dh_next(static_cast<std::size_t>(state), 0.0f), dc_next(dh_next);
    for (std::int64_t t = op.length; t-- > 0;) {
      const float* c_before = t == 0 ? c0.data() : r.cells + (t - 1) * state;
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t j = 0; j < hidden; ++j) {
          const std::int64_t at = row * hidden + j;
          const float* g = r.gates + (t * rows + row) * 4 * hidden + j;
          float* dg = d.data() + (t * rows + row) * 4 * hidden + j;
          const float i = g[0], f = g[hidden], z = g[2 * hidden], o = g[3 * hidden];
          const float tanh_c = std::tanh(r.cells[t * state + at]);
          const float dh = dy[static_cast<std::size_t>(t * state + at)] + dh_next[static_cast<std::size_t>(at)];
          const float dc = dc_next[static_cast<std::size_t>(at)] + dh * o * (1 - tanh_c * tanh_c);
          dg[0] = dc * z * i * (1 - i);
          dg[hidden] = dc * c_before[at] * f * (1 - f);
          dg[2 * hidden] = dc * i * (1 - z * z);
          dg[3 * hidden] = dh * tanh_c * o * (1 - o);
          dc_next[static_cast<std::size_t>(at)] = dc * f;
        }
      std::fill(dh_next.begin(), dh_next.end(), 0.0f);
      Values step(d.begin() + t * rows * 4 * hidden, d.begin() + (t + 1) * rows * 4 * hidden);
      add_product(dh_next.data(), operand(op, std::move(step)).data(), w.w_h.data(), rows, 4 * hidden, hidden);
    }

    const Values multiplied = operand(op, d);
    const float* below = layer == 0 ? nullptr : reserve_of(op, a.reserve, layer - 1).outputs;
    const Values x = layer == 0 ? load(op.type, a.x, all * width) : Values(below, below + all * hidden);
    Values before = h0;  // h of the previous time step
    const bool last = layer + 1 == op.layers;
    const Values outputs = last ? load(op.type, a.y, all * hidden) : Values(r.outputs, r.outputs + all * hidden);
    before.insert(before.end(), outputs.begin(), outputs.end() - state);
    Values dw_x(w.w_x.size(), 0.0f), dw_h(w.w_h.size(), 0.0f), db(w.bias.size(), 0.0f);
    add_outer_product(dw_x.data(), multiplied.data(), operand(op, x).data(), all, 4 * hidden, width);
    add_outer_product(dw_h.data(), multiplied.data(), operand(op, before).data(), all, 4 * hidden, hidden);
    for (std::size_t i = 0; i < d.size(); ++i) db[i % db.size()] += d[i];
    for (const RnnWeight& at : weight_layout(op)) {
      if (at.layer != layer) continue;
      char* place = static_cast<char*>(a.dweights) + at.offset * bytes_of(op.type);
      Values sum = load(op.type, place, at.count);
      const Values& of = at.bias ? db : at.recurrent ? dw_h : dw_x;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of[static_cast<std::size_t>(at.gate * at.count) + i];
      store(op.type, place, sum);
    }

    if (layer == 0 && a.dx == nullptr) break;
    Values dx(static_cast<std::size_t>(all * width), 0.0f);
    add_product(dx.data(), multiplied.data(), w.w_x.data(), all, 4 * hidden, width);
    if (layer == 0) store(op.type, a.dx, dx);
    dy = std::move(dx);
  }
  std::fill_n(static_cast<float*>(a.reserve), reserve_elements(op), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace ringtrain::cuda
