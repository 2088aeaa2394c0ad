#include "tests/unit/image_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/unit/dropout_reference.h"

namespace ringtrain {

namespace {

// A node's tensors and those of its first input, [rows, channels, height, width].
struct Place {
  const double* x;
  double* dx;  // is added to, since a tensor may feed several nodes
  double* y;
  const double* dy;
  FeatureShape in, out;
};

// For one image and one output channel, calls body(weight index, input index, output index) for every product of y(o,
// p, q) = sum over i, k, l of w(o, i, k, l) x(i, stride p + k - padding, stride q + l - padding).
template <class Body>
void for_each_product(const Convolution& op, const FeatureShape& in, const FeatureShape& out, std::int64_t o,
                      Body body) {
  for (std::int64_t i = 0; i < op.input; ++i)
    for (std::int64_t k = 0; k < op.kernel; ++k)
      for (std::int64_t l = 0; l < op.kernel; ++l) {
        const std::int64_t weight = ((o * op.input + i) * op.kernel + k) * op.kernel + l;
        for (std::int64_t p = 0; p < out.height; ++p) {
          const std::int64_t row = op.stride * p + k - op.padding;
          if (row < 0 || row >= in.height) continue;
          for (std::int64_t q = 0; q < out.width; ++q) {
            const std::int64_t column = op.stride * q + l - op.padding;
            if (column < 0 || column >= in.width) continue;
            body(weight, (i * in.height + row) * in.width + column, (o * out.height + p) * out.width + q);
          }
        }
      }
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const std::vector<double>& weights, const TestPass& pass, std::int64_t rows,
              std::int64_t group, PassMode mode)
      : graph_(graph),
        table_(graph.parameters()),
        weights_(weights),
        pass_(pass),
        rows_(rows),
        group_(group),
        training_(mode == PassMode::training) {}

  // `adjusted` holds the weights if biases are to be moved so that no value lies near a ReLU's kink. Otherwise it is
  // null.
  ImageResult run(bool with_gradients, double* adjusted = nullptr) {
    adjusted_ = adjusted;
    const std::vector<Node>& nodes = graph_.nodes();
    for (const Node& node : nodes) {
      values_.emplace_back(static_cast<std::size_t>(rows_ * node.output.size()));
      gradients_.emplace_back(training_ ? values_.back().size() : 0);
    }
    for (std::size_t i = 0; i < nodes.size(); ++i)
      std::visit([&](const auto& op) { forward(op, nodes[i], place(i)); }, nodes[i].operation);
    if (!training_ || !with_gradients) return result_;
    result_.gradients.assign(static_cast<std::size_t>(table_.size()), 0);
    for (std::size_t i = nodes.size(); i-- > 0;)
      std::visit([&](const auto& op) { backward(op, nodes[i], place(i)); }, nodes[i].operation);
    return result_;
  }

 private:
  Place place(std::size_t i) {
    const Node& node = graph_.nodes()[i];
    Place at{nullptr, nullptr, values_[i].data(), gradients_[i].data(), {}, node.output};
    if (node.inputs.empty()) return at;
    const auto input = static_cast<std::size_t>(node.inputs.front());
    at.x = values_[input].data();
    at.dx = gradients_[input].data();
    at.in = graph_.nodes()[input].output;
    return at;
  }
  const double* weight(const std::string& name) const { return weights_.data() + table_.find(name).offset; }
  double* gradient(const std::string& name) { return result_.gradients.data() + table_.find(name).offset; }

  // ---- Pixels: u8 [row, height, width, channels] -----------------------------------------------------------------

  void forward(const ImageInput& op, const Node&, const Place& at) {
    const std::int64_t plane = op.height * op.width;
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t p = 0; p < plane; ++p)
        for (std::int64_t c = 0; c < op.channels; ++c) {
          const auto channel = static_cast<std::size_t>(c);
          at.y[(r * op.channels + c) * plane + p] =
              (pass_.inputs[(r * plane + p) * op.channels + c] / 255.0 - op.mean[channel]) / op.std[channel];
        }
  }
  void backward(const ImageInput&, const Node&, const Place&) {}

  // ---- Convolution -----------------------------------------------------------------------------------------------

