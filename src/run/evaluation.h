// The result of an evaluation, and how files hold it.
#pragma once

#include <cstdint>
#include <optional>

#include "base/json.h"

namespace ringtrain {

struct Evaluation {
  double loss = 0;                                 // the mean over the counted targets, natural logarithm
  double accuracy = 0;                             // the share of counted targets predicted right (images: top-1)
  std::optional<double> accuracy5 = std::nullopt;  // among the five likeliest classes; images only
  std::int64_t targets = 0;                        // number of counted targets
  double seconds = 0;
};

// Adds validation_loss, validation_accuracy, validation_accuracy5 (images only) and validation_targets to the object.
void put(Json& json, const Evaluation& evaluation);

}  // namespace ringtrain
