#include "base/error.h"
#include "models/models.h"

namespace ringtrain {
namespace {

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

}  // namespace ringtrain
