// Compares one operation on the GPU with loops on the CPU.
#pragma once

#include <cmath>
#include <string>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

// Returns the larger of two differences. A difference that is not a number is larger than all others.
inline double worse(double a, double b) {
  return std::isnan(a) || a > b ? a : b;
}

// Returns the largest |a - b| / |b| that rounding explains. In fp32, sums are added in another order. In tf32, operands
// are rounded or cut to 10 bits. In 16 bit, results are rounded once, from sums that differ in their last bits.
double rounding_of(const DnnOperation& operation);

struct ComparedOperation {
  bool found = false;
  double difference = 0;  // |a - b| / |b|, the largest among its results; NaN when a result is not a number
  bool same_bits = true;  // whether running it again gives the same bits
  std::string text;       // the engine, or why there is none
};

// Runs the operation with random values, and compares every result with the loops of tests/emulation/reference_dnn.h.
// Throws Error when the device does.
ComparedOperation compare_with_loops(const DnnOperation& operation);

}  // namespace ringtrain::cuda
