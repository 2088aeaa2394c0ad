#include "models/models.h"

#include "base/error.h"

namespace ringtrain {

Graph build_model(const ModelConfig& config, const SampleShape& sample) {
  if (config.kind == "char_lstm") return char_lstm(config, sample);
  throw Error(cat("model.kind '", config.kind, "' is unknown"), "known models: char_lstm");
}

}  // namespace ringtrain
