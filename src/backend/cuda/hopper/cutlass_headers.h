// Includes CUTLASS's headers and translates this program's types to CUTLASS's. The order of the includes matters,
// because some headers do not include what they use.
#pragma once

// clang-format off
#include "cutlass/cutlass.h"
#include "cutlass/conv/device/conv_universal_adapter.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
// clang-format on

#include "backend/cuda/hopper/interface.h"

namespace ringtrain::cuda::hopper {

template <class T>
inline constexpr Element element_of = Element::fp32;
template <>
inline constexpr Element element_of<cutlass::bfloat16_t> = Element::bf16;
template <>
inline constexpr Element element_of<cutlass::half_t> = Element::fp16;

template <cutlass::conv::Operator op>
cutlass::conv::ConvProblemShape<op, 2> conv_shape(const Problem& p) {
  const auto i = [](std::int64_t value) { return static_cast<int>(value); };
  return {cutlass::conv::Mode::kCrossCorrelation,
          {i(p.n), i(p.h), i(p.w), i(p.c)},
          {i(p.k), i(p.r), i(p.r), i(p.c)},
          {i(p.padding), i(p.padding)},
          {i(p.padding), i(p.padding)},
          {i(p.stride), i(p.stride)},
          {1, 1},
          1};
}

}  // namespace ringtrain::cuda::hopper
