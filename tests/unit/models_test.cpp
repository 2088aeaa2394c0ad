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

ModelConfig resnet_for_cifar(std::int64_t depth, const std::string& normalization = "auto", std::int64_t groups = 16) {
  ModelConfig config = with_norms(normalization, groups);
  config.kind = "resnet";
  config.depth = depth;
  config.width = 16;
  config.stem = "small";
  return config;
}

// He et al. 2015, table 6, has 0.27, 0.46, 0.66, 0.85 and 1.7 million parameters, without the projections: two
// convolutions of 16 x 32 and 32 x 64 weights with norms of 32 and 64 channels, which are 2,752 parameters.
TEST(Models, ResNetsForCifarHaveTheParametersOfTheirPaperAndTwoProjections) {
  const std::pair<std::int64_t, double> depths[] = {{20, 0.27}, {32, 0.46}, {44, 0.66}, {56, 0.85}, {110, 1.7}};
  for (const auto& [depth, millions] : depths) {
    const ParameterTable table = build_model(resnet_for_cifar(depth), image_shape(32, 10)).parameters();
    EXPECT_NEAR(static_cast<double>(table.count() - 2752) / 1e6, millions, millions < 1 ? 0.005 : 0.05) << depth;
    int convolutions = 0, projections = 0;
    for (const Parameter& p : table.all()) {
      if (p.shape.size() != 4) continue;
      ++convolutions;
      projections += p.name.find("downsample") != std::string::npos;
    }
    EXPECT_EQ(projections, 2);
    EXPECT_EQ(convolutions - projections, depth - 1) << "and the last layer";
  }
  const Graph graph = build_model(resnet_for_cifar(8), image_shape(32, 10));
  EXPECT_EQ(graph.parameters().find("layer3.0.conv2.weight").shape, (std::vector<std::int64_t>{64, 64, 3, 3}));
  EXPECT_THROW(graph.parameters().find("layer1.1.conv1.weight"), Error);
  EXPECT_THROW(graph.parameters().find("layer4.0.conv1.weight"), Error);
  EXPECT_THROW(build_model(resnet_for_cifar(14), image_shape(32, 10)), Error);
}

std::vector<std::string> names_of(const Graph& graph, ParameterKind kind) {
  const ParameterTable table = graph.parameters();
  std::vector<std::string> names;
  for (const Parameter& p : table.all())
    if (p.kind == kind) names.push_back(p.name);
  return names;
}

// PyTorch's GroupNorm has weight and bias, and no buffers.
TEST(Models, GroupNormHasBatchNormsParametersWithoutStatistics) {
  for (const std::int64_t depth : {8, 50}) {
    ModelConfig config = resnet_for_cifar(depth);
    const Graph batch = build_model(config, image_shape(32, 10));
    config.normalization = "group";
    const Graph group = build_model(config, image_shape(32, 10));
    EXPECT_TRUE(batch.has_batch_norm() && !group.has_batch_norm() && !has_batch_norm(config));
    EXPECT_EQ(names_of(group, ParameterKind::norm), names_of(batch, ParameterKind::norm));
    EXPECT_EQ(group.parameters().count(), batch.parameters().count());
    EXPECT_TRUE(names_of(group, ParameterKind::statistic).empty());
    const Parameter last = group.parameters().find("layer1.0.bn2.weight");
    EXPECT_EQ(last.scale, depth == 8 ? 0 : 1) << "zero_gamma is about a block's last norm";
  }
}

TEST(Models, WithoutNormsAResNetsConvolutionsHaveBiases) {
  const Graph graph = build_model(resnet_for_cifar(8, "none"), image_shape(32, 10));
  EXPECT_TRUE(names_of(graph, ParameterKind::norm).empty());
  EXPECT_EQ(names_of(graph, ParameterKind::bias).size(), 1u + 1 + 6 + 2) << "fc, conv1, the blocks and projections";
}

TEST(Models, NormsOfCnnsFollowTheConvolutionsAndThoseOfPerceptronsTheHiddenLayers) {
  using Names = std::vector<std::string>;
  for (const std::string norm : {"batch", "group"}) {
    const Graph conv = described_cnn(0.4, with_norms(norm, 4)), dense = described_mlp(0.4, with_norms(norm, 4));
    EXPECT_EQ(names_of(conv, ParameterKind::norm), (Names{"bn2.weight", "bn2.bias", "bn1.weight", "bn1.bias"}));
    EXPECT_EQ(names_of(conv, ParameterKind::bias), (Names{"fc.bias", "fc2.bias", "fc1.bias"}));
    EXPECT_EQ(names_of(dense, ParameterKind::norm), (Names{"bn2.weight", "bn2.bias", "bn1.weight", "bn1.bias"}));
    EXPECT_EQ(names_of(dense, ParameterKind::bias), (Names{"fc.bias"}));
    EXPECT_EQ(dense.has_batch_norm(), norm == "batch");
    EXPECT_EQ(dense.parameters().find("fc2.weight").shape, (std::vector<std::int64_t>{20, 44})) << "as in nn.Linear";
  }
}

// F1 of Keskar et al. 2017 (table 1) has five hidden layers of 512 units on MNIST's 784 pixels, with batch norm.
TEST(Models, KeskarsF1IsDescribed) {
  ModelConfig config = with_norms("batch");
  config.kind = "mlp";
  config.widths = std::vector<std::int64_t>(5, 512);
  config.dropout = 0;
  SampleShape mnist;
  mnist.image_size = 28;
  mnist.classes = 10;
  mnist.mean = mnist.std = {0.5};
  EXPECT_EQ(build_model(config, mnist).parameters().count(), 784 * 512 + 4 * 512 * 512 + 512 * 10 + 10 + 5 * 2 * 512);
}

TEST(Models, GroupsThatDoNotDivideTheChannelsAreAnErrorWithTheLayer) {
  try {
    described_mlp(0, with_norms("group", 8));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("bn1 has 44 channels"), std::string::npos) << e.what();
    EXPECT_NE(e.hint().find("model.norm_groups"), std::string::npos) << e.hint();
  }
}

struct ModelStart {
  ParameterTable table;
  std::vector<float> flat;
  std::span<const float> operator()(const std::string& name) const {
    const Parameter& p = table.find(name);
    return std::span(flat).subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
  }
};

ModelStart start_of(const ModelConfig& config, const SampleShape& sample, std::uint64_t seed = 3) {
  ModelStart s{build_model(config, sample).parameters(), {}};
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
    const ModelStart s = start_of(config, image_shape(224, 1000));
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
  const ModelStart s = start_of(config, text);
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
  const ModelStart plain = start_of({}, text);
  ModelConfig config;
  config.initial = "uniform";
  EXPECT_EQ(start_of(config, text).flat, plain.flat);
  config = {};
  config.forget_bias = 1;
  const ModelStart other = start_of(config, text);
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
  EXPECT_THROW(small_resnet(26, 64, "imagenet", 224), Error);
}

}  // namespace
}  // namespace ringtrain
