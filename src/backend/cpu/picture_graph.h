// A graph of a picture model turned into operations: neighbours that can run as one are joined here.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/batch_statistics.h"
#include "backend/cpu/dense_operation.h"
#include "backend/cpu/picture_operation.h"

namespace ringtrain::cpu {

struct PictureOperations {
  std::vector<std::unique_ptr<PictureOperation>> operations;  // in order of execution
  std::vector<std::unique_ptr<BatchStatistics>> norms;
  std::vector<std::unique_ptr<Feature>> features;
  const LossOperation* loss = nullptr;
};

// Conv -> ReLU, norm -> ReLU and norm -> add (of a norm) -> ReLU become one operation each; every other order of these
// nodes is compiled as it stands. Throws Error for what cannot be compiled.
template <class T>
PictureOperations join_operations(const Graph& graph, const PictureContext& context);

}  // namespace ringtrain::cpu
