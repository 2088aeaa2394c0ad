#include "backend/cpu/matrix_rate.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>

#include "backend/cpu/gemm.h"
#include "backend/cpu/memory.h"
#include "base/clock.h"

namespace ringtrain::cpu {
namespace {

// A product of this size runs at full speed, its matrices stay in a core's second cache, and it takes 1 ms or less.
constexpr std::int64_t rows = 128, width = 512;
constexpr double product_flops = 2.0 * rows * width * width;
// The better of two windows counts, because other programs may disturb one. A window is longer than the time slices in
// which ranks that share a core take turns.
constexpr int windows = 2;
constexpr double window_seconds = 0.006;

void fill(void* values, std::int64_t bytes, bool bf16) {
  const std::int64_t size = bf16 ? 2 : 4;
  for (std::int64_t i = 0; i < bytes / size; ++i) {
    const std::int64_t step = i % 7;
    if (bf16)
      static_cast<std::uint16_t*>(values)[i] = static_cast<std::uint16_t>(0x3d80 + step);  // 1/16 and a little more
    else
      static_cast<float*>(values)[i] = 0.0625f * (1 + 0.001f * static_cast<float>(step));
  }
}

}  // namespace

double measure_matrix_rate(int threads, bool bf16) {
  Gemm product({.m = rows, .n = width, .k = width, .bf16 = bf16, .lda = width, .ldc = width}, 1, threads);
  const std::int64_t a_bytes = rows * width * (bf16 ? 2 : 4), c_bytes = rows * width * 4;
  const std::int64_t b_bytes = (product.packed_bytes() + 63) / 64 * 64;
  const auto count = std::make_shared<std::int64_t>(0);
  const Memory memory(b_bytes + product.scratch_bytes() + threads * (a_bytes + c_bytes), count);
  // The order of the packed values does not matter for the time.
  fill(memory.data(), b_bytes, bf16);
  char* const own = product.bind(memory.data(), memory.data() + b_bytes);

  std::array<double, windows> rates = {};  // of all threads
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  try {
    const int thread = omp_get_thread_num();
    char* const a = own + thread * (a_bytes + c_bytes);
    fill(a, a_bytes, bf16);
    const auto multiply = [&] { product.run(thread, a, reinterpret_cast<float*>(a + a_bytes)); };
    multiply();  // touches the memory, and begins the work with wide registers
    for (int window = 0; window < windows; ++window) {
      const double begin = now_seconds();
      std::int64_t products = 0;
      double seconds = 0;
      do {
        multiply();
        ++products;
        seconds = now_seconds() - begin;
      } while (seconds < window_seconds);
      const double rate = static_cast<double>(products) * product_flops / seconds;
#pragma omp critical
      rates[static_cast<std::size_t>(window)] += rate;
    }
  } catch (...) {
#pragma omp critical
    error = std::current_exception();
  }
  if (error) std::rethrow_exception(error);
  return std::ranges::max(rates);
}

}  // namespace ringtrain::cpu
