#include "models/models.h"

#include <map>

#include "base/error.h"

namespace ringtrain {

Graph char_lstm(const ModelConfig& config, const SampleShape& sample) {
  Graph g;
  int x = g.tokens(sample.sequence, sample.vocabulary);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (layer > 0) x = g.dropout(x, config.dropout, layer - 1);
    g.begin_block("lstm.l" + std::to_string(layer));
    x = g.lstm(x, config.hidden, "lstm", layer, config.forget_bias);
  }
  g.begin_block("");
  x = g.dense(x, sample.vocabulary, "linear");
  g.cross_entropy(x);
  return g;
}

namespace {

// Adds the norm that normalization() (config/experiment.h) names: batch norm, group norm, or nothing.
int normalize(Graph& g, int x, const ModelConfig& config, const std::string& name, double initial_weight = 1) {
  const std::string kind = normalization(config);
  if (kind == "batch") return g.batch_norm(x, name, initial_weight);
  if (kind == "group") return g.group_norm(x, config.norm_groups, name, initial_weight);
  return x;
}

std::string name_of_dense(std::size_t layer) {
  return cat("fc", layer + 1);
}
std::string name_of_norm(std::size_t layer) {
  return cat("bn", layer + 1);
}

// Adds the hidden dense layers from `first` on, with ReLU and dropout, and the classifier with the loss.
void classify(Graph& g, int x, std::size_t first, const ModelConfig& config, std::int64_t classes,
              const LossConfig& loss) {
  for (std::size_t i = first; i < config.widths.size(); ++i) {
    const std::string name = name_of_dense(i);
    g.begin_block(name);
    x = g.relu(g.dense(i == 0 ? g.flatten(x) : x, config.widths[i], name));
    x = g.dropout(x, config.dropout, static_cast<std::int64_t>(i));
  }
  g.begin_block("");
  if (config.widths.empty()) x = g.flatten(x);
  g.cross_entropy(g.dense(x, classes, "fc"), loss.label_smoothing);
}

}  // namespace

Graph cnn(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  for (std::size_t i = 0; i < config.channels.size(); ++i) {
    const std::string name = cat("conv", i + 1);
    g.begin_block(name);
    x = g.convolution(x, config.channels[i], config.kernel, 1, config.kernel / 2, name, !has_norms(config));
    x = g.max_pool(g.relu(normalize(g, x, config, name_of_norm(i))), 2, 2, 0);
  }
  classify(g, x, 0, config, sample.classes, loss);
  return g;
}

Graph mlp(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  // With norms, every hidden layer is on a map, because norms read maps.
  const std::size_t on_maps = has_norms(config) ? config.widths.size() : 1;
  for (std::size_t i = 0; i < on_maps; ++i) {
    g.begin_block(name_of_dense(i));
    x = g.dense_on_map(x, config.widths.at(i), name_of_dense(i), !has_norms(config));
    x = g.relu(normalize(g, x, config, name_of_norm(i)));
    if (i + 1 == on_maps) x = g.flatten(x);
    x = g.dropout(x, config.dropout, static_cast<std::int64_t>(i));
  }
  classify(g, x, on_maps, config, sample.classes, loss);
  return g;
}

Graph alexnet(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int place = 0;  // the place in torchvision's list of layers
  const auto feature = [&] { return cat("features.", place++); };
  const auto layer = [&](int x, std::int64_t channels, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    const std::string name = feature();
    g.begin_block(name);
    x = g.convolution(x, channels, kernel, stride, padding, name, !config.norm);
    if (config.norm) x = g.batch_norm(x, feature());
    ++place;
    return g.relu(x);
  };
  const auto pool = [&](int x) {
    ++place;
    return g.max_pool(x, 3, 2, 0);
  };
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  x = pool(layer(x, 64, 11, 4, 2));
  x = pool(layer(x, 192, 5, 1, 2));
  x = layer(x, 384, 3, 1, 1);
  x = layer(x, 256, 3, 1, 1);
  x = pool(layer(x, 256, 3, 1, 1));
  g.begin_block("classifier.1");
  x = g.flatten(x);
  x = g.relu(g.dense(g.dropout(x, config.dropout, 0), 4096, "classifier.1"));
  g.begin_block("classifier.4");
  x = g.relu(g.dense(g.dropout(x, config.dropout, 1), 4096, "classifier.4"));
  g.begin_block("");
  g.cross_entropy(g.dense(x, sample.classes, "classifier.6"), loss.label_smoothing);
  return g;
}

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

bool takes_images(const ModelConfig& config) {
  return config.kind != "char_lstm";
}

void check_model_fits(const ModelConfig& config, bool images) {
  if (takes_images(config) != images)
    throw Error(
        cat("model.kind ", config.kind, " does not fit the data: data.train holds ", images ? "images" : "text"),
        images ? "use resnet, alexnet, cnn or mlp" : "use char_lstm");
}

static Graph describe(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  if (config.kind == "char_lstm") return char_lstm(config, sample);
  if (config.kind == "resnet") return resnet(config, sample, loss);
  if (config.kind == "alexnet") return alexnet(config, sample, loss);
  if (config.kind == "cnn") return cnn(config, sample, loss);
  if (config.kind == "mlp") return mlp(config, sample, loss);
  throw Error(cat("model.kind '", config.kind, "' is unknown"), "known models: char_lstm, resnet, alexnet, cnn, mlp");
}

Graph build_model(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  check_model_fits(config, sample.image_size > 0);
  Graph graph = describe(config, sample, loss);
  if (config.initial == "truncated_normal") graph.start_truncated_normal();
  if (config.initial == "uniform" && config.initial_range > 0) graph.start_uniform(config.initial_range);
  return graph;
}

}  // namespace ringtrain
