// This is the interface of libringtrain-hopper.so, a library of convolutions for Hopper GPUs (compute capability 9.0).
// The kernels come from CUTLASS and compute fused operations too. The interface is plain data and C functions. So the
// program can be built without the library and opens it at run time. Activations are NHWC and weights KRSC, both in
// bf16 or fp16. The library and the program also share the rules by which a problem is divided into tiles.
#pragma once

#include <cstdint>
#include <string>

namespace ringtrain::cuda::hopper {

enum class Work : std::int32_t {
  forward_sums,   // y = conv(x, w); also sum y and sum y^2 per group and channel, from y as it is stored
  gradient_sums,  // dr = dgrad(dy, w) where scale x + bias > 0, else 0; also sum dr and sum dr x per group and channel
  gradient_add_sums,  // dr = dgrad(dy, w) + shortcut where output > 0, else 0; also sum dr and sum dr x
  weight_gradient     // dw = alpha wgrad(dy, x)
};
enum class Element : std::int32_t { fp32, bf16, fp16 };  // the same numbers as Type

// Describes a convolution with a square kernel: x [n, h, w, c], w [k, r, r, c], y [n, p, q, k]. The samples are
// `groups` groups of equal size, one after the other; each has its own statistics, scale and bias.
struct Problem {
  Work work = Work::forward_sums;
  Element type = Element::bf16, result = Element::fp32;  // result: type of dw
  std::int64_t n = 0, c = 0, h = 0, w = 0, k = 0, r = 0, stride = 1, padding = 0, groups = 1;
};

// The addresses are on the device and aligned to 16 bytes. An address that a kind of work does not use is null.
struct Tensors {
  const void* activation = nullptr;  // x; for a data gradient dy
  const void* weight = nullptr;      // w; for a weight gradient dy
  const void* norm_input = nullptr;  // the norm's input x, in the shape of dx
  const void *shortcut = nullptr, *output = nullptr;
  const float *scale = nullptr, *bias = nullptr;  // [groups][c]
  void* result = nullptr;                         // y, dx or dw
  float *sum = nullptr, *sum_other = nullptr;     // [channels]; the sums of group g begin at g x sum_stride
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

// The library exports these functions. Those that can fail return 0 on success. Otherwise they write the reason to
// `why`, cut at why_bytes.
extern "C" {
int ringtrain_hopper_version();
int ringtrain_hopper_instances();
void ringtrain_hopper_describe(int instance, Description* to);
// Says whether CUTLASS can compute the problem, and which workspace it needs. The call runs on the host and needs no
// GPU.
int ringtrain_hopper_can_implement(int instance, const Problem* problem, std::int64_t* workspace_bytes, char* why,
                                   int why_bytes);
// Launches the kernels in the stream, which is a cudaStream_t; the call may be captured. `workspace` is aligned to 256
// bytes.
int ringtrain_hopper_launch(int instance, const Problem* problem, const Tensors* tensors, void* workspace, void* stream,
                            char* why, int why_bytes);
}

// These rules divide a problem into tiles and lay out the partial sums in the workspace.

inline std::int64_t out_height(const Problem& p) {
  return (p.h + 2 * p.padding - p.r) / p.stride + 1;
}
inline std::int64_t out_width(const Problem& p) {
  return (p.w + 2 * p.padding - p.r) / p.stride + 1;
}
inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) {
  return (count + tile - 1) / tile;
}

// These return the pixels and the channels of the result of a forward convolution or a data gradient.
inline std::int64_t result_rows(const Problem& p) {
  return p.work == Work::forward_sums ? p.n * out_height(p) * out_width(p) : p.n * p.h * p.w;
}
inline std::int64_t result_channels(const Problem& p) {
  return p.work == Work::forward_sums ? p.k : p.c;
}
inline std::int64_t tiles_per_group(const Problem& p, std::int64_t tile_rows) {
  return tiles_of(result_rows(p) / p.groups, tile_rows);
}

// Returns the number of splits of a weight gradient. A split is a range of pixels whose part of the sum a block
// computes alone. Splits keep all multiprocessors busy although the result has few tiles. The rule takes the smallest
// number that leaves less than a tenth of the multiprocessors idle. If no number does, it takes the one that leaves the
// fewest idle.
std::int64_t weight_gradient_splits(const Problem& p, const Description& instance);

// Returns the number of steps of `depth` pixels in each split. The last split may have fewer steps, but it has at least
// one.
std::int64_t steps_per_split(const Problem& p, std::int64_t depth, std::int64_t splits);

// Holds offsets in the workspace, in bytes from its beginning.
struct Workspace {
  std::int64_t sum = 0, sum_other = 0, splits = 0, bytes = 0;
  std::int64_t sum_columns = 0;  // floats from the partial sums of one tile to those of the next tile
};
Workspace workspace_of(const Problem& p, const Description& instance);

// Returns the reason why this instance cannot compute the problem. "" means that only CUTLASS's own check remains.
std::string refusal(const Problem& p, const Description& instance);

}  // namespace ringtrain::cuda::hopper
