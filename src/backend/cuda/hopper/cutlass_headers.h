// Includes CUTLASS's headers and translates this program's types to CUTLASS's. The order of the includes matters,
// because some headers do not include what they use.
#pragma once

#include "backend/cuda/hopper/instance.h"

// clang-format off
#include "cutlass/cutlass.h"
#include "cutlass/cuda_host_adapter.hpp"
// clang-format on

// CUTLASS asks the driver for tensor maps through this macro, and only asserts that the driver gives them. A kernel
// whose map was refused would read from anywhere.
#undef CUTLASS_CUDA_DRIVER_WRAPPER_CALL
#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(function)                       \
  [](auto... arguments) {                                                \
    const CUresult given = cutlass::call_##function(arguments...);       \
    ::ringtrain::cuda::hopper::note_tensor_map(static_cast<int>(given)); \
    return given;                                                        \
  }

// clang-format off
#include "cutlass/conv/device/conv_universal_adapter.hpp"
#include "cutlass/conv/kernel/conv_universal.hpp"
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
// clang-format on

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
