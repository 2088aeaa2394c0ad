// Tests the loops that replace cuDNN's recurrent calls in tests. The forward pass is compared with the formulas in
// fp64, and the backward pass with differences of the forward pass.
#include "tests/emulation/reference_rnn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "tests/emulation/typed_memory.h"

namespace ringtrain::cuda {
namespace {

using Values = std::vector<float>;

Values random_values(std::int64_t count, std::uint64_t key, double size = 1) {
  Values result;
  for (std::int64_t i = 0; i < count; ++i)
    result.push_back(static_cast<float>(size * random_normal(key, static_cast<std::uint64_t>(i))));
  return result;
}

// A pass of an operation in fp32 over random values.
struct Pass {
  RnnOperation op;
  std::int64_t rows = op.length * op.batch, states = op.layers * op.batch * op.hidden;
  Values x = random_values(rows * op.input, 1), weights = random_values(weight_elements(op), 2, 0.4);
  Values h0 = random_values(states, 3, 0.5), c0 = random_values(states, 4), dy = random_values(rows * op.hidden, 5);
  Values y = Values(static_cast<std::size_t>(rows * op.hidden)), hn = Values(h0.size()), cn = Values(h0.size());
  Values reserve = Values(static_cast<std::size_t>(reserve_elements(op))), workspace = Values(1);

  explicit Pass(const RnnOperation& operation) : op(operation) {}
  void run_forward() {
    forward(op, {x.data(), weights.data(), h0.data(), c0.data(), y.data(), hn.data(), cn.data(), workspace.data(),
                 reserve.data()});
  }
  void run_backward(Values* dx, Values& dweights) {
    backward(op, {x.data(), weights.data(), h0.data(), c0.data(), y.data(), dy.data(),
                  dx == nullptr ? nullptr : dx->data(), dweights.data(), workspace.data(), reserve.data()});
  }
  double loss() {
    run_forward();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * dy[i];
    return sum;
  }
  double weight(std::int64_t layer, bool recurrent, bool bias, int gate, std::int64_t at) const {
    for (const RnnWeight& w : weight_layout(op))
      if (w.layer == layer && w.recurrent == recurrent && w.bias == bias && w.gate == gate)
        return weights[static_cast<std::size_t>(w.offset + at)];
    throw std::out_of_range("weight");
  }
};

const RnnOperation small = {.layers = 2, .input = 3, .hidden = 4, .length = 5, .batch = 2};

TEST(ReferenceRnn, EveryWeightHasItsPlaceAndNoneOverlap) {
  std::vector<RnnWeight> places = weight_layout(small);
  EXPECT_EQ(places.size(), 2u * 4 * 2 * 2);
  std::sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::int64_t end = 0, count = 0;
  for (const RnnWeight& w : places) {
    EXPECT_GE(w.offset, end);
    end = w.offset + w.count;
    count += w.count;
  }
  EXPECT_LE(end, weight_elements(small));
  EXPECT_EQ(count, 16 * (3 + 4 + 2) + 16 * (4 + 4 + 2));
}

TEST(ReferenceRnn, ForwardIsTheFormula) {
  Pass p(small);
  p.run_forward();
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (std::int64_t row = 0; row < 2; ++row) {
    std::vector<std::vector<double>> in;
    for (std::int64_t t = 0; t < 5; ++t)
      in.emplace_back(p.x.begin() + (t * 2 + row) * 3, p.x.begin() + (t * 2 + row + 1) * 3);
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const auto begin = (layer * 2 + row) * 4;
      std::vector<double> h(p.h0.begin() + begin, p.h0.begin() + begin + 4),
          c(p.c0.begin() + begin, p.c0.begin() + begin + 4);
      for (auto& x : in) {
        std::vector<double> next(4);
        for (std::int64_t j = 0; j < 4; ++j) {
          const auto gate = [&](int g) {
            double v = p.weight(layer, false, true, g, j) + p.weight(layer, true, true, g, j);
            for (std::size_t k = 0; k < x.size(); ++k)
              v += p.weight(layer, false, false, g, j * std::ssize(x) + static_cast<std::int64_t>(k)) * x[k];
            for (std::size_t k = 0; k < 4; ++k)
              v += p.weight(layer, true, false, g, j * 4 + static_cast<std::int64_t>(k)) * h[k];
            return v;
          };
          auto& cell = c[static_cast<std::size_t>(j)];
          cell = sigmoid(gate(1)) * cell + sigmoid(gate(0)) * std::tanh(gate(2));
          next[static_cast<std::size_t>(j)] = sigmoid(gate(3)) * std::tanh(cell);
        }
        h = x = next;
      }
      for (std::size_t j = 0; j < 4; ++j) {
        EXPECT_NEAR(p.hn[static_cast<std::size_t>(begin) + j], h[j], 1e-6);
        EXPECT_NEAR(p.cn[static_cast<std::size_t>(begin) + j], c[j], 1e-6);
      }
    }
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t j = 0; j < 4; ++j)
        EXPECT_NEAR(p.y[static_cast<std::size_t>((t * 2 + row) * 4 + j)],
                    in[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)], 1e-6);
  }
}

