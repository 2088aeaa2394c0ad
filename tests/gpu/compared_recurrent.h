// Compares recurrent layers on the GPU with loops on the CPU.
#pragma once

#include <string>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

struct ComparedRecurrent {
  bool found = false;
  std::string why;  // when there is no plan: cuDNN's reason
  // |a - b| / |b| of the output, the last states (h and c together), the input's gradient and the weights' gradient.
  // NaN when a value is not a number.
  double output = 0, states = 0, input_gradient = 0, weight_gradient = 0;
  double largest() const;  // NaN when one of them is NaN
  std::string text() const;
};

// Runs the layers forward and backward with random values, and compares the results with the loops of
// tests/emulation/reference_rnn.h. The operation has to be one for training. Throws Error when the device does.
ComparedRecurrent compare_with_loops(const RnnOperation& operation);

// Returns the largest difference that roundings explain. cuDNN rounds more intermediate values than the loops do.
double rounding_of(const RnnOperation& operation);

}  // namespace ringtrain::cuda
