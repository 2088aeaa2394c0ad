#include "base/error.h"
#include "models/models.h"

namespace ringtrain {

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

}  // namespace ringtrain
