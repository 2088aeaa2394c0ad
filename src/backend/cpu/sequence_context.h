// What the operations on sequences share: the layout of a micro-batch of sequences, and loops over it.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// The layout of a micro-batch in memory. Rows are cut into blocks. One thread works on a block and all its time steps,
// so that the block's values stay in the second-level cache of that core.
//   activations: [blocks][time][block_rows][features]
struct RowBlocks {
  std::int64_t rows = 0;  // rows of the micro-batch
  std::int64_t blocks = 0;
  std::int64_t block_rows = 0;  // blocks x block_rows >= rows; the rest is padding that no target counts
  std::int64_t sequence = 0;
  int threads = 1;
  std::int64_t padded_rows() const { return blocks * block_rows; }
  std::int64_t positions() const { return padded_rows() * sequence; }  // rows of the weight-gradient products
};

struct SequenceContext : OperationContext {
  RowBlocks blocks;

  template <class Element>
  Element* memory(int storage, std::int64_t offset = 0) const {
    return schedule->at<Element>(storage) + offset;
  }
};

// Calls `body(block, thread)` for every block. Each thread gets a fixed, contiguous share.
template <class Body>
void for_each_block(const RowBlocks& blocks, const Body& body) {
#pragma omp parallel num_threads(blocks.threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
    for (std::int64_t block = 0; block < blocks.blocks; ++block) body(block, thread);
  }
}

// Copies a block's rows of [rows][sequence] values to [padded rows][sequence]. Rows of padding get the value `padding`.
template <class Element>
void copy_rows(const RowBlocks& blocks, std::int64_t block, const Element* from, Element padding, Element* to) {
  const std::int64_t size = blocks.block_rows * blocks.sequence, begin = block * size;
  const std::int64_t given = std::clamp<std::int64_t>(blocks.rows * blocks.sequence - begin, 0, size);
  if (given > 0) std::copy_n(from + begin, given, to + begin);
  std::fill_n(to + begin + given, size - given, padding);
}

// to = from, or to += from.
inline void store_gradient(const Kernels& kernels, std::int64_t n, const float* from, float* to, bool accumulate) {
  if (accumulate)
    kernels.add(n, from, to);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

}  // namespace ringtrain::cpu
