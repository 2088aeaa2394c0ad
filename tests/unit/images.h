// Makes networks for images with random weights, pixels and targets, and the CPU backend that runs them. Several tests
// share this file.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "models/models.h"
#include "tests/unit/image_reference.h"

namespace ringtrain {

// Uses ImageNet's mean and deviation for colour images.
inline SampleShape image_shape(std::int64_t size, std::int64_t classes) {
  SampleShape shape;
  shape.image_size = size;
  shape.classes = classes;
  shape.mean = {0.485, 0.456, 0.406};
  shape.std = {0.229, 0.224, 0.225};
  return shape;
}

inline Graph small_resnet(std::int64_t depth, std::int64_t width, const std::string& stem, std::int64_t size,
                          double label_smoothing = 0, std::int64_t classes = 11, const std::string& stride_in = "3x3",
                          ModelConfig config = {}) {
  config.kind = "resnet";
  config.depth = depth;
  config.width = width;
  config.stem = stem;
  config.stride_in = stride_in;
  LossConfig loss;
  loss.label_smoothing = label_smoothing;
  return resnet(config, image_shape(size, classes), loss);
}

// Has AlexNet's kinds of layers: a large kernel and stride, overlapping pooling, biases, dropout, and dense layers
// after Flatten. With `norm`, batch norm replaces the convolutions' biases.
inline Graph small_alexnet(double dropout, bool norm = false) {
  Graph g;
  const SampleShape shape = image_shape(47, 10);
  int x = g.image(47, 47, shape.mean, shape.std);
  const auto convolution = [&](std::int64_t channels, std::int64_t kernel, std::int64_t stride, const char* name,
                               const char* norm_name) {
    g.begin_block(name);
    x = g.convolution(x, channels, kernel, stride, 2, name, !norm);
    if (norm) x = g.batch_norm(x, norm_name);
    x = g.max_pool(g.relu(x), 3, 2, 0);
  };
  convolution(24, 11, 4, "features.0", "features.1");
  convolution(40, 5, 1, "features.3", "features.4");
  g.begin_block("classifier.1");
  x = g.flatten(x);
  x = g.relu(g.dense(g.dropout(x, dropout, 0), 150, "classifier.1"));
  g.begin_block("classifier.4");
  x = g.relu(g.dense(g.dropout(x, dropout, 1), 36, "classifier.4"));
  g.begin_block("");
  g.cross_entropy(g.dense(x, 10, "classifier.6"), 0.1);
  return g;
}

// Describes norms; see normalization().
inline ModelConfig with_norms(const std::string& normalization, std::int64_t groups = 32) {
  ModelConfig config;
  config.normalization = normalization;
  config.norm_groups = groups;
  return config;
}

// A cnn and a perceptron as an experiment describes them, with label smoothing.
inline Graph described_cnn(double dropout, ModelConfig config = {}) {
  config.kind = "cnn";
  config.channels = {12, 24};
  config.kernel = 5;
  config.widths = {40, 20};
  config.dropout = dropout;
  return build_model(config, image_shape(18, 10), {0.1});
}
inline Graph described_mlp(double dropout, ModelConfig config = {}) {
  config.kind = "mlp";
  config.widths = {44, 20};
  config.dropout = dropout;
  return build_model(config, image_shape(13, 10), {0.1});
}

struct Images {
  Graph graph;
  ParameterTable table = graph.parameters();
  std::int64_t rows, group;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Vector> weights, gradients;
  std::vector<double> w;  // the weights' values
  std::vector<std::uint8_t> x;
  std::vector<std::int32_t> y;
  TestPass pass;

  struct Blank {};
  // With `group_size` 0, all rows form one group. All weights, pixels and targets are zero.
  Images(Blank, const Graph& the_graph, std::int64_t row_count, std::int64_t group_size = 0, int threads = 2)
      : graph(the_graph), rows(row_count), group(group_size == 0 ? row_count : group_size) {
    backend = make_cpu_backend(threads);
    weights = backend->make_vector(table.size());
    gradients = backend->make_vector(table.size());
    w.resize(static_cast<std::size_t>(table.size()));
    x.resize(static_cast<std::size_t>(rows * graph.input_bytes()));
    y.resize(static_cast<std::size_t>(rows));
    pass.inputs = x.data();
    pass.targets = y.data();
    pass.gradient_scale = 1.0f / static_cast<float>(rows);
    pass.statistic_scale = static_cast<float>(group) / static_cast<float>(rows);
    pass.dropout_key = random_key(11, RandomPurpose::dropout);
    pass.step = 5;
    pass.first_row = 32;
  }

