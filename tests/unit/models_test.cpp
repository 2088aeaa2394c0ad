// The models against their papers' and torchvision's tables: parameters, names, shapes, FLOPs, initial values.
#include <gtest/gtest.h>

#include <map>
#include <set>

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
  // 3 x 3 convolutions of 3, 32, 64, 128 channels and biases, then 128 x 4 x 4 to 10.
  EXPECT_EQ(cnn({}, image_shape(32, 10), {}).parameters().count(), 896 + 18496 + 73856 + 20490);
}

TEST(Models, HaveTorchvisionsTensors) {
  const ParameterTable table = imagenet_resnet(50).parameters();
  EXPECT_EQ(table.all().size(), 161u + 2 * 53);  // and running mean and variance of 53 norms
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
  EXPECT_EQ(graph.forward_flops_per_sample(), 2 * std::int64_t{4089184256});  // 3,858 million with version 1's stride
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
      EXPECT_EQ(square, mean * mean) << p.name;  // constant
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
