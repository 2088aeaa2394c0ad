// Turns the graph of a model of sequences into operations.
#pragma once

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// Dropout is part of the layer before it. The loss is part of the dense layer. A part of a model may begin with
// PartInput instead of the symbols, and end with PartOutput instead of the dense layer. Throws Error for graphs that
// cannot be compiled.
Operations sequence_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context);

}  // namespace ringtrain::cpu
