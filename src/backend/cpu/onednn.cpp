#include "backend/cpu/onednn.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <new>

#include "backend/cpu/memory.h"
#include "base/clock.h"
#include "base/rounding.h"

namespace ringtrain::cpu {

dnnl::engine& onednn_engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::stream& onednn_stream() {
  thread_local dnnl::stream s(onednn_engine());
  return s;
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return cat(v->major, ".", v->minor, ".", v->patch);
}

void fail(const dnnl::error& error, const std::string& what, bool bf16) {
  if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
  const bool lacks = error.status == dnnl_unimplemented;
  throw Error(cat("oneDNN ", onednn_version(), lacks ? " has no " : " failed at the ", what, ": ", error.what(),
                  error.status == dnnl_runtime_error ? "; as a rule, memory for its code is missing" : ""),
              lacks && bf16 ? "use precision: fp32" : "");
}

namespace {

using dnnl::memory;

std::string name_of(const GemmShape& s) {
  return cat(s.bf16 ? "bf16" : "fp32", " matrix product ", s.m, " x ", s.k, " x ", s.n);
}

memory::desc strided(std::int64_t rows, std::int64_t columns, memory::data_type type, std::int64_t row_stride,
                     std::int64_t column_stride) {
  return {memory::dims{rows, columns}, type, memory::dims{row_stride, column_stride}};
}

dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                                      const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return {onednn_engine(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, onednn_engine()};
#endif
}

}  // namespace

Gemm::Gemm(const GemmShape& s, int team, int callers) : shape_(s), team_(team) {
  make_primitives(
      team, s.bf16, [&] { return name_of(s); },
      [&] {
        const auto type = s.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        if (s.accumulate) {
          dnnl::post_ops post;
          post.append_sum(1.0f);
          attributes.set_post_ops(post);
        }
        const auto a = s.a_transposed ? strided(s.m, s.k, type, 1, s.lda) : strided(s.m, s.k, type, s.lda, 1);
        const auto b = s.b_transposed ? strided(s.k, s.n, type, 1, s.ldb)
                       : s.ldb > 0    ? strided(s.k, s.n, type, s.ldb, 1)
                                      : memory::desc(memory::dims{s.k, s.n}, type, memory::format_tag::any);
        const auto c = strided(s.m, s.n, memory::data_type::f32, s.ldc, 1);
        description_ = describe(a, b, c, attributes);
        primitive_ = dnnl::matmul(description_);
      });
  calls_.resize(static_cast<std::size_t>(callers));
}

std::int64_t Gemm::packed_bytes() const {
  return shape_.ldb > 0 || calls_.empty() ? 0 : static_cast<std::int64_t>(description_.weights_desc().get_size());
}

std::int64_t Gemm::scratch_bytes() const {
  if (calls_.empty()) return 0;
  const auto bytes = static_cast<std::int64_t>(description_.scratchpad_desc().get_size());
  return static_cast<std::int64_t>(calls_.size()) * round_up(bytes, 64);
}

char* Gemm::bind(void* packed, char* scratch) {
  if (calls_.empty()) return scratch;
  if (packed != nullptr) packed_ = memory(description_.weights_desc(), onednn_engine(), packed);
  const auto at = [](const memory::desc& of, void* data) { return memory(of, onednn_engine(), data); };
  for (auto& call : calls_) {
    call = {{DNNL_ARG_SRC, at(description_.src_desc(), nullptr)},
            {DNNL_ARG_WEIGHTS, packed != nullptr ? packed_ : at(description_.weights_desc(), nullptr)},
            {DNNL_ARG_DST, at(description_.dst_desc(), nullptr)},
            {DNNL_ARG_SCRATCHPAD, at(description_.scratchpad_desc(), scratch)}};
    scratch += scratch_bytes() / static_cast<std::int64_t>(calls_.size());
  }
  return scratch;
}

void Gemm::pack(const float* source, std::int64_t row_stride, std::int64_t column_stride) {
  const auto from = strided(shape_.k, shape_.n, memory::data_type::f32, row_stride, column_stride);
  memory values(from, onednn_engine(),
                const_cast<float*>(source));  // oneDNN takes no const pointer, but a reorder only reads
  if (!pack_) {
    // oneDNN compiles code, which takes 10 ms, so it is kept.
    make_primitives(
        1, shape_.bf16, [&] { return name_of(shape_); }, [&] { pack_ = dnnl::reorder(values, packed_); });
    pack_strides_ = {row_stride, column_stride};
  }
  if (pack_strides_ != std::pair(row_stride, column_stride))
    throw Error("pack() was called with other strides than the first time");
  execute(pack_, values, packed_);
}

void Gemm::run(int caller, const void* a, const void* b, float* c) {
  auto& call = calls_[static_cast<std::size_t>(caller)];
  call.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(a));
  if (b != nullptr) call.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(b));
  call.at(DNNL_ARG_DST).set_data_handle(c);
  const TeamSize size(team_);
  execute(primitive_, call);
}

namespace {

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
  // A product of this size runs at full speed, its matrices stay in a core's second cache, and it takes 1 ms or less.
  constexpr std::int64_t rows = 128, width = 512;
  constexpr double product_flops = 2.0 * rows * width * width;
  Gemm product({.m = rows, .n = width, .k = width, .bf16 = bf16, .lda = width, .ldc = width}, 1, threads);
  const std::int64_t a_bytes = rows * width * (bf16 ? 2 : 4), c_bytes = rows * width * 4;
  const std::int64_t b_bytes = round_up(product.packed_bytes(), 64);
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
