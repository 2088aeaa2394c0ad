#include "models/models.h"

namespace ringtrain {

Graph alexnet(const ModelConfig& config, const SampleShape& sample, const LossConfig& loss) {
  Graph g;
  int x = g.image(sample.image_size, sample.image_size, sample.mean, sample.std);
  x = g.relu(g.convolution(x, 64, 11, 4, 2, "features.0", true));
  x = g.max_pool(x, 3, 2, 0);
  x = g.relu(g.convolution(x, 192, 5, 1, 2, "features.3", true));
  x = g.max_pool(x, 3, 2, 0);
  x = g.relu(g.convolution(x, 384, 3, 1, 1, "features.6", true));
  x = g.relu(g.convolution(x, 256, 3, 1, 1, "features.8", true));
  x = g.relu(g.convolution(x, 256, 3, 1, 1, "features.10", true));
  x = g.max_pool(x, 3, 2, 0);
  x = g.flatten(x);
  x = g.relu(g.dense(g.dropout(x, config.dropout, 0), 4096, "classifier.1"));
  x = g.relu(g.dense(g.dropout(x, config.dropout, 1), 4096, "classifier.4"));
  g.cross_entropy(g.dense(x, sample.classes, "classifier.6"), loss.label_smoothing);
  return g;
}

}  // namespace ringtrain
