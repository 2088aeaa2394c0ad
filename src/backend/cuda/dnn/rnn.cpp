#include "backend/cuda/dnn/rnn.h"

#include "base/error.h"

namespace ringtrain::cuda {

const char* rnn_algorithm_name(RnnAlgorithm algorithm) {
  switch (algorithm) {
    case RnnAlgorithm::standard:
      return "standard";
    case RnnAlgorithm::persist_static:
      return "persist_static";
    case RnnAlgorithm::persist_dynamic:
      return "persist_dynamic";
    case RnnAlgorithm::persist_small_h:
      return "persist_small_h";
  }
  return "?";
}

std::string RnnOperation::key() const {
  return cat("lstm ", type_name(type), math == Math::tf32 ? " tf32" : "", " layers", layers, " input", input, " hidden",
             hidden, " length", length, " batch", batch, " ", rnn_algorithm_name(algorithm),
             training ? " training" : " inference");
}

double RnnOperation::flops() const {
  const double columns = static_cast<double>(input + (layers - 1) * hidden + layers * hidden);
  return 2.0 * 4.0 * static_cast<double>(hidden) * columns * static_cast<double>(length * batch);
}

}  // namespace ringtrain::cuda
