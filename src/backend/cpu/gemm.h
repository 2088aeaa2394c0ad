// Matrix products with oneDNN. Each shape has a primitive that is made once. Compiles with oneDNN 2.6 and 3.x.
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ringtrain::cpu {

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
  struct Call {
    dnnl::memory a, b, c, scratch;
    std::unordered_map<int, dnnl::memory> arguments;
  };
  GemmShape shape_;
  int team_ = 1;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
  std::vector<Call> calls_;
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
