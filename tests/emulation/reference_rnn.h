// LSTM layers as an RnnOperation asks for them, in fp32 with exact sigmoid and tanh. The weight space is laid out in an
// order of its own, with gaps, so that a program which assumes the flat vector's order computes something else.
#pragma once

#include <vector>

#include "backend/cuda/dnn/rnn.h"

namespace ringtrain::cuda {

std::vector<RnnWeight> weight_layout(const RnnOperation& operation);
std::int64_t weight_elements(const RnnOperation& operation);   // of the weight space, gaps included
std::int64_t reserve_elements(const RnnOperation& operation);  // fp32
void forward(const RnnOperation& operation, const RnnForward& arguments);
// The reserve is used up: it holds NaNs afterwards, as cuDNN's holds its own intermediates.
void backward(const RnnOperation& operation, const RnnBackward& arguments);

}  // namespace ringtrain::cuda
