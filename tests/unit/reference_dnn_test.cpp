// Tests the loops that replace cuDNN in tests of GPU programs. They are compared with the formulas in fp64 and with
// each other.
#include "tests/emulation/reference_dnn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "tests/emulation/typed_memory.h"

namespace ringtrain::cuda {
namespace {

// An operation with its tensors in memory. The inputs are random.
struct OneRun {
  DnnOperation op;
  std::vector<DnnTensor> described = op.tensors();
  std::vector<std::vector<char>> memory = {};
  float alpha = 1;

  explicit OneRun(const DnnOperation& operation) : op(operation) {
    for (std::size_t i = 0; i < described.size(); ++i) {
      const DnnTensor& t = described[i];
      memory.emplace_back(static_cast<std::size_t>(t.elements() * bytes_of(t.type)));
      std::vector<float> values(static_cast<std::size_t>(t.elements()));
      for (std::size_t e = 0; e < values.size(); ++e)
        values[e] = static_cast<float>(random_normal(17 + static_cast<std::uint64_t>(t.role), e));
      store(t.type, memory.back().data(), values);
    }
  }
  std::size_t index(DnnRole role) const {
    for (std::size_t i = 0; i < described.size(); ++i)
      if (described[i].role == role) return i;
    throw std::out_of_range("role");
  }
  std::vector<float> get(DnnRole role) const {
    const DnnTensor& t = described[index(role)];
    return load(t.type, memory[index(role)].data(), t.elements());
  }
  void set(DnnRole role, std::vector<float> values) {
    store(described[index(role)].type, memory[index(role)].data(), values);
  }
  OneRun& run() {
    std::vector<void*> addresses;
    for (auto& m : memory) addresses.push_back(m.data());
    compute(op, addresses, alpha);
    return *this;
  }
};

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}
void expect_near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << i;
}

// y(n, p, q, k) = sum of x(n, stride p + r - padding, stride q + s - padding, c) w(k, r, s, c).
std::vector<float> convolved(const DnnOperation& o, const std::vector<float>& x, const std::vector<float>& w) {
  std::vector<float> y;
  for (std::int64_t n = 0; n < o.n; ++n)
    for (std::int64_t p = 0; p < o.out_h(); ++p)
      for (std::int64_t q = 0; q < o.out_w(); ++q)
        for (std::int64_t k = 0; k < o.k; ++k) {
          double sum = 0;
          for (std::int64_t r = 0; r < o.r; ++r)
            for (std::int64_t s = 0; s < o.r; ++s)
              for (std::int64_t c = 0; c < o.c; ++c) {
                const std::int64_t i = o.stride * p + r - o.padding, j = o.stride * q + s - o.padding;
                if (i < 0 || j < 0 || i >= o.h || j >= o.w) continue;
                sum += static_cast<double>(x[static_cast<std::size_t>(((n * o.h + i) * o.w + j) * o.c + c)]) *
                       w[static_cast<std::size_t>(((k * o.r + r) * o.r + s) * o.c + c)];
              }
          y.push_back(static_cast<float>(sum));
        }
  return y;
}

std::vector<DnnOperation> shapes() {
  std::vector<DnnOperation> result;
  DnnOperation o = {.n = 2, .c = 3, .h = 7, .w = 6, .k = 5, .r = 3, .stride = 1, .padding = 1};
  result.push_back(o);
  o.stride = 2;
  result.push_back(o);
  o.r = 1, o.padding = 0;
  result.push_back(o);
  o.r = 5, o.stride = 3, o.padding = 2;
  result.push_back(o);
  return result;
}
DnnOperation of_kind(DnnOperation o, DnnKind kind, Epilogue epilogue = Epilogue::none) {
  o.kind = kind;
  o.epilogue = epilogue;
  return o;
}
DnnOperation in_half(DnnOperation o, Type type) {
  o.type = type;
  o.math = Math::half;
  return o;
}

TEST(ReferenceDnn, ConvolutionIsTheFormula) {
  for (const DnnOperation& o : shapes()) {
    OneRun c(o);
    const std::vector<float> expected = convolved(o, c.get(DnnRole::x), c.get(DnnRole::w));
    expect_near(c.run().get(DnnRole::y), expected, 1e-5);
    for (const Type type : {Type::bf16, Type::fp16}) {
      OneRun half(in_half(o, type));
      std::vector<float> rounded = convolved(o, half.get(DnnRole::x), half.get(DnnRole::w));
      expect_near(half.run().get(DnnRole::y), rounded, type == Type::bf16 ? 0x1p-8 : 0x1p-11);
    }
  }
}

TEST(ReferenceDnn, GradientsAreTransposesOfTheConvolution) {
  for (const DnnOperation& o : shapes()) {
    OneRun forward(o), data(of_kind(o, DnnKind::data_gradient)), weight(of_kind(o, DnnKind::weight_gradient));
    data.set(DnnRole::w, forward.get(DnnRole::w));
    weight.set(DnnRole::x, forward.get(DnnRole::x));
    weight.set(DnnRole::dy, data.get(DnnRole::dy));
    const double expected = dot(forward.run().get(DnnRole::y), data.get(DnnRole::dy));
    EXPECT_NEAR(dot(data.run().get(DnnRole::dx), forward.get(DnnRole::x)), expected, 1e-4 * std::abs(expected) + 1e-4);
    EXPECT_NEAR(dot(weight.run().get(DnnRole::dw), forward.get(DnnRole::w)), expected,
                1e-4 * std::abs(expected) + 1e-4);
  }
}

