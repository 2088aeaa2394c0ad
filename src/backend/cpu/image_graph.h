// A graph of an image model turned into operations: neighbours that can run as one are joined here.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/batch_statistics.h"
#include "backend/cpu/dense_operation.h"
#include "backend/cpu/image_operation.h"

namespace ringtrain::cpu {

struct ImageOperations {
  std::vector<std::unique_ptr<ImageOperation>> operations;  // in order of execution
  std::vector<int> blocks;                                  // of the operations, where they are recomputed; else -1
  std::vector<std::unique_ptr<BatchStatistics>> norms;
  std::vector<std::unique_ptr<Feature>> features;
  const LossOperation* loss = nullptr;  // null: the model goes on in another part
  PartBytes bytes;
};

// Conv -> ReLU, norm -> ReLU and norm -> add (of a norm) -> ReLU become one operation each; every other order of these
// nodes is compiled as it stands. Throws Error for what cannot be compiled.
template <class T>
ImageOperations join_operations(const Graph& graph, const ImageContext& context);

}  // namespace ringtrain::cpu
