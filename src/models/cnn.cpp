#include "models/models.h"

namespace ringtrain {

Graph cnn(const ModelConfig& /*config*/, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  x = g.max_pool(g.relu(g.convolution(x, 32, 3, 1, 1, "conv1", true)), 2, 2, 0);
  x = g.max_pool(g.relu(g.convolution(x, 64, 3, 1, 1, "conv2", true)), 2, 2, 0);
  x = g.max_pool(g.relu(g.convolution(x, 128, 3, 1, 1, "conv3", true)), 2, 2, 0);
  g.cross_entropy(g.dense(g.flatten(x), sample.classes, "fc"), loss.label_smoothing);
  return g;
}

}  // namespace ringtrain