  // Every tensor gets random values. The last norms of blocks, which start at zero, get small values as in real
  // training, or stay zero with `zero_gammas`. No ReLU is near its kink.
  Images(const Graph& the_graph, std::int64_t row_count, std::int64_t group_size = 0, int threads = 2,
         bool zero_gammas = false)
      : Images(Blank{}, the_graph, row_count, group_size, threads) {
    std::vector<float> initial(static_cast<std::size_t>(table.size()));
    initialize(table, 7, initial);
    const std::uint64_t key = random_key(5, RandomPurpose::sampling);
    for (const Parameter& p : table.all()) {
      if (p.initial != InitialValues::constant) continue;
      const bool positive =
          p.name.ends_with("running_var") || (p.kind == ParameterKind::norm && p.name.ends_with(".weight"));
      if (positive && p.scale == 0 && zero_gammas) continue;
      const double share = positive && p.scale == 0 ? 0.25 : 1;
      for (std::int64_t i = p.offset; i < p.offset + p.count; ++i) {
        const double normal = random_normal(key, static_cast<std::uint64_t>(i));
        initial[static_cast<std::size_t>(i)] =
            static_cast<float>(positive ? share * std::exp(0.3 * normal) : 0.2 * normal);
      }
    }
    // Scales the logits from about 0.1 to about 1, so that the softmax is far from uniform.
    const Parameter& last = table.all().front();
    if (last.initial == InitialValues::normal)
      for (std::int64_t i = 0; i < last.count; ++i) initial[static_cast<std::size_t>(last.offset + i)] *= 20;
    w.assign(initial.begin(), initial.end());

    const auto draw = [&](std::int64_t i, std::int64_t below) {
      return static_cast<std::int64_t>(random_uniform(key + 1, static_cast<std::uint64_t>(i)) *
                                       static_cast<double>(below));
    };
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::uint8_t>(draw(static_cast<std::int64_t>(i), 256));
    for (std::int64_t r = 0; r < rows; ++r)
      y[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(draw(-1 - r, graph.classes()));
    keep_off_kinks(graph, w, pass, rows, group);
    std::transform(w.begin(), w.end(), initial.begin(), [](double v) { return static_cast<float>(v); });
    backend->copy_from_host(initial, *weights, 0);
  }

  // With `micro_batch` 0, a pass takes all rows.
  std::unique_ptr<Program> program(Precision precision = Precision::fp32, PassMode mode = PassMode::training,
                                   std::int64_t micro_batch = 0) {
    micro_batch = micro_batch == 0 ? rows : micro_batch;
    auto p = backend->compile(graph, micro_batch, precision, mode, std::min(group, micro_batch));
    p->allocate();
    p->set_weights(*weights);
    return p;
  }

  // Returns the pass over the rows of one micro-batch, from row `first` on.
  TestPass part(std::int64_t first) const {
    TestPass result = pass;
    result.inputs += first * graph.input_bytes();
    result.targets += first;
    result.first_row += first;
    return result;
  }

  ImageResult expected(PassMode mode = PassMode::training) const {
    return run_reference(graph, w, pass, rows, group, mode);
  }
};

// Returns |a - b| / |b| of one tensor or of the whole vector.
template <class A, class B>
double relative_difference(const A* a, const B* b, std::int64_t count) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto wanted = static_cast<double>(b[i]);
    difference += std::pow(static_cast<double>(a[i]) - wanted, 2);
    norm += wanted * wanted;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// Expects every tensor of a flat vector to agree within `tolerance` of its norm.
template <class A, class B>
void expect_same_tensors(const ParameterTable& table, const A* a, const B* b, double tolerance) {
  for (const Parameter& p : table.all())
    EXPECT_LE(relative_difference(a + p.offset, b + p.offset, p.count), tolerance) << p.name;
}

}  // namespace ringtrain
