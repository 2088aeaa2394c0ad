// Computes the LSTM layers of an RnnOperation in fp32, with exact sigmoid and tanh. The weights lie in an order of this
// file's own, with gaps. A program that assumes the order of the flat vector therefore computes wrong results.
#pragma once

#include <vector>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

std::vector<RnnWeight> weight_layout(const RnnOperation& operation);
std::int64_t weight_elements(const RnnOperation& operation);   // elements of the weight space, with its gaps
std::int64_t reserve_elements(const RnnOperation& operation);  // fp32 elements
void forward(const RnnOperation& operation, const RnnForward& arguments);
// Destroys the reserve, which holds NaNs afterwards. cuDNN also overwrites its reserve with its own intermediate
// values.
void backward(const RnnOperation& operation, const RnnBackward& arguments);

}  // namespace ringtrain::cuda
