// Tests the reference itself. Its gradients are compared with differences of its own loss, and its statistics with
// their definition.
#include <gtest/gtest.h>

#include "tests/unit/images.h"

namespace ringtrain {
namespace {

// Returns a graph with nearly every kind of node, strides that leave a remainder, and a tensor that feeds two nodes.
Graph every_node() {
  Graph g;
  int x = g.image(14, 13, {0.4, 0.5}, {0.3, 0.2});
  x = g.relu(g.batch_norm(g.convolution(x, 3, 5, 2, 2, "stem", true), "stem_norm"));
  x = g.max_pool(x, 3, 2, 1);
  const int shortcut = g.batch_norm(g.convolution(x, 4, 1, 2, 0, "shortcut"), "shortcut_norm");
  const int branch = g.relu(g.batch_norm(g.convolution(x, 5, 1, 1, 0, "first"), "first_norm"));
  x = g.relu(g.add(g.batch_norm(g.convolution(branch, 4, 3, 2, 1, "second"), "second_norm"), shortcut));
  x = g.relu(g.dense(g.dropout(g.flatten(x), 0.3, 0), 9, "hidden"));
  g.cross_entropy(g.dense(x, 7, "fc"), 0.2);
  return g;
}

// Returns a graph with group norms on maps of several pixels and of one, and a tensor that feeds two nodes.
Graph group_norms() {
  Graph g;
  int x = g.image(9, 9, {0.4, 0.5}, {0.3, 0.2});
  x = g.relu(g.group_norm(g.convolution(x, 6, 3, 2, 1, "stem"), 2, "stem_norm"));
  const int shortcut = g.group_norm(g.convolution(x, 4, 1, 2, 0, "shortcut"), 4, "shortcut_norm");
  x = g.relu(g.add(g.group_norm(g.convolution(x, 4, 3, 2, 1, "second"), 1, "second_norm"), shortcut));
  x = g.relu(g.group_norm(g.dense_on_map(x, 10, "hidden", false), 5, "hidden_norm"));
  x = g.relu(g.group_norm(g.dense_on_map(g.dropout(x, 0.3, 0), 6, "other", false), 3, "other_norm"));
  g.cross_entropy(g.dense(g.flatten(x), 7, "fc"), 0.2);
  return g;
}

class ImageReference : public testing::TestWithParam<Graph> {};

TEST_P(ImageReference, GradientsAreCentralDifferencesOfTheLoss) {
  Images s(GetParam(), 6, 3, 1);
  s.y[4] = -1;
  s.pass.gradient_scale = 0.2f;
  const ImageResult result = s.expected();
  EXPECT_EQ(result.targets, 5);
  const auto loss = [&] {
    return run_reference(s.graph, s.w, s.pass, s.rows, s.group, PassMode::training, false).loss;
  };
  const std::uint64_t key = random_key(17, RandomPurpose::sampling);
  for (const Parameter& p : s.table.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    double largest = 0;
    for (std::int64_t i = 0; i < p.count; ++i)
      largest = std::max(largest, std::abs(result.gradients[static_cast<std::size_t>(p.offset + i)]));
    for (std::int64_t trial = 0; trial < 4; ++trial) {
      const auto i = static_cast<std::int64_t>(random_uniform(key, static_cast<std::uint64_t>(p.offset + trial)) *
                                               static_cast<double>(p.count));
      const auto place = static_cast<std::size_t>(p.offset + i);
      const double step = 1e-6, kept = s.w[place];
      s.w[place] = kept + step;
      const double above = loss();
      s.w[place] = kept - step;
      const double below = loss();
      s.w[place] = kept;
      const double difference = static_cast<double>(s.pass.gradient_scale) * (above - below) / (2 * step);
      EXPECT_NEAR(result.gradients[place], difference, 1e-8 + 1e-5 * largest) << p.name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ImageReference,
                         testing::Values(every_node(), small_resnet(18, 4, "imagenet", 33, 0.1),
                                         cnn({}, image_shape(9, 6), {}), group_norms()),
                         [](const auto& information) { return "Network" + std::to_string(information.index); });

// The image's mean is 0 and its deviation is 1, so the norm's input is pixel / 255. The statistics of this input can be
// computed by hand.
TEST(ImageReferenceNorm, StatisticsAreMeansOverGroupsOfMeanAndUnbiasedVariance) {
  Graph g;
  g.cross_entropy(g.dense(g.global_average_pool(g.batch_norm(g.image(2, 1, {0.0}, {1.0}), "norm")), 2, "fc"));
  Images s(g, 4, 2, 1);
  s.x = {0, 51, 102, 153, 255, 255, 0, 0};
  s.pass.inputs = s.x.data();
  s.pass.statistic_scale = 0.5f;
  const ImageResult result = s.expected();
  const auto at = [&](const char* name) {
    return result.gradients[static_cast<std::size_t>(s.table.find(name).offset)];
  };
  EXPECT_NEAR(at("norm.running_mean"), (0.3 + 0.5) / 2, 1e-12);
  EXPECT_NEAR(at("norm.running_var"), (0.2 / 3 + 1.0 / 3) / 2, 1e-12);  // the variances of 0 0.2 0.4 0.6 and of 1 1 0 0
}

// The four channels of a sample are two groups. Each has four values, whose mean and variance are computed by hand.
TEST(ImageReferenceNorm, GroupNormMeasuresEachSampleAndEachGroupOfChannels) {
  Graph g;
  g.cross_entropy(
      g.dense(g.global_average_pool(g.group_norm(g.image(2, 1, {0.0, 0.0, 0.0, 0.0}, {1.0, 1.0, 1.0, 1.0}), 2, "norm")),
              4, "fc"));
  Images s(g, 2, 0, 1);
  s.x = {0, 51, 102, 0, 153, 204, 102, 0, 255, 255, 255, 51, 255, 255, 255, 102};  // [sample][pixel][channel]
  s.pass.inputs = s.x.data();
  std::fill(s.w.begin(), s.w.end(), 0.0);
  const auto set = [&](const char* name, std::int64_t i, double value) {
    s.w[static_cast<std::size_t>(s.table.find(name).offset + i)] = value;
  };
  for (std::int64_t c = 0; c < 4; ++c) {
    set("norm.weight", c, 1 + static_cast<double>(c));
    set("fc.weight", 5 * c, 1);  // the logits are the averages over the pixels
  }
  set("norm.bias", 1, 10);
  for (const PassMode mode : {PassMode::training, PassMode::inference}) {
    const std::vector<double> logits = s.expected(mode).logits;
    // Sample 0: the values of channels 0 and 1 are 0 and 0.6, 0.2 and 0.8; of channels 2 and 3: 0.4 twice, and 0 twice.
    const double first = std::sqrt(0.1 + 1e-5), second = std::sqrt(0.04 + 1e-5);
    EXPECT_NEAR(logits[0], (0.3 - 0.4) / first, 1e-12);
    EXPECT_NEAR(logits[1], 2 * (0.5 - 0.4) / first + 10, 1e-12);
    EXPECT_NEAR(logits[2], 3 * (0.4 - 0.2) / second, 1e-12);
    EXPECT_NEAR(logits[3], 4 * (0.0 - 0.2) / second, 1e-12);
    EXPECT_NEAR(logits[4], 0, 1e-12) << "sample 1 has equal values in its first group";
    EXPECT_NEAR(logits[5], 10, 1e-12);
  }
}

TEST(ImageReferenceNorm, CountsTargetsAmongTheFiveLargest) {
  Graph g;
  g.cross_entropy(g.dense(g.flatten(g.image(1, 1, {0.0}, {1.0})), 7, "fc"));
  Images s(g, 4, 0, 1);
  std::fill(s.w.begin(), s.w.end(), 0.0);
  for (std::int64_t c = 0; c < 7; ++c)
    s.w[static_cast<std::size_t>(s.table.find("fc.bias").offset + c)] =
        static_cast<double>(c * c % 7);  // 0 1 4 2 2 4 1
  s.w[static_cast<std::size_t>(s.table.find("fc.bias").offset + 3)] = 2.5;
  s.w[static_cast<std::size_t>(s.table.find("fc.bias").offset + 5)] = 4.5;
  s.w[static_cast<std::size_t>(s.table.find("fc.bias").offset + 6)] = 1.5;
  s.y = {5, 6, 1, -1};  // the ranks of these targets: first, fifth, sixth, not counted
  s.pass.targets = s.y.data();
  const ImageResult result = s.expected(PassMode::inference);
  EXPECT_EQ(result.correct, 1);
  EXPECT_EQ(result.correct5, 2);
  EXPECT_EQ(result.targets, 3);
}

}  // namespace
}  // namespace ringtrain
