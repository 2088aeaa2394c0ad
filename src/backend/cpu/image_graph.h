// Turns the graph of an image model into operations. Joins neighbouring nodes that can run as one operation.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/dense_operation.h"
#include "backend/cpu/image_operation.h"
#include "backend/cpu/norm_statistics.h"

namespace ringtrain::cpu {

struct ImageOperations {
  std::vector<std::unique_ptr<ImageOperation>> operations;  // in order of execution
  std::vector<int> blocks;                                  // block of each operation; -1: not recomputed
  std::vector<std::unique_ptr<NormStatistics>> norms;
  std::vector<std::unique_ptr<Feature>> features;
  const LossOperation* loss = nullptr;  // null: the loss is in another part of the model
  PartBytes bytes;
};

// A ReLU joins the convolution, dense layer, norm or addition before it. An addition also joins the norms before
// it. A node that other nodes read too does not join. Each remaining node becomes an operation of its own.
// Throws Error for graphs that cannot be compiled.
template <class T>
ImageOperations join_operations(const Graph& graph, const ImageContext& context);

}  // namespace ringtrain::cpu
