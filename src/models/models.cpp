#include "models/models.h"

#include "base/error.h"

namespace ringtrain {

bool takes_images(const ModelConfig& config) {
  return config.kind != "char_lstm";
}

void check_model_fits(const ModelConfig& config, bool images) {
  if (takes_images(config) != images)
    throw Error(
        cat("model.kind ", config.kind, " does not fit the data: data.train holds ", images ? "images" : "text"),
        images ? "use resnet, alexnet, cnn or mlp" : "use char_lstm");
}

int normalize(Graph& g, int x, const ModelConfig& config, const std::string& name, double initial_weight) {
  const std::string kind = normalization(config);
  if (kind == "batch") return g.batch_norm(x, name, initial_weight);
  if (kind == "group") return g.group_norm(x, config.norm_groups, name, initial_weight);
  return x;
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
