// oneDNN: the library's engine and threads for all its users, and matrix products. convolution.h has the convolutions.
// Compiles with oneDNN 2.6 and 3.x.
#pragma once

#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ringtrain::cpu {

dnnl::engine& onednn_engine();
dnnl::stream& onednn_stream();  // one per thread, because two threads must not use a stream at the same time
std::string onednn_version();   // such as "2.6.3"

// Throws std::bad_alloc if oneDNN lacked memory, otherwise Error. oneDNN's own message names neither the library nor
// the lack of memory. `what` is what was asked for, such as "bf16 matrix product 4 x 8 x 8", and `bf16` is its type.
[[noreturn]] void fail(const dnnl::error& error, const std::string& what, bool bf16);

// Sets the number of threads while primitives are made or run. Most primitives remember the number from the time when
// they are made; reorders use the number when they run. Without this class, both would use a thread for each CPU of the
// rank and ignore run.threads. Ranks that share CPUs would then spin, waiting for threads that cannot run yet.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamSize() { omp_set_num_threads(before_); }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
};

// Calls `work`, which makes primitives for `threads` threads. Throws what fail() throws; `what` returns its argument.
template <class What, class Work>
void make_primitives(int threads, bool bf16, const What& what, const Work& work) {
  const TeamSize team(threads);
  try {
    work();
  } catch (const dnnl::error& error) {
    fail(error, what(), bf16);
  }
}

// Runs a primitive on this thread's stream. Throws what fail() throws.
template <class Primitive, class... Arguments>
void execute(const Primitive& primitive, Arguments&... arguments) {
  try {
    primitive.execute(onednn_stream(), arguments...);
  } catch (const dnnl::error& error) {
    fail(error, "run of a primitive", false);
  }
}

// Matrix products. Each shape has a primitive that is made once.

// C [m, n] fp32 = A [m, k] B [k, n], or C += A B.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool bf16 = false;          // type of A and B
  bool a_transposed = false;  // A is stored as [k, m]
  bool b_transposed = false;  // B is stored as [n, k]; not for a packed B
  std::int64_t lda = 0;       // elements from one row of the stored A to the next
  std::int64_t ldb = 0;       // 0: B is packed in the layout that oneDNN prefers, see pack()
  std::int64_t ldc = 0;
  bool accumulate = false;
};

class Gemm {
 public:
  Gemm() = default;  // an empty product, which needs no memory and cannot run
  // run() uses `team` threads. `callers` threads may call run() at the same time. Throws Error if oneDNN lacks the
  // product.
  Gemm(const GemmShape& shape, int team, int callers);

  std::int64_t packed_bytes() const;   // size of the packed B
  std::int64_t scratch_bytes() const;  // size of the scratch memory of all callers
  // `packed` has packed_bytes(), or is null if ldb is given. `scratch` has scratch_bytes() and is aligned to 64 bytes.
  // Returns the end of the scratch memory.
  char* bind(void* packed, char* scratch);
  // Fills the packed B from fp32 values at source[i * row_stride + j * column_stride], i < k, j < n. Throws Error
  // if the strides are not those of the first call.
  void pack(const float* source, std::int64_t row_stride, std::int64_t column_stride);

  void run(int caller, const void* a, float* c) { run(caller, a, nullptr, c); }  // packed B
  void run(int caller, const void* a, const void* b, float* c);

 private:
  GemmShape shape_;
  int team_ = 1;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
  std::vector<std::unordered_map<int, dnnl::memory>> calls_;  // the arguments of each caller
  dnnl::memory packed_;
  dnnl::reorder pack_;
  std::pair<std::int64_t, std::int64_t> pack_strides_;
};

// Measures how fast a rank's threads multiply matrices. Returns floating-point operations per second of all `threads`
// threads together, a multiplication and an addition being two. Each thread multiplies matrices of its own, as in a
// layer of a model. It takes about 15 ms. Ranks that share cores must measure at the same time. Throws Error if oneDNN
// lacks the product.
double measure_matrix_rate(int threads, bool bf16);

}  // namespace ringtrain::cpu
