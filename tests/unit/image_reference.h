// The reference for image networks, made of fp64 loops that follow the formulas. Tests compare every backend with it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {

struct ImageResult {
  double loss = 0;  // sum over targets that count, natural logarithm
  std::int64_t correct = 0, correct5 = 0, targets = 0;
  std::vector<double> logits;     // [rows, classes]
  std::vector<double> gradients;  // the flat vector with batch norm's statistics in their places, or empty
};

// Runs one pass over `rows` images of a graph that starts with an ImageInput. `weights` is the flat vector. Batch norm
// normalises `group` neighbouring rows together. Gradients are computed in training, unless `backward` is false.
ImageResult run_reference(const Graph& graph, const std::vector<double>& weights, const TestPass& pass,
                          std::int64_t rows, std::int64_t group, PassMode mode, bool backward = true);

// Moves the biases in front of ReLUs so that no value of this pass lies near zero. Rounding then switches no ReLU, and
// gradients can be compared tightly. (A switched ReLU changes a small tensor's gradient by 1e-2.) New biases are
// floats.
void keep_off_kinks(const Graph& graph, std::vector<double>& weights, const TestPass& pass, std::int64_t rows,
                    std::int64_t group);

}  // namespace ringtrain
