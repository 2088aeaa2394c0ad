#include "models/models.h"

namespace ringtrain {

Graph cnn(const ModelConfig& /*config*/, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  const auto layer = [&](std::int64_t channels, const char* name) {
    g.begin_block(name);
    x = g.max_pool(g.relu(g.convolution(x, channels, 3, 1, 1, name, true)), 2, 2, 0);
  };
  layer(32, "conv1");
  layer(64, "conv2");
  layer(128, "conv3");
  g.begin_block("");
  g.cross_entropy(g.dense(g.flatten(x), sample.classes, "fc"), loss.label_smoothing);
  return g;
}

}  // namespace ringtrain
