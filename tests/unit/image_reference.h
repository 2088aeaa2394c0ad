// The reference for image networks: fp64 loops written from the formulas. Tests compare every backend with it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {

struct ImageResult {
  double loss = 0;  // sum over counted targets, natural logarithm
  std::int64_t correct = 0, correct5 = 0, targets = 0;
  std::vector<double> logits;     // [rows, classes]
  std::vector<double> gradients;  // the flat vector, with batch norm's statistics in their places; else empty
};

// One pass over `rows` images of a graph that starts with an ImageInput. `weights` is the flat vector; batch norm
// normalises `group` neighbouring rows together. Gradients are computed in training, unless `backward` is false.
ImageResult run_reference(const Graph& graph, const std::vector<double>& weights, const TestPass& pass,
                          std::int64_t rows, std::int64_t group, PassMode mode, bool backward = true);

// Moves the biases in front of ReLUs so that no value of this pass lies near zero: then rounding switches none of them
// (one that switches is 1e-2 of a small tensor's gradient) and gradients can be compared tightly. New biases are
// floats.
void keep_off_kinks(const Graph& graph, std::vector<double>& weights, const TestPass& pass, std::int64_t rows,
                    std::int64_t group);

}  // namespace ringtrain