TEST(ReferenceRnn, BackwardIsTheDifferenceOfForward) {
  Pass p(small);
  p.run_forward();
  Values dx(p.x.size()), dweights(p.weights.size(), 100.0f), without_dx(p.weights.size(), 0.0f);
  p.run_backward(&dx, dweights);
  EXPECT_TRUE(std::isnan(p.reserve[0])) << "backward uses the reserve up";
  p.run_forward();
  p.run_backward(nullptr, without_dx);
  const float step = 1e-2f;
  const auto difference = [&](float& value) {
    const float before = value;
    value = before + step;
    const double above = p.loss();
    value = before - step;
    const double below = p.loss();
    value = before;
    return (above - below) / (2 * step);
  };
  for (std::size_t i = 0; i < p.x.size(); ++i) EXPECT_NEAR(dx[i], difference(p.x[i]), 1e-3) << i;
  for (const RnnWeight& w : weight_layout(p.op))
    for (std::int64_t e = 0; e < w.count; ++e) {
      const auto i = static_cast<std::size_t>(w.offset + e);
      const double expected = difference(p.weights[i]);
      EXPECT_NEAR(dweights[i] - 100.0f, expected, 2e-3) << "added, layer " << w.layer << " gate " << w.gate;
      EXPECT_NEAR(without_dx[i], expected, 2e-3);
    }
}

TEST(ReferenceRnn, InferenceKeepsNoReserveAndNullStatesAreZeros) {
  Pass p(small);
  p.h0.assign(p.h0.size(), 0.0f);
  p.c0.assign(p.c0.size(), 0.0f);
  p.run_forward();
  Pass q(small);
  q.op.training = false;
  EXPECT_EQ(reserve_elements(q.op), 0);
  forward(q.op,
          {q.x.data(), q.weights.data(), nullptr, nullptr, q.y.data(), nullptr, nullptr, q.workspace.data(), nullptr});
  EXPECT_EQ(p.y, q.y);
}

TEST(ReferenceRnn, SixteenBitValuesAreRoundedFromOneStepToTheNext) {
  RnnOperation op = small;
  op.type = Type::bf16;
  op.math = Math::half;
  Pass p(op);
  // Also rounds `values` themselves.
  const auto half = [](Values& values) {
    std::vector<std::uint16_t> bits(values.size());
    store(Type::bf16, bits.data(), values);
    return bits;
  };
  Pass exact(small);
  std::vector<std::uint16_t> x = half(exact.x), weights = half(exact.weights), h0 = half(exact.h0), c0 = half(exact.c0);
  std::vector<std::uint16_t> y(p.y.size());
  forward(op, {x.data(), weights.data(), h0.data(), c0.data(), y.data(), nullptr, nullptr, p.workspace.data(),
               p.reserve.data()});
  exact.run_forward();
  // Each h is rounded, not only the written result, so some values differ by more than half a step.
  std::int64_t other = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(from_bf16(y[i]), exact.y[i], 1e-2);
    other += y[i] != to_bf16(exact.y[i]);
  }
  EXPECT_GT(other, 0);
}

}  // namespace
}  // namespace ringtrain::cuda
