#include "backend/cuda/dnn/rnn.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

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

std::string why_excluded(RnnAlgorithm algorithm) {
  const char* const setting = std::getenv("RINGTRAIN_WITHOUT_RNN");
  std::istringstream names(setting != nullptr ? setting : "");
  std::string why;
  for (std::string name; std::getline(names, name, ',');) {
    if (std::ranges::none_of(rnn_algorithms, [&](RnnAlgorithm a) { return name == rnn_algorithm_name(a); }))
      throw Error(
          cat("RINGTRAIN_WITHOUT_RNN names '", name, "', which is no algorithm of a recurrent layer"),
          "Choose from standard, persist_static, persist_dynamic and persist_small_h, with commas between them.");
    if (name == rnn_algorithm_name(algorithm)) why = "excluded by RINGTRAIN_WITHOUT_RNN";
  }
  return why;
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
