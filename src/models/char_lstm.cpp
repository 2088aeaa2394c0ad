#include "models/models.h"

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

}  // namespace ringtrain
