#include "bench/experiment_keys.h"

#include "base/error.h"
#include "config/schema.h"

namespace ringtrain {

std::string model_keys(const Experiment& experiment) {
  std::string text;
  for (const Field& field : schema()) {
    const std::string key(field.key);
    if (key == "precision" || key.rfind("model.", 0) == 0 || key == "data.image_size" || key == "data.sequence")
      text += cat(text.empty() ? "" : " ", key, "=", value_text(field, experiment));
  }
  return text;
}

}  // namespace ringtrain