  // Returns whether the work is worth the start of threads.
  bool large(const Convolution& op, const Place& at) const {
    return rows_ * at.out.size() * op.input * op.kernel * op.kernel > 2'000'000;
  }
  void forward(const Convolution& op, const Node&, const Place& at) {
    const double* w = weight(op.weight);
    const std::int64_t plane = at.out.height * at.out.width;
#pragma omp parallel for if (large(op, at))
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double* x = at.x + r * at.in.size();
      double* y = at.y + r * at.out.size();
      for (std::int64_t o = 0; o < op.output; ++o) {
        if (!op.bias.empty()) std::fill_n(y + o * plane, plane, weight(op.bias)[o]);
        for_each_product(op, at.in, at.out, o,
                         [&](std::int64_t k, std::int64_t from, std::int64_t to) { y[to] += w[k] * x[from]; });
      }
    }
  }
  void backward(const Convolution& op, const Node&, const Place& at) {
    const double* w = weight(op.weight);
    double* dw = gradient(op.weight);
#pragma omp parallel for if (large(op, at))
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double* dy = at.dy + r * at.out.size();
      double* dx = at.dx + r * at.in.size();
      for (std::int64_t o = 0; o < op.output; ++o)
        for_each_product(op, at.in, at.out, o,
                         [&](std::int64_t k, std::int64_t from, std::int64_t to) { dx[from] += w[k] * dy[to]; });
    }
