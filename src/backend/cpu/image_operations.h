// Turns the graph of an image model into operations.
#pragma once

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// Joins neighbouring nodes that can run as one operation. A ReLU joins the convolution, dense layer, norm or addition
// before it. An addition also joins the norms before it. A node that other nodes read too does not join. Each remaining
// node becomes an operation of its own. Throws Error for graphs that cannot be compiled, and if options.group is
// neither a divisor nor a multiple of the micro-batch.
Operations image_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context);

}  // namespace ringtrain::cpu
