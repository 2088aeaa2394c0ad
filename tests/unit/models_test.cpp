// Compares the models with their papers' and torchvision's tables: parameters, names, shapes, FLOPs and initial values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "base/error.h"
#include "tests/unit/images.h"

namespace ringtrain {
namespace {

Graph imagenet_resnet(std::int64_t depth) {
  return small_resnet(depth, 64, "imagenet", 224, 0, 1000);
}

TEST(Models, HaveTorchvisionsNumbersOfParameters) {
  const std::map<std::int64_t, std::int64_t> counts = {
      {18, 11689512}, {34, 21797672}, {50, 25557032}, {101, 44549160}, {152, 60192808}};
  for (const auto& [depth, count] : counts) EXPECT_EQ(imagenet_resnet(depth).parameters().count(), count) << depth;
  ModelConfig config;
  config.dropout = 0.5;
  EXPECT_EQ(alexnet(config, image_shape(224, 1000), {}).parameters().count(), 61100840);
  // There are 3 x 3 convolutions from 3 to 32, 64 and 128 channels with biases, then a dense layer from 128 x 4 x 4 to
  // 10.
  EXPECT_EQ(cnn({}, image_shape(32, 10), {}).parameters().count(), 896 + 18496 + 73856 + 20490);
}

TEST(Models, HaveTorchvisionsTensors) {
  const ParameterTable table = imagenet_resnet(50).parameters();
  EXPECT_EQ(table.all().size(), 161u + 2 * 53);  // plus running mean and variance of 53 norms
  const auto shape = [&](const char* name) { return table.find(name).shape; };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape("conv1.weight"), (Shape{64, 3, 7, 7}));
  EXPECT_EQ(shape("layer1.0.downsample.0.weight"), (Shape{256, 64, 1, 1}));
  EXPECT_EQ(shape("layer2.0.conv2.weight"), (Shape{128, 128, 3, 3}));
  EXPECT_EQ(shape("layer4.2.bn3.running_var"), (Shape{2048}));
  EXPECT_EQ(shape("fc.weight"), (Shape{1000, 2048}));
  EXPECT_THROW(imagenet_resnet(18).parameters().find("layer1.0.downsample.0.weight"), Error);
  EXPECT_NO_THROW(imagenet_resnet(18).parameters().find("layer2.0.downsample.1.running_mean"));
}

TEST(Models, ResNet50Is4089MillionMultiplicationsAndStrideLiesInTheThreeByThree) {
  const Graph graph = imagenet_resnet(50);
  EXPECT_EQ(graph.forward_flops_per_sample(), 2 * std::int64_t{4089184256});  // version 1 has 3,858 million
  for (const Node& node : graph.nodes()) {
    const auto* conv = std::get_if<Convolution>(&node.operation);
    if (conv == nullptr || conv->stride == 1 || conv->kernel > 1) continue;
    EXPECT_NE(conv->weight.find("downsample"), std::string::npos) << conv->weight;
  }
}

TEST(Models, StatisticsLieBehindEverythingThatIsTrained) {
  const ParameterTable table = imagenet_resnet(18).parameters();
  for (const Parameter& p : table.all())
    EXPECT_EQ(p.kind == ParameterKind::statistic, p.offset >= table.trained()) << p.name;
  EXPECT_EQ(table.all().front().name, "fc.weight");
}

TEST(Models, StartAsTheirPapersSay) {
  const Graph graph = imagenet_resnet(50);
  const ParameterTable table = graph.parameters();
  std::vector<float> flat(static_cast<std::size_t>(table.size()));
  initialize(table, 3, flat);
  std::set<std::string> zero_gammas;
  for (const Parameter& p : table.all()) {
    const float* v = flat.data() + p.offset;
    double mean = 0, square = 0;
    for (std::int64_t i = 0; i < p.count; ++i) {
      mean += static_cast<double>(v[i]) / static_cast<double>(p.count);
      square += static_cast<double>(v[i]) * static_cast<double>(v[i]) / static_cast<double>(p.count);
    }
    if (p.kind == ParameterKind::weight) {
      const double expected =
          p.name == "fc.weight" ? 1e-4 : 2.0 / static_cast<double>(p.shape[0] * p.shape[2] * p.shape[3]);
      EXPECT_NEAR(square / expected, 1, 0.05) << p.name;
      EXPECT_LT(std::abs(mean), 0.05 * std::sqrt(expected)) << p.name;
    } else {
      EXPECT_EQ(square, mean * mean) << p.name;  // all elements are equal
      if (p.name.ends_with("bn3.weight") && mean == 0)
        zero_gammas.insert(p.name);
      else
        EXPECT_EQ(mean,
                  p.name.ends_with("running_var") || (p.kind == ParameterKind::norm && p.name.ends_with("weight")))
            << p.name;
    }
  }
  EXPECT_EQ(zero_gammas.size(), 16u) << "the last norm of every block, and no other";
}

TEST(Models, AResNetOfVersion1Is3858MillionMultiplicationsWithTheSameTensors) {
  const Graph graph = small_resnet(50, 64, "imagenet", 224, 0, 1000, "1x1");
  EXPECT_EQ(graph.forward_flops_per_sample(), 2 * std::int64_t{3857973248});
  const ParameterTable table = graph.parameters(), other = imagenet_resnet(50).parameters();
  ASSERT_EQ(table.all().size(), other.all().size());
  for (std::size_t i = 0; i < table.all().size(); ++i) EXPECT_EQ(table.all()[i].name, other.all()[i].name);
  for (const Node& node : graph.nodes()) {
    const auto* conv = std::get_if<Convolution>(&node.operation);
    if (conv == nullptr || conv->stride == 1 || conv->weight == "conv1.weight") continue;
    EXPECT_EQ(conv->kernel, 1) << conv->weight;
  }
  EXPECT_EQ(small_resnet(18, 64, "imagenet", 224, 0, 1000, "1x1").forward_flops_per_sample(),
            imagenet_resnet(18).forward_flops_per_sample());
}

// 1,152 gammas and 1,152 betas replace the 1,152 biases of the convolutions.
TEST(Models, AlexNetWithNormsHasTensorsNamedAsVgg16Bn) {
  ModelConfig config;
  config.kind = "alexnet";
  config.norm = true;
  const Graph graph = build_model(config, image_shape(224, 1000));
  const ParameterTable table = graph.parameters();
  EXPECT_TRUE(graph.has_batch_norm());
  EXPECT_TRUE(has_batch_norm(config));
  EXPECT_EQ(table.count(), 61100840 + 64 + 192 + 384 + 256 + 256);
  std::string names;
  for (const Parameter& p : table.all())
    if (p.name.starts_with("features") && p.kind != ParameterKind::statistic) names = cat(p.name, " ", names);
  EXPECT_EQ(names,
            "features.0.weight features.1.bias features.1.weight features.4.weight features.5.bias features.5.weight "
            "features.8.weight features.9.bias features.9.weight features.11.weight features.12.bias "
            "features.12.weight features.14.weight features.15.bias features.15.weight ");
}

struct Start {
  ParameterTable table;
  std::vector<float> flat;
  std::span<const float> operator()(const std::string& name) const {
    const Parameter& p = table.find(name);
    return std::span(flat).subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
  }
};

Start start_of(const ModelConfig& config, const SampleShape& sample, std::uint64_t seed = 3) {
  Start s{build_model(config, sample).parameters(), {}};
  s.flat.resize(static_cast<std::size_t>(s.table.size()));
  initialize(s.table, seed, s.flat);
  return s;
}

double mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum / static_cast<double>(values.size());
}
double largest(std::span<const float> values) {
  double most = 0;
  for (const float v : values) most = std::max(most, std::abs(static_cast<double>(v)));
  return most;
}