#pragma omp parallel for if (large(op, at))
    for (std::int64_t o = 0; o < op.output; ++o)
      for (std::int64_t r = 0; r < rows_; ++r) {
        const double *dy = at.dy + r * at.out.size(), *x = at.x + r * at.in.size();
        for_each_product(op, at.in, at.out, o,
                         [&](std::int64_t k, std::int64_t from, std::int64_t to) { dw[k] += dy[to] * x[from]; });
      }
    if (op.bias.empty()) return;
    double* db = gradient(op.bias);
    for_each(at.out, [&](std::int64_t c, std::int64_t i) { db[c] += at.dy[i]; });
  }

  // Calls body(channel, index) for every value of all rows.
  template <class Body>
  void for_each(const FeatureShape& shape, Body body) {
    for_each_of(0, rows_, shape, body);
  }
  template <class Body>
  void for_each_of(std::int64_t first_row, std::int64_t rows, const FeatureShape& shape, Body body) {
    const std::int64_t plane = shape.height * shape.width;
    for (std::int64_t r = first_row; r < first_row + rows; ++r)
      for (std::int64_t c = 0; c < shape.channels; ++c)
        for (std::int64_t p = 0; p < plane; ++p) body(c, (r * shape.channels + c) * plane + p);
  }

  // ---- Norms -----------------------------------------------------------------------------------------------------

  using Channels = std::vector<double>;

  static double& at(Channels& values, std::int64_t c) {
    return values[static_cast<std::size_t>(c)];
  }

  bool measures(const Norm& op) const {
    return training_ || op.by_sample();
  }
  // Returns the number of rows that are normalised together.
  std::int64_t rows_together(const Norm& op) const {
    return op.by_sample() ? 1 : training_ ? group_ : rows_;
  }
  double values_together(const Norm& op, const Place& place) const {
    return static_cast<double>(rows_together(op) * op.channels_together() * place.in.height * place.in.width);
  }

  // Computes the mean and the biased variance of each group of channels over the rows from `first_row` on that are
  // normalised together.
  void moments(const Norm& op, std::int64_t first_row, const Place& place, Channels& mean, Channels& variance) {
    const double n = values_together(op, place);
    const std::int64_t together = op.channels_together();
    mean.assign(static_cast<std::size_t>(op.channels / together), 0);
    variance = mean;
    for_each_of(first_row, rows_together(op), place.in,
                [&](std::int64_t c, std::int64_t i) { at(mean, c / together) += place.x[i] / n; });
    for_each_of(first_row, rows_together(op), place.in, [&](std::int64_t c, std::int64_t i) {
      const double difference = place.x[i] - at(mean, c / together);
      at(variance, c / together) += difference * difference / n;
    });
  }

  void forward(const Norm& op, const Node&, const Place& place) {
    const double *gamma = weight(op.weight), *beta = weight(op.bias);
    const std::int64_t rows = rows_together(op), together = op.channels_together();
    Channels mean, variance;
    if (!measures(op)) {
      mean.assign(weight(op.running_mean), weight(op.running_mean) + op.channels);
      variance.assign(weight(op.running_var), weight(op.running_var) + op.channels);
    }
    for (std::int64_t first = 0; first < rows_; first += rows) {
      if (measures(op)) moments(op, first, place, mean, variance);
      for_each_of(first, rows, place.in, [&](std::int64_t c, std::int64_t i) {
        const std::int64_t k = c / together;
        place.y[i] = gamma[c] * (place.x[i] - at(mean, k)) / std::sqrt(at(variance, k) + op.epsilon) + beta[c];
      });
    }
  }
  // With z = (x - mean) / sigma and n values in a group: dx = 1 / sigma (gamma dy - mean(gamma dy) - z mean(gamma dy
  // z)).
  void backward(const Norm& op, const Node&, const Place& place) {
    const double* gamma = weight(op.weight);
    double *d_gamma = gradient(op.weight), *d_beta = gradient(op.bias);
    const double n = values_together(op, place);
    const std::int64_t rows = rows_together(op), together = op.channels_together();
    Channels mean, variance;
    for (std::int64_t first = 0; first < rows_; first += rows) {
      moments(op, first, place, mean, variance);
      const auto sigma = [&](std::int64_t c) { return std::sqrt(at(variance, c / together) + op.epsilon); };
      const auto z = [&](std::int64_t c, std::int64_t i) { return (place.x[i] - at(mean, c / together)) / sigma(c); };
      Channels sum(mean.size()), product(mean.size());
      for_each_of(first, rows, place.in, [&](std::int64_t c, std::int64_t i) {
        at(sum, c / together) += gamma[c] * place.dy[i];
        at(product, c / together) += gamma[c] * place.dy[i] * z(c, i);
        d_gamma[c] += place.dy[i] * z(c, i);
        d_beta[c] += place.dy[i];
      });
      for_each_of(first, rows, place.in, [&](std::int64_t c, std::int64_t i) {
        const std::int64_t k = c / together;
        place.dx[i] += (gamma[c] * place.dy[i] - at(sum, k) / n - z(c, i) * at(product, k) / n) / sigma(c);
      });
      if (op.by_sample()) continue;
      double *means = gradient(op.running_mean), *variances = gradient(op.running_var);
      for (std::int64_t c = 0; c < op.channels; ++c) {
        means[c] += static_cast<double>(pass_.statistic_scale) * at(mean, c);
        variances[c] += static_cast<double>(pass_.statistic_scale) * at(variance, c) * n / (n - 1);
      }
    }
  }

  // ---- Element by element ----------------------------------------------------------------------------------------

  void forward(const Relu&, const Node& node, const Place& at) {
    if (adjusted_ != nullptr) keep_off_zero(node.inputs.front(), at.out);
    for_each(at.out, [&](std::int64_t, std::int64_t i) { at.y[i] = std::max(at.x[i], 0.0); });
  }
  void backward(const Relu&, const Node&, const Place& at) {
    for_each(at.out, [&](std::int64_t, std::int64_t i) { at.dx[i] += at.x[i] > 0 ? at.dy[i] : 0; });
  }

  // Returns the bias that was the last one to be added to a node's values.
  double* bias_of(int node) {
    const Operation& op = graph_.nodes()[static_cast<std::size_t>(node)].operation;
    if (std::holds_alternative<Add>(op)) return bias_of(graph_.nodes()[static_cast<std::size_t>(node)].inputs.front());
    if (const auto* norm = std::get_if<Norm>(&op)) return adjusted_ + table_.find(norm->bias).offset;
    if (const auto* dense = std::get_if<Dense>(&op)) return adjusted_ + table_.find(dense->bias).offset;
    return adjusted_ + table_.find(std::get<Convolution>(op).bias).offset;
  }
  // Shifts every channel by up to 0.1, so that zero lies in the middle of the widest gap between its values.
  void keep_off_zero(int node, const FeatureShape& shape) {
    std::vector<double>& values = values_[static_cast<std::size_t>(node)];
    std::vector<std::vector<double>> channels(static_cast<std::size_t>(shape.channels));
    for_each(shape, [&](std::int64_t c, std::int64_t i) {
      const double x = values[static_cast<std::size_t>(i)];
      if (std::abs(x) < 0.1) channels[static_cast<std::size_t>(c)].push_back(x);
    });
    Channels shifts;
    for (std::vector<double>& near : channels) {
      near.insert(near.end(), {-0.1, 0.1});
      std::sort(near.begin(), near.end());
      std::size_t widest = 1;
      for (std::size_t i = 2; i < near.size(); ++i)
        if (near[i] - near[i - 1] > near[widest] - near[widest - 1]) widest = i;
      double& bias = bias_of(node)[std::ssize(shifts)];
      const auto moved = static_cast<double>(static_cast<float>(bias - (near[widest] + near[widest - 1]) / 2));
      shifts.push_back(moved - bias);
      bias = moved;
    }
    for_each(shape, [&](std::int64_t c, std::int64_t i) { values[static_cast<std::size_t>(i)] += at(shifts, c); });
  }

  void forward(const Add&, const Node& node, const Place& at) {
    for (const int input : node.inputs)
      for_each(at.out, [&](std::int64_t, std::int64_t i) {
        at.y[i] += values_[static_cast<std::size_t>(input)][static_cast<std::size_t>(i)];
      });
  }
  void backward(const Add&, const Node& node, const Place& at) {
    for (const int input : node.inputs)
      for_each(at.out, [&](std::int64_t, std::int64_t i) {
        gradients_[static_cast<std::size_t>(input)][static_cast<std::size_t>(i)] += at.dy[i];
      });
  }

  double factor(const Dropout& op, const Place& at, std::int64_t i) const {
    if (!training_) return 1;
    return dropout_factor(pass_, op.probability, op.layer, i / at.out.size(), 0, i % at.out.size());
  }
  void forward(const Dropout& op, const Node&, const Place& at) {
    for_each(at.out, [&](std::int64_t, std::int64_t i) { at.y[i] = at.x[i] * factor(op, at, i); });
  }
  void backward(const Dropout& op, const Node&, const Place& at) {
    for_each(at.out, [&](std::int64_t, std::int64_t i) { at.dx[i] += at.dy[i] * factor(op, at, i); });
  }

  void forward(const Flatten&, const Node&, const Place& at) {
    std::copy_n(at.x, rows_ * at.out.size(), at.y);
  }
  void backward(const Flatten&, const Node&, const Place& at) {
    for_each(at.out, [&](std::int64_t, std::int64_t i) { at.dx[i] += at.dy[i]; });
  }

  // ---- Pooling ---------------------------------------------------------------------------------------------------

  // Returns the index of the largest input for an output value. The first of equals wins.
  static std::int64_t winner(const MaxPool& op, const Place& at, std::int64_t plane, std::int64_t p, std::int64_t q) {
    std::int64_t best = -1;
    for (std::int64_t k = 0; k < op.kernel; ++k)
      for (std::int64_t l = 0; l < op.kernel; ++l) {
        const std::int64_t row = op.stride * p + k - op.padding, column = op.stride * q + l - op.padding;
        if (row < 0 || row >= at.in.height || column < 0 || column >= at.in.width) continue;
        const std::int64_t i = (plane * at.in.height + row) * at.in.width + column;
        if (best < 0 || at.x[i] > at.x[best]) best = i;
      }
    return best;
  }
  template <class Body>
  void for_each_winner(const MaxPool& op, const Place& at, Body body) {
    for (std::int64_t plane = 0; plane < rows_ * at.in.channels; ++plane)
      for (std::int64_t p = 0; p < at.out.height; ++p)
        for (std::int64_t q = 0; q < at.out.width; ++q)
          body(winner(op, at, plane, p, q), (plane * at.out.height + p) * at.out.width + q);
  }
  void forward(const MaxPool& op, const Node&, const Place& at) {
    for_each_winner(op, at, [&](std::int64_t from, std::int64_t to) { at.y[to] = at.x[from]; });
  }
  void backward(const MaxPool& op, const Node&, const Place& at) {
    for_each_winner(op, at, [&](std::int64_t from, std::int64_t to) { at.dx[from] += at.dy[to]; });
  }

  void forward(const GlobalAveragePool&, const Node&, const Place& at) {
    const std::int64_t plane = at.in.height * at.in.width;
    for_each(at.in, [&](std::int64_t, std::int64_t i) { at.y[i / plane] += at.x[i] / static_cast<double>(plane); });
  }
  void backward(const GlobalAveragePool&, const Node&, const Place& at) {
    const std::int64_t plane = at.in.height * at.in.width;
    for_each(at.in, [&](std::int64_t, std::int64_t i) { at.dx[i] += at.dy[i / plane] / static_cast<double>(plane); });
  }

  // ---- Classifier ------------------------------------------------------------------------------------------------

  void forward(const Dense& op, const Node&, const Place& at) {
    const double *w = weight(op.weight), *b = weight(op.bias);
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t o = 0; o < op.output; ++o) {
        double sum = b[o];
        for (std::int64_t i = 0; i < op.input; ++i) sum += w[o * op.input + i] * at.x[r * op.input + i];
        at.y[r * op.output + o] = sum;
      }
  }
  void backward(const Dense& op, const Node&, const Place& at) {
    const double* w = weight(op.weight);
    double *dw = gradient(op.weight), *db = gradient(op.bias);
    for (std::int64_t r = 0; r < rows_; ++r)
      for (std::int64_t o = 0; o < op.output; ++o) {
        const double dy = at.dy[r * op.output + o];
        db[o] += dy;
        for (std::int64_t i = 0; i < op.input; ++i) {
          dw[o * op.input + i] += dy * at.x[r * op.input + i];
          at.dx[r * op.input + i] += dy * w[o * op.input + i];
        }
      }
  }

  // Returns the target probability of a class. In training it is (1 - s) one-hot + s / classes.
  double wanted(const CrossEntropy& op, std::int64_t row, std::int64_t c) const {
    const double s = training_ ? op.label_smoothing : 0;
    return (c == pass_.targets[row] ? 1 - s : 0) + s / static_cast<double>(op.classes);
  }
  static double log_of_sum(const CrossEntropy& op, const double* z) {
    const double largest = *std::max_element(z, z + op.classes);
    double sum = 0;
    for (std::int64_t c = 0; c < op.classes; ++c) sum += std::exp(z[c] - largest);
    return largest + std::log(sum);
  }
  void forward(const CrossEntropy& op, const Node&, const Place& at) {
    result_.logits.assign(at.x, at.x + rows_ * op.classes);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double* z = at.x + r * op.classes;
      const std::int32_t target = pass_.targets[r];
      if (target < 0) continue;
      for (std::int64_t c = 0; c < op.classes; ++c) result_.loss += wanted(op, r, c) * (log_of_sum(op, z) - z[c]);
      const auto above = std::count_if(z, z + op.classes, [&](double other) { return other > z[target]; });
      result_.correct += above == 0;
      result_.correct5 += above < 5;
      ++result_.targets;
    }
  }
  void backward(const CrossEntropy& op, const Node&, const Place& at) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      const double* z = at.x + r * op.classes;
      if (pass_.targets[r] < 0) continue;
      for (std::int64_t c = 0; c < op.classes; ++c)
        at.dx[r * op.classes + c] +=
            static_cast<double>(pass_.gradient_scale) * (std::exp(z[c] - log_of_sum(op, z)) - wanted(op, r, c));
    }
  }

  template <class Other>
  void forward(const Other&, const Node&, const Place&) {
    throw std::logic_error("not a network for images");
  }
  template <class Other>
  void backward(const Other&, const Node&, const Place&) {}

  const Graph& graph_;
  ParameterTable table_;
  const std::vector<double>& weights_;
  const TestPass& pass_;
  std::int64_t rows_, group_;
  bool training_;
  double* adjusted_ = nullptr;
  std::vector<std::vector<double>> values_, gradients_;  // by node
  ImageResult result_;
};

}  // namespace

ImageResult run_reference(const Graph& graph, const std::vector<double>& weights, const TestPass& pass,
                          std::int64_t rows, std::int64_t group, PassMode mode, bool backward) {
  return Interpreter(graph, weights, pass, rows, group, mode).run(backward);
}

void keep_off_kinks(const Graph& graph, std::vector<double>& weights, const TestPass& pass, std::int64_t rows,
                    std::int64_t group) {
  Interpreter(graph, weights, pass, rows, group, PassMode::training).run(false, weights.data());
}

}  // namespace ringtrain