TEST(ReferenceDnn, ProloguesAreAppliedToTheInputAndNotToItsPadding) {
  for (const DnnKind kind : {DnnKind::convolution, DnnKind::weight_gradient})
    for (const DnnOperation& shape : shapes()) {
      const DnnOperation plain = of_kind(shape, kind);
      DnnOperation fused = plain;
      fused.prologue = Prologue::scale_bias_relu;
      OneRun a(fused), b(plain);
      std::vector<float> x = a.get(DnnRole::x);
      const std::vector<float> scale = a.get(DnnRole::scale), bias = a.get(DnnRole::bias);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(shape.c);
        x[i] = std::max(0.0f, scale[c] * x[i] + bias[c]);
      }
      b.set(DnnRole::x, x);
      const DnnRole result = kind == DnnKind::convolution ? DnnRole::y : DnnRole::dw;
      expect_near(a.run().get(result), b.run().get(result), 1e-5);
    }
}

std::vector<float> channel_sums(const std::vector<float>& a, const std::vector<float>& b, std::int64_t channels) {
  std::vector<float> sums(static_cast<std::size_t>(channels), 0.0f);
  for (std::size_t i = 0; i < a.size(); ++i) sums[i % sums.size()] += a[i] * b[i];
  return sums;
}

TEST(ReferenceDnn, SumsBehindAConvolutionAreOfWhatIsStored) {
  for (const DnnOperation& shape : shapes()) {
    OneRun a(in_half(of_kind(shape, DnnKind::convolution, Epilogue::sums), Type::bf16));
    const std::vector<float> y = a.run().get(DnnRole::y);
    expect_near(a.get(DnnRole::sum), channel_sums(y, std::vector<float>(y.size(), 1.0f), shape.k), 1e-5);
    expect_near(a.get(DnnRole::sum_other), channel_sums(y, y, shape.k), 1e-5);
  }
}

TEST(ReferenceDnn, EpiloguesOfADataGradientAreTheirParts) {
  for (const Epilogue epilogue :
       {Epilogue::add, Epilogue::relu_sums, Epilogue::relu_sums_output, Epilogue::add_relu_sums})
    for (const DnnOperation& shape : shapes()) {
      OneRun a(of_kind(shape, DnnKind::data_gradient, epilogue)), plain(of_kind(shape, DnnKind::data_gradient));
      const bool adds = epilogue == Epilogue::add || epilogue == Epilogue::add_relu_sums;
      std::vector<float> output;
      if (epilogue == Epilogue::add_relu_sums) output = a.get(DnnRole::output);
      a.run();
      std::vector<float> expected = plain.run().get(DnnRole::dx);
      if (adds)
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += a.get(DnnRole::shortcut)[i];
      if (epilogue == Epilogue::add) {
        expect_near(a.get(DnnRole::dx), expected, 1e-6);
        continue;
      }
      const std::vector<float> x = a.get(DnnRole::norm_input);
      if (epilogue != Epilogue::add_relu_sums) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t c = i % static_cast<std::size_t>(shape.c);
          output.push_back(std::max(0.0f, a.get(DnnRole::scale)[c] * x[i] + a.get(DnnRole::bias)[c]));
        }
        if (epilogue == Epilogue::relu_sums_output) expect_near(a.get(DnnRole::output), output, 1e-6);
      }
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (output[i] <= 0) expected[i] = 0;
      expect_near(a.get(DnnRole::dx), expected, 1e-6);
      const std::vector<float> ones(x.size(), 1.0f);
      expect_near(a.get(DnnRole::sum), channel_sums(expected, ones, shape.c), 1e-4);
      expect_near(a.get(DnnRole::sum_other), channel_sums(expected, x, shape.c), 1e-4);
    }
}

TEST(ReferenceDnn, WeightGradientsAreMultiplied) {
  DnnOperation o = in_half(of_kind(shapes()[0], DnnKind::weight_gradient), Type::fp16);
  OneRun once(o), scaled(o);
  scaled.alpha = 3;
  std::vector<float> expected = once.run().get(DnnRole::dw);
  for (float& v : expected) v *= 3;
  expect_near(scaled.run().get(DnnRole::dw), expected, 1e-6);
}

TEST(ReferenceDnn, MatmulIsTheFormulaInEveryLayout) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool bias : {false, true}) {
        OneRun r(in_half({.kind = DnnKind::matmul,
                          .n = 5,
                          .k = 7,
                          .m = 4,
                          .transposed_a = ta,
                          .transposed_b = tb,
                          .epilogue = bias ? Epilogue::bias : Epilogue::none},
                         Type::bf16));
        const std::vector<float> a = r.get(DnnRole::a), b = r.get(DnnRole::b);
        std::vector<float> expected;
        for (std::size_t i = 0; i < 4; ++i)
          for (std::size_t j = 0; j < 5; ++j) {
            float sum = bias ? r.get(DnnRole::bias)[j] : 0;
            for (std::size_t k = 0; k < 7; ++k) sum += a[ta ? k * 4 + i : i * 7 + k] * b[tb ? j * 7 + k : k * 5 + j];
            expected.push_back(sum);
          }
        expect_near(r.run().get(DnnRole::y), expected, 1e-5);
      }
}

TEST(ReferenceDnn, Tf32RoundsOperandsToTenBitFractions) {
  DnnOperation o = {.kind = DnnKind::matmul, .math = Math::tf32, .n = 1, .k = 1, .m = 1};
  OneRun r(o);
  r.set(DnnRole::a, {1 + 0x1p-11f + 0x1p-20f});
  r.set(DnnRole::b, {1 + 0x1p-12f});
  EXPECT_EQ(r.run().get(DnnRole::y)[0], 1 + 0x1p-10f);
}

}  // namespace
}  // namespace ringtrain::cuda
