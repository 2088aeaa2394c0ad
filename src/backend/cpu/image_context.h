// What the operations on images share: the layout of maps, the kernels, and loops over images.
#pragma once

#include "backend/cpu/image_kernels.h"
#include "backend/cpu/norm_kernels.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

struct ImageContext : OperationContext {
  const NormKernels* norm = nullptr;
  const ImageKernels* image = nullptr;
  bool measures = true;    // batch norm uses the statistics of the pass, not the running ones
  std::int64_t group = 0;  // images of this rank that batch norm normalises together
  std::int64_t span = 1;   // ranks that share a group, each with `group` images

  std::int64_t lanes() const { return norm->lanes; }
  std::int64_t blocks(const Feature& f) const { return (f.shape.channels + lanes() - 1) / lanes(); }
  std::int64_t padded_channels(const Feature& f) const { return blocks(f) * lanes(); }
  template <class T>
  std::int64_t bytes(const Feature& f) const {
    return static_cast<std::int64_t>(sizeof(T)) * (f.vector ? f.shape.size() : padded_channels(f) * f.pixels());
  }
};

// Calls body(image, block) for all images of the slice and all blocks of channels. Each thread gets a fixed, contiguous
// share.
template <class Body>
void for_each_unit(int threads, const Slice& slice, std::int64_t blocks, const Body& body) {
  const std::int64_t units = slice.count * blocks;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t u = 0; u < units; ++u) body(slice.first + u / blocks, u % blocks);
}

}  // namespace ringtrain::cpu
