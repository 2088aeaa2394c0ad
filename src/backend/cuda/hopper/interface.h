// The border of libringtrain-hopper.so: convolutions from CUTLASS for Hopper GPUs (compute capability 9.0), with what
// is fused to them. Plain data and C functions, so that the program opens the library at run time and is built without
// it. Activations are NHWC, weights KRSC, both bf16 or fp16.
#pragma once

#include <cstdint>

namespace ringtrain::cuda::hopper {

enum class Work : std::int32_t {
  forward_sums,       // y = conv(x, w); per group and channel: sum y, sum y^2, of y as it is stored
  gradient_sums,      // dr = dgrad(dy, w) where scale x + bias > 0, else 0; per group and channel: sum dr, sum dr x
  gradient_add_sums,  // dr = dgrad(dy, w) + shortcut where output > 0, else 0; sum dr, sum dr x
  weight_gradient     // dw = alpha wgrad(dy, x)
};
enum class Element : std::int32_t { fp32, bf16, fp16 };  // numbered as Type

// A convolution: x [n, h, w, c], w [k, r, r, c], y [n, p, q, k], square kernel. Statistics, scale and bias are those of
// `groups` equal runs of samples.
struct Problem {
  Work work = Work::forward_sums;
  Element type = Element::bf16, result = Element::fp32;  // result: of dw
  std::int64_t n = 0, c = 0, h = 0, w = 0, k = 0, r = 0, stride = 1, padding = 0, groups = 1;
};

// Device addresses, 16-byte aligned; what a kind of work does not use is null.
struct Tensors {
  const void* activation = nullptr;  // x; of data gradients dy
  const void* weight = nullptr;      // of weight gradients dy
  const void* norm_input = nullptr;  // x of the norm, as dx
  const void *shortcut = nullptr, *output = nullptr;
  const float *scale = nullptr, *bias = nullptr;  // [groups][c]
  void* result = nullptr;                         // y, dx or dw
  float *sum = nullptr, *sum_other = nullptr;     // of group g at + g x sum_stride, [channels]
  std::int64_t sum_stride = 0;                    // floats
  float alpha = 1;
};

struct Description {
  char name[48];
  Work work;
  Element type;
  std::int32_t tile_rows, tile_columns, tile_depth, cluster_rows;
  std::int32_t threads, shared_bytes;
};

inline constexpr int interface_version = 1;
inline constexpr const char* library_file = "libringtrain-hopper.so";

// What the library exports, under these names. 0: done; else `why` says what is wrong, cut at why_bytes.
extern "C" {
int ringtrain_hopper_version();
int ringtrain_hopper_instances();
void ringtrain_hopper_describe(int instance, Description* to);
// On the host, without a GPU: whether CUTLASS can do it, and the workspace.
int ringtrain_hopper_can_implement(int instance, const Problem* problem, std::int64_t* workspace_bytes, char* why,
                                   int why_bytes);
// In the stream (a cudaStream_t); may be captured. `workspace`: 256-byte aligned.
int ringtrain_hopper_launch(int instance, const Problem* problem, const Tensors* tensors, void* workspace, void* stream,
                            char* why, int why_bytes);
}

}  // namespace ringtrain::cuda::hopper
