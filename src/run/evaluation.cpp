#include "run/evaluation.h"

namespace ringtrain {

void put(Json& json, const Evaluation& evaluation) {
  json["validation_loss"] = evaluation.loss;
  json["validation_accuracy"] = evaluation.accuracy;
  if (evaluation.accuracy5) json["validation_accuracy5"] = *evaluation.accuracy5;
  json["validation_targets"] = evaluation.targets;
}

}  // namespace ringtrain
