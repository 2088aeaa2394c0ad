#include <map>

#include "base/error.h"
#include "models/models.h"

namespace ringtrain {

namespace {

// The number of blocks in each stage, by the depth of the ResNet.
struct Depth {
  bool bottleneck;
  std::vector<std::int64_t> blocks;
};
const std::map<std::int64_t, Depth> depths = {
    {18, {false, {2, 2, 2, 2}}},  {34, {false, {3, 4, 6, 3}}},  {50, {true, {3, 4, 6, 3}}},
    {101, {true, {3, 4, 23, 3}}}, {152, {true, {3, 8, 36, 3}}},
};

// Throws Error for a depth that is not in the paper.
Depth depth_of(const ModelConfig& config) {
  if (const auto found = depths.find(config.depth); found != depths.end()) return found->second;
  const std::int64_t n = (config.depth - 2) / 6;
  if (!is_cifar_depth(config.depth))
    throw Error(cat("model.depth ", config.depth, " is not a ResNet"), cat("use ", resnet_depths));
  return {false, {n, n, n}};
}

struct Builder {
  Graph& g;
  const ModelConfig& config;
  double last_gamma;
  bool stride_in_first;  // the stride is in a bottleneck's first convolution, else in its second

  int conv_norm(int x, std::int64_t channels, std::int64_t kernel, std::int64_t stride, const std::string& conv,
                const std::string& norm, double gamma = 1) {
    x = g.convolution(x, channels, kernel, stride, kernel / 2, conv, !has_norms(config));
    return normalize(g, x, config, norm, gamma);
  }

  // Two 3 x 3 convolutions.
  int basic(int x, std::int64_t channels, std::int64_t stride, const std::string& name) {
    x = g.relu(conv_norm(x, channels, 3, stride, name + ".conv1", name + ".bn1"));
    return conv_norm(x, channels, 3, 1, name + ".conv2", name + ".bn2", last_gamma);
  }

  // 1 x 1, 3 x 3 and 1 x 1 convolutions. The last one makes four times the channels.
  int bottleneck(int x, std::int64_t channels, std::int64_t stride, const std::string& name) {
    const std::int64_t first = stride_in_first ? stride : 1, second = stride_in_first ? 1 : stride;
    x = g.relu(conv_norm(x, channels, 1, first, name + ".conv1", name + ".bn1"));
    x = g.relu(conv_norm(x, channels, 3, second, name + ".conv2", name + ".bn2"));
    return conv_norm(x, 4 * channels, 1, 1, name + ".conv3", name + ".bn3", last_gamma);
  }
};

}  // namespace

Graph resnet(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  const Depth depth = depth_of(config);
  Graph g;
  Builder build{g, config, config.zero_gamma ? 0.0 : 1.0, config.stride_in == "1x1"};

  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  const bool small = config.stem == "small";
  g.begin_block("conv1");
  x = g.relu(build.conv_norm(x, config.width, small ? 3 : 7, small ? 1 : 2, "conv1", "bn1"));
  if (!small) x = g.max_pool(x, 3, 2, 1);

  for (std::size_t stage = 0; stage < depth.blocks.size(); ++stage) {
    const std::int64_t channels = config.width << stage, output = depth.bottleneck ? 4 * channels : channels;
    for (std::int64_t block = 0; block < depth.blocks[stage]; ++block) {
      const std::string name = cat("layer", stage + 1, ".", block);
      g.begin_block(name);
      const std::int64_t stride = block == 0 && stage > 0 ? 2 : 1;
      const bool projects = block == 0 && (stride > 1 || output != config.width);
      const int shortcut =
          projects ? build.conv_norm(x, output, 1, stride, name + ".downsample.0", name + ".downsample.1") : x;
      const int branch =
          depth.bottleneck ? build.bottleneck(x, channels, stride, name) : build.basic(x, channels, stride, name);
      x = g.relu(g.add(branch, shortcut));
    }
  }
  g.begin_block("");
  x = g.dense(g.global_average_pool(x), sample.classes, "fc", 0.01);
  g.cross_entropy(x, loss.label_smoothing);
  return g;
}

}  // namespace ringtrain
