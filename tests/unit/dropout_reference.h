// Computes dropout by its definition in nn/math.h, one value at a time.
#pragma once

#include "backend/backend.h"
#include "base/random.h"
#include "nn/math.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {

// Returns 0 or 1 / (1 - p), which depends on key, step, layer and place. `row` counts from the start of the pass.
inline double dropout_factor(const TestPass& pass, double probability, std::int64_t layer, std::int64_t row,
                             std::int64_t time, std::int64_t unit) {
  const std::int64_t begin = unit / 128 * 128, u = unit - begin;
  const std::int64_t block = u % 16, word = (u / 16) % 4;
  const DropoutCounter counter = dropout_counter(pass.step, layer, pass.first_row + row, time, begin / 8 + block);
  const Random4 random = philox(pass.dropout_key, counter.low, counter.high);
  const std::uint32_t bits = u < 64 ? random.v[word] & 0xffffu : random.v[word] >> 16;
  const double threshold = dropout_threshold(probability);
  return bits >= threshold ? 1 / (1 - threshold / 65536.0) : 0;
}

}  // namespace ringtrain
