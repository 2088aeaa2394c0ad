#include "tests/emulation/reference_dnn.h"

#include <algorithm>

#include "base/error.h"
#include "tests/emulation/typed_memory.h"

namespace ringtrain::cuda {

namespace {

using Values = std::vector<float>;

constexpr double few = 1e8;  // fewer operations are not worth starting threads

class Reference {
 public:
  Reference(const DnnOperation& operation, std::span<void* const> addresses, float alpha)
      : op_(operation), tensors_(operation.tensors()), addresses_(addresses), alpha_(alpha) {
    if (tensors_.size() != addresses_.size())
      throw Error(cat(op_.key(), ": ", tensors_.size(), " tensors, but ", addresses_.size(), " addresses"));
  }

  void run() {
    switch (op_.kind) {
      case DnnKind::convolution:
        return convolution();
      case DnnKind::data_gradient:
        return data_gradient();
      case DnnKind::weight_gradient:
        return weight_gradient();
      case DnnKind::matmul:
        return matmul();
    }
  }

 private:
  std::size_t index(DnnRole role) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].role == role) return i;
    throw Error(cat(op_.key(), ": no tensor of role ", static_cast<int>(role)));
  }
  bool has(DnnRole role) const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const DnnTensor& t) { return t.role == role; });
  }
  void* address(DnnRole role) const { return addresses_[index(role)]; }

  // `count` follows from the operation's sizes. The tensor's description must say the same number.
  Values read(DnnRole role, std::int64_t count) const {
    const std::size_t i = index(role);
    check(i, count);
    return load(tensors_[i].type, addresses_[i], count);
  }
  void write(DnnRole role, Values& values) const {
    const std::size_t i = index(role);
    check(i, static_cast<std::int64_t>(values.size()));
    store(tensors_[i].type, addresses_[i], values);
  }
  void check(std::size_t i, std::int64_t count) const {
    if (tensors_[i].elements() != count)
      throw Error(cat(op_.key(), ": tensor ", i, " has ", tensors_[i].elements(), " elements, the sizes say ", count));
  }
  // Rounds a tensor that is multiplied to the type in which it is multiplied.
  Values operand(Values values) const {
    if (op_.math == Math::tf32)
      for (float& v : values) v = round_to_tf32(v);
    return values;
  }

  std::int64_t inputs() const { return op_.n * op_.h * op_.w * op_.c; }
  std::int64_t outputs() const { return op_.n * op_.out_h() * op_.out_w() * op_.k; }
  std::int64_t weights() const { return op_.k * op_.r * op_.r * op_.c; }

  Values input() const {
    Values x = read(DnnRole::x, inputs());
    if (op_.prologue != Prologue::none) {
      const Values scale = read(DnnRole::scale, op_.c), bias = read(DnnRole::bias, op_.c);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(op_.c);
        x[i] = round_to(op_.type, std::max(x[i] * scale[c] + bias[c], 0.0f));
      }
    }
    return operand(std::move(x));
  }

  // Calls body(row of w: r x s, input position, output position) for sample n, where the window lies inside the input.
  template <class Body>
  void for_each_tap(std::int64_t n, Body body) const {
    const std::int64_t out_h = op_.out_h(), out_w = op_.out_w();
    for (std::int64_t p = 0; p < out_h; ++p)
      for (std::int64_t r = 0; r < op_.r; ++r) {
        const std::int64_t row = p * op_.stride + r - op_.padding;
        if (row < 0 || row >= op_.h) continue;
        for (std::int64_t q = 0; q < out_w; ++q)
          for (std::int64_t s = 0; s < op_.r; ++s) {
            const std::int64_t column = q * op_.stride + s - op_.padding;
            if (column < 0 || column >= op_.w) continue;
            body(r * op_.r + s, (n * op_.h + row) * op_.w + column, (n * out_h + p) * out_w + q);
          }
      }
  }

  void convolution() const {
    const Values x = input(), w = operand(read(DnnRole::w, weights()));
    const std::int64_t taps = op_.r * op_.r, k = op_.k, c = op_.c;
    Values by_tap(w.size());  // [r][s][c][k], so that the inner loop runs over k
    for (std::int64_t o = 0; o < k; ++o)
      for (std::int64_t t = 0; t < taps; ++t)
        for (std::int64_t i = 0; i < c; ++i)
          by_tap[static_cast<std::size_t>((t * c + i) * k + o)] = w[static_cast<std::size_t>((o * taps + t) * c + i)];
    Values y(static_cast<std::size_t>(outputs()), 0.0f);
#pragma omp parallel for if (op_.flops() > few)
    for (std::int64_t n = 0; n < op_.n; ++n)
      for_each_tap(n, [&](std::int64_t tap, std::int64_t from, std::int64_t to) {
        float* result = y.data() + to * k;
        for (std::int64_t i = 0; i < c; ++i) {
          const float value = x[static_cast<std::size_t>(from * c + i)];
          const float* row = by_tap.data() + (tap * c + i) * k;
          for (std::int64_t o = 0; o < k; ++o) result[o] += value * row[o];
        }
      });
    write(DnnRole::y, y);
    if (op_.epilogue == Epilogue::sums) sums(y, y, k);
  }

  // Writes per channel the sum of a to `sum` and the sum of a b to `sum_other`. An engine that works with groups writes
  // both to `sum`.
  void sums(const Values& a, const Values& b, std::int64_t channels) const {
    const bool grouped = op_.engine == Engine::hopper;
    const auto width = static_cast<std::size_t>(channels), groups = static_cast<std::size_t>(grouped ? op_.groups : 1);
    std::vector<double> both(groups * 2 * width);  // [groups][2][channels]
    for (std::size_t i = 0; i < a.size(); ++i) {
      double* of = both.data() + i / (a.size() / groups) * 2 * width;
      of[i % width] += a[i];
      of[width + i % width] += static_cast<double>(a[i]) * b[i];
    }
    const auto middle = both.begin() + channels;
    Values first(both.begin(), grouped ? both.end() : middle), second(middle, both.end());
    write(DnnRole::sum, first);
    if (!grouped) write(DnnRole::sum_other, second);
  }

  void data_gradient() const {
    const Values dy = operand(read(DnnRole::dy, outputs())), w = operand(read(DnnRole::w, weights()));
    const std::int64_t taps = op_.r * op_.r, k = op_.k, c = op_.c;
    Values dx(static_cast<std::size_t>(inputs()), 0.0f);
#pragma omp parallel for if (op_.flops() > few)
    for (std::int64_t n = 0; n < op_.n; ++n)
      for_each_tap(n, [&](std::int64_t tap, std::int64_t to, std::int64_t from) {
        float* result = dx.data() + to * c;
        for (std::int64_t o = 0; o < k; ++o) {
          const float value = dy[static_cast<std::size_t>(from * k + o)];
          const float* row = w.data() + (o * taps + tap) * c;
          for (std::int64_t i = 0; i < c; ++i) result[i] += value * row[i];
        }
      });
    if (op_.epilogue == Epilogue::add || op_.epilogue == Epilogue::add_relu_sums) {
      const Values shortcut = read(DnnRole::shortcut, inputs());
      for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += shortcut[i];
    }
    if (op_.epilogue == Epilogue::none || op_.epilogue == Epilogue::add) return write(DnnRole::dx, dx);

    const Values norm_input = read(DnnRole::norm_input, inputs());
    Values output;
    if (op_.epilogue == Epilogue::add_relu_sums) {
      output = read(DnnRole::output, inputs());
    } else {
      const Values scale = read(DnnRole::scale, op_.groups * c), bias = read(DnnRole::bias, op_.groups * c);
      output.resize(dx.size());
      const std::size_t of_group = dx.size() / static_cast<std::size_t>(op_.groups);
      for (std::size_t i = 0; i < dx.size(); ++i) {
        const std::size_t channel = i % static_cast<std::size_t>(c) + i / of_group * static_cast<std::size_t>(c);
        output[i] = std::max(norm_input[i] * scale[channel] + bias[channel], 0.0f);
      }
    }
    for (std::size_t i = 0; i < dx.size(); ++i)
      if (!(output[i] > 0)) dx[i] = 0;
    write(DnnRole::dx, dx);
    if (op_.epilogue == Epilogue::relu_sums_output) write(DnnRole::output, output);
    sums(dx, norm_input, c);
  }

  void weight_gradient() const {
    const Values x = input(), dy = operand(read(DnnRole::dy, outputs()));
    const std::int64_t taps = op_.r * op_.r, k = op_.k, c = op_.c;
    std::vector<double> total(static_cast<std::size_t>(weights()), 0.0);
#pragma omp parallel for if (op_.flops() > few)
    for (std::int64_t o = 0; o < k; ++o) {
      Values of_sample(static_cast<std::size_t>(taps * c));
      for (std::int64_t n = 0; n < op_.n; ++n) {
        std::fill(of_sample.begin(), of_sample.end(), 0.0f);
        for_each_tap(n, [&](std::int64_t tap, std::int64_t from, std::int64_t to) {
          const float value = dy[static_cast<std::size_t>(to * k + o)];
          const float* row = x.data() + from * c;
          float* result = of_sample.data() + tap * c;
          for (std::int64_t i = 0; i < c; ++i) result[i] += value * row[i];
        });
        for (std::size_t i = 0; i < of_sample.size(); ++i)
          total[static_cast<std::size_t>(o) * of_sample.size() + i] += of_sample[i];
      }
    }
    const double factor = has(DnnRole::alpha) ? static_cast<double>(alpha_) : 1.0;
    Values dw(total.size());
    for (std::size_t i = 0; i < dw.size(); ++i) dw[i] = static_cast<float>(factor * total[i]);
    write(DnnRole::dw, dw);
  }

  void matmul() const {
    const std::int64_t m = op_.m, n = op_.n, k = op_.k;
    const Values a = operand(read(DnnRole::a, m * k));
    Values b = operand(read(DnnRole::b, k * n));
    if (op_.transposed_b) {
      Values straight(b.size());
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          straight[static_cast<std::size_t>(j * n + i)] = b[static_cast<std::size_t>(i * k + j)];
      b = std::move(straight);
    }
    Values bias(static_cast<std::size_t>(n), 0.0f);
    if (op_.epilogue == Epilogue::bias) bias = read(DnnRole::bias, n);
    Values y(static_cast<std::size_t>(m * n), 0.0f);
#pragma omp parallel for if (op_.flops() > few)
    for (std::int64_t i = 0; i < m; ++i) {
      Values row(bias);
      for (std::int64_t j = 0; j < k; ++j) {
        const float value = a[static_cast<std::size_t>(op_.transposed_a ? j * m + i : i * k + j)];
        const float* from = b.data() + j * n;
        for (std::int64_t o = 0; o < n; ++o) row[static_cast<std::size_t>(o)] += value * from[o];
      }
      for (std::int64_t o = 0; o < n; ++o) y[static_cast<std::size_t>(i * n + o)] += row[static_cast<std::size_t>(o)];
    }
    write(DnnRole::y, y);
  }

  const DnnOperation& op_;
  std::vector<DnnTensor> tensors_;
  std::span<void* const> addresses_;
  float alpha_;
};

}  // namespace

void compute(const DnnOperation& operation, std::span<void* const> tensors, float alpha) {
  Reference(operation, tensors, alpha).run();
}

}  // namespace ringtrain::cuda