// A normal distribution that is cut off at 2 deviations ends at 2 / 0.8796 of its own deviation. Its fourth moment is
// 1.4162 / 0.77374^2 (about 2.365) times its squared second moment, and 3 times for a whole normal distribution.
TEST(Models, TruncatedNormalsHaveTheVarianceOfHeAndEndAtTwoDeviations) {
  for (const char* kind : {"resnet", "alexnet"}) {
    ModelConfig config;
    config.kind = kind;
    config.initial = "truncated_normal";
    const Start s = start_of(config, image_shape(224, 1000));
    for (const Parameter& p : s.table.all()) {
      const std::span<const float> values = s(p.name);
      if (p.kind == ParameterKind::bias) {
        EXPECT_EQ(largest(values), 0) << p.name;
      }
      if (p.kind != ParameterKind::weight) continue;
      const double fan_in = static_cast<double>(p.count) / static_cast<double>(p.shape[0]);
      const double deviation = p.name == "fc.weight" ? 0.01 : std::sqrt(2 / fan_in);
      const double scatter = 5 / std::sqrt(static_cast<double>(p.count));
      EXPECT_NEAR(mean_square(values) / (deviation * deviation), 1, scatter) << p.name;
      EXPECT_LE(largest(values), deviation * 2 / 0.8796 * 1.0001) << p.name;
      EXPECT_GT(largest(values), deviation * 2.2) << p.name;
      if (p.count < 100000) continue;
      double fourth = 0;
      for (const float v : values) {
        const double square = static_cast<double>(v) * static_cast<double>(v) / (deviation * deviation);
        fourth += square * square;
      }
      EXPECT_NEAR(fourth / static_cast<double>(p.count), 2.365, 0.05) << p.name;
    }
    if (config.kind == "resnet") {
      EXPECT_EQ(largest(s("layer1.0.bn3.weight")), 0);
      EXPECT_EQ(mean_square(s("layer1.0.bn2.weight")), 1);
    }
  }
}

// char-rnn draws every weight and bias from +-0.08, except the forget gates' b_ih.
TEST(Models, CharRnnStartsUniformWithOneInTheForgetGates) {
  ModelConfig config;
  config.hidden = 128;
  config.layers = 2;
  config.initial = "uniform";
  config.initial_range = 0.08;
  config.forget_bias = 1;
  SampleShape text;
  text.sequence = 50;
  text.vocabulary = 65;
  const Start s = start_of(config, text);
  EXPECT_EQ(s.table.count(), 240321);  // its cells have two biases each, too
  for (const Parameter& p : s.table.all()) {
    std::vector<float> values(s(p.name).begin(), s(p.name).end());
    if (p.name.find("bias_ih") != std::string::npos) {
      EXPECT_TRUE(std::all_of(values.begin() + 128, values.begin() + 256, [](float v) { return v == 1; })) << p.name;
      values.erase(values.begin() + 128, values.begin() + 256);
    }
    EXPECT_LE(largest(values), 0.0800001) << p.name;
    EXPECT_NEAR(mean_square(values) / (0.08 * 0.08 / 3), 1, 5 / std::sqrt(static_cast<double>(values.size())))
        << p.name;
  }
}

TEST(Models, TheLstmsOwnRangeStaysWhereNoneIsGivenAndTheForgetBiasActsAlone) {
  SampleShape text;
  text.sequence = 8;
  text.vocabulary = 31;
  const Start plain = start_of({}, text);
  ModelConfig config;
  config.initial = "uniform";
  EXPECT_EQ(start_of(config, text).flat, plain.flat);
  config = {};
  config.forget_bias = 1;
  const Start other = start_of(config, text);
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < plain.flat.size(); ++i) differing += plain.flat[i] != other.flat[i];
  EXPECT_EQ(differing, 4 * 128);
}

TEST(Models, TooSmallImagesAreAnErrorThatSaysWhatToDo) {
  try {
    alexnet({}, image_shape(32, 10), {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.hint().find("data.image_size"), std::string::npos) << e.hint();
  }
  EXPECT_THROW(small_resnet(20, 64, "imagenet", 224), Error);
}

}  // namespace
}  // namespace ringtrain
