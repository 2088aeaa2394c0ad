// The own kernels: which there are, and what they are told. Activations are NHWC, [rows, channels] with rows = samples
// x height x width; the groups of batch norm are consecutive samples. Whatever differs from step to step is read from
// StepState in device memory, so that a captured graph stays true.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "backend/cuda/types.h"
#include "nn/adascale.h"
#include "nn/update_rule.h"

namespace ringtrain::cuda {

// What a pass is told anew each time; see PassInput.
struct StepState {
  float gradient_scale = 0;   // 1 / targets of the global batch, times the loss scale of fp16
  float statistic_scale = 0;  // 1 / workers of the global batch
  std::uint64_t dropout_key = 0;
  std::int64_t step = 0, first_row = 0;
};

// What the kernels of one pass count, added up over the micro-steps until it is fetched.
struct PassSums {
  double loss = 0;
  std::int64_t correct = 0, correct5 = 0, targets = 0;
};

enum class Kernel {
  image_input,
  one_hot,
  norm_sums,
  norm_finalize,
  norm_inference,
  norm_apply,
  norm_backward_sums,
  norm_backward_finalize,
  norm_backward_apply,
  norm_pool,
  norm_pool_backward_sums,
  norm_pool_backward_apply,
  activate,
  activate_backward,
  column_sums,
  add,
  max_pool,
  max_pool_backward,
  average_pool,
  average_pool_backward,
  reorder,
  dropout,
  cross_entropy,
  copy_tensors_in,
  copy_tensors_home,
  state_in,
  state_out,
  cast,
  squared_norm_parts,
  squared_norms,
  checksum_parts,
  norm_total,
  update_scalars,
  lamb_moments,
  trust_ratios,
  muon_directions,
  normalize_ranges,
  blend,
  update,
  average,
  count  // how many there are
};
const char* kernel_name(Kernel kernel);

// Pixels u8 [samples, height x width, channels] to T [samples, height x width, padded]: pixel x scale[c] + shift[c];
// padding 0.
struct ImageInputArguments {
  const std::uint8_t* pixels;
  void* output;
  std::int64_t pixel_count;  // samples x height x width
  int channels, padded;      // at most 4 channels
  float scale[4], shift[4];
};
// Symbols u8 [samples, length] to T [length, samples, padded], one-hot.
struct OneHotArguments {
  const std::uint8_t* symbols;
  void* output;
  std::int64_t samples, length, padded;
};

// Per group and block: sum and sum of squares of x, partial[group][block][2][channels]. Fixed order: same bits each
// time.
struct NormSumsArguments {
  const void* x;
  float* partial;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
};
// From those (blocks = 1: a convolution's epilogue made them): mean, 1 / sqrt(variance + epsilon), and the affine form
// scale = gamma x inverse, bias = beta - mean x scale, [groups][channels] each. Adds statistic_scale x (mean, unbiased
// variance), summed over the groups, to the statistics' places of the gradient vector (accumulate) or sets them. With
// mean_squares: the mean square in place of the variance, and a scale of 1.
struct NormFinalizeArguments {
  const float* partial;
  const float *gamma, *beta;
  float *mean, *inverse, *scale, *bias;
  void* scale_as_type;  // the same two in T for a convolution's prologue, or null
  void* bias_as_type;
  float *mean_statistic, *variance_statistic;
  const StepState* state;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
  float epsilon;
  bool accumulate;
  bool mean_squares = false;
};
// The affine form from running statistics.
struct NormInferenceArguments {
  const float *gamma, *beta, *running_mean, *running_var;
  float *scale, *bias;
  int channels;
  float epsilon;
};
// y = scale x + bias [+ other, or other_scale other + other_bias] [, ReLU]; a bit per element that passed the ReLU.
struct NormApplyArguments {
  const void *x, *other;                                 // other null: none
  const float *scale, *bias, *other_scale, *other_bias;  // [groups][channels]; other_scale null: other as it is
  void* y;
  std::uint8_t* mask;  // [rows, channels / 8], bit c % 8 of byte c / 8, or null
  std::int64_t rows_per_group;
  int groups, channels;
  bool relu;
};
// dr = dy where the mask says so (mask null: everywhere). Per group and block: sum dr and sum dr x (and sum dr other,
// when other is given, for a norm on the shortcut), partial[group][block][2 or 3][channels].
struct NormBackwardSumsArguments {
  const void *dy, *x, *other;
  const std::uint8_t* mask;
  float* partial;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
};
// Ioffe and Szegedy 2015: with sums S = sum dr, P = sum dr x, dx = A dr + B x + C,
//   A = gamma inverse, B = -A inverse^2 (P - mean S) / rows, C = -A S / rows - B mean.
// `which`: 1: P is the second of `sums_per_block` sums; 2: the third. d gamma = sum over groups of inverse (P - mean
// S), d beta = sum S: set, or added (accumulate).
struct NormBackwardFinalizeArguments {
  const float* partial;
  const float *gamma, *mean, *inverse;
  float *a, *b, *c;  // [groups][channels]
  float *gamma_gradient, *beta_gradient;
  std::int64_t rows_per_group;
  int groups, channels, blocks, sums_per_block, which;
  bool accumulate;
};
// dx = a dr + b x + c; dr itself (the shortcut's gradient) when dr_output is given; d other the same way when it is
// given.
struct NormBackwardApplyArguments {
  const void *dy, *x, *other;
  const std::uint8_t* mask;
  const float *a, *b, *c, *other_a, *other_b, *other_c;
  void *dx, *dr_output, *d_other;
  std::int64_t rows_per_group;
  int groups, channels;
};

// Windows of pooling over [height, width].
struct PoolWindow {
  int height, width, out_height, out_width, kernel, stride, padding;
};
constexpr std::uint8_t no_gradient = 255;  // in `places`: the winner did not pass the ReLU
constexpr int widest_joined_window = 15;   // so that no place is 255
// y = max pooling of relu(scale x + bias), which is not stored itself. `places` as PoolArguments', or no_gradient; the
// window is at most 15 wide. Groups are samples_per_group neighbouring samples.
struct NormPoolArguments {
  const void* x;
  const float *scale, *bias;  // [groups][channels]
  void* y;                    // [samples, out_height, out_width, channels]
  std::uint8_t* places;       // the same; null in inference
  std::int64_t samples, samples_per_group;
  int channels;
  PoolWindow window;
};
// NormBackwardSums with dr = what the windows that an element has won send to it; dy and `places` are of the pooled
// map.
struct NormPoolBackwardSumsArguments {
  const void *dy, *x;
  const std::uint8_t* places;
  float* partial;  // [group][block][2][channels]
  std::int64_t rows_per_group;
  int groups, channels, blocks;
  PoolWindow window;
};
// dx = a dr + b x + c with the same dr.
struct NormPoolBackwardApplyArguments {
  const void *dy, *x;
  const std::uint8_t* places;
  const float *a, *b, *c;  // [groups][channels]
  void* dx;
  std::int64_t rows_per_group;
  int groups, channels;
  PoolWindow window;
};

// y = x + bias[column] (bias null: none) [, ReLU], with the bit mask as above. In place allowed.
struct ActivateArguments {
  const void* x;
  const float* bias;
  void* y;
  std::uint8_t* mask;
  std::int64_t rows;
  int channels;
  bool relu;
};
// dx = dy where mask. In place allowed.
struct ActivateBackwardArguments {
  const void* dy;
  const std::uint8_t* mask;
  void* dx;
  std::int64_t rows;
  int channels;
};
// sums[column] (+)= sum over rows of x; one block per group of columns, fixed order.
struct ColumnSumsArguments {
  const void* x;
  float* sums;
  std::int64_t rows;
  int columns, stride;  // elements from row to row
  bool accumulate;
};
struct AddArguments {  // y = a + b; in place allowed
  const void *a, *b;
  void* y;
  std::int64_t count;
};

// Ties go to the first in reading order, as PyTorch's. `places`: kernel x kernel position of the winner.
struct PoolArguments {
  const void* x;         // backward: dy
  void* y;               // backward: dx
  std::uint8_t* places;  // [samples, out_height, out_width, channels]; null in inference and for averages
  std::int64_t samples;
  int height, width, out_height, out_width, channels, kernel, stride, padding;  // averages: over all height x width
};

// [samples, spatial, channels] to [samples, channels x spatial] (PyTorch's flatten), or back (inverse).
struct ReorderArguments {
  const void* from;
  void* to;
  std::int64_t samples;
  int spatial, channels;
  bool inverse;
};
// y = x / (1 - p) where the unit is kept, else 0; keyed as nn/lstm_cell.h says. Rows [time][sample] when time_major.
struct DropoutArguments {
  const void* x;
  void* y;
  const StepState* state;
  std::int64_t samples, length, units, layer;
  double probability;
};

// Logits of [length][samples] rows (time-major; length 1: images) fp32 [rows, stride]; targets i32 [samples, length],
// negative: not counted. Adds to `sums`; gradient (null in inference): gradient_scale x (softmax - target), T [rows,
// stride], padding 0. One block per row range, partial sums in double, fixed order: partial[blocks].
struct CrossEntropyArguments {
  const float* logits;
  const std::int32_t* targets;
  void* gradient;
  PassSums* partial;
  PassSums* sums;      // the last block to finish adds the partials up, in order
  unsigned* finished;  // blocks that are done, 0 between launches
  const StepState* state;
  std::int64_t samples, length;
  int classes, stride, blocks;
  float label_smoothing;
  bool top5;
};

// One tensor between the flat fp32 vector (canonical [outer][inner][taps]) and a program's own copy
// ([outer][taps][padded inner], T or fp32). taps = 1, padded = inner: a plain copy with conversion.
struct TensorPlace {
  std::int64_t flat_offset = 0, own_offset = 0;  // elements from the two bases
  std::int64_t outer = 0;
  int inner = 0, taps = 1, padded = 0;
  std::int64_t first_block = 0;  // of this tensor in the launch
};
struct CopyTensorsArguments {
  float* flat;
  void* own;
  const TensorPlace* places;  // in device memory
  int count;
  bool accumulate;  // home: add to the flat vector
  bool own_is_fp32;
};

// Carried hidden state: host order [samples, layers, 2, hidden] fp32 to and from h, c [layers, samples, hidden] T.
struct StateArguments {
  float* packed;
  void *h, *c;
  std::int64_t samples, layers, hidden;
};

// From one type to another: gradients to and from their 16-bit bucket. `scale` is applied on the way.
struct CastArguments {
  const void* from;
  void* to;
  std::int64_t count;
  Type from_type, to_type;
  float scale;
};

// A range of a flat vector whose squared norm is wanted.
struct NormRange {
  std::int64_t begin = 0, count = 0;  // elements
  std::int64_t first_block = 0;       // of this range in the launch
};
// Sums of squares in double: of each block's chunk, partial[blocks] ...
struct SquaredNormPartsArguments {
  const float* values;
  const NormRange* ranges;  // [count], in device memory
  double* partial;
  int count;
  std::int64_t blocks;
  float* before = nullptr;  // not null: the squares of values - before; then before = values
  bool first = false;       // before counts as zeros
};
// ... and of each range, norms[count].
struct SquaredNormsArguments {
  const double* partial;
  const NormRange* ranges;  // [count], in device memory
  double* norms;
  int count;
  std::int64_t blocks;
  bool add = false;  // to what norms holds
};
// Sums of checksum_term() over the 64-bit words of each block's chunk, partial[blocks].
struct ChecksumPartsArguments {
  const std::uint64_t* words;
  const NormRange* ranges;  // [count], in words, in device memory
  std::uint64_t* partial;
  int count;
  std::int64_t blocks;
};
// total = norms[0] + ... (first) or total + these; then, where `to` is not null, to[0] = total.
struct NormTotalArguments {
  const double* norms;  // [count]
  double* total;
  int count;  // 0: the total is only stored
  bool first;
  float* to = nullptr;
};
// What an update is told on the device. Overflow (a norm that is not finite) skips the update.
struct UpdateScalars {
  double squared_norm = 0;   // of the gradient, loss scale removed
  float gradient_scale = 1;  // 1 / loss scale, and clipping
  std::int32_t applied = 0;  // 0: skipped
  double gain = 1;           // AdaScale's
  AdaScaleAverages adascale = {};
  float rate_factor = 1;  // the gain
};
struct UpdateScalarsArguments {
  const double* norms;  // [count], of the gradient's ranges
  UpdateScalars* scalars;
  int count;
  float unscale;     // 1 / loss scale
  double clip_norm;  // 0: off
  AdaScaleStep adascale = {};
  const float* small_norms = nullptr;  // of AdaScaleStep; null: AdaScale is off
};
// What differs between the ranges of an update.
struct TrustRange {
  float weight_decay = 0;
  std::int32_t has_trust_ratio = 0;
  std::int64_t state_shift = 0;  // from its elements in the flat vector to those of its state
};
// The first pass of lamb: moves the moments, and sums the squares of the directions of each block's chunk in double,
// partial[blocks]. Nothing where the update is skipped.
struct LambMomentsArguments {
  const UpdateRule* rule;  // in device memory, as what follows
  const UpdateScalars* scalars;
  const NormRange* ranges;  // [count]
  const TrustRange* trust;  // [count]
  const float *weights, *gradients;
  float *m, *v;
  double* partial;
  int count;
  std::int64_t blocks;
};
// trust_ratio() of each range, ratios[count]; 1 where it has none.
struct TrustRatiosArguments {
  const UpdateRule* rule;
  const UpdateScalars* scalars;
  const TrustRange* trust;        // [count], in device memory
  const double *weights, *other;  // squared norms [count], see trust_ratio()
  float* ratios;
  int count;
};
// muon_direction() of every element of Muon's matrices. Nothing where the update is skipped.
struct MuonDirectionsArguments {
  const UpdateRule* rule;  // in device memory, as what follows
  const UpdateScalars* scalars;
  const NormRange* ranges;     // [count], of the flat vectors
  const std::int64_t* places;  // [count], where each begins in `directions`
  const float* gradients;
  float *momentum, *directions;
  int count;
  std::int64_t blocks;
};
// Every range divided by its norm, or by epsilon where that is larger.
struct NormalizeRangesArguments {
  float* values;
  const NormRange* ranges;  // [count], in device memory
  const double* norms;      // squared
  int count;
  std::int64_t blocks;
  float epsilon;
};
struct BlendArguments {  // y = alpha x + beta y
  const float* x;
  float* y;
  std::int64_t count;
  float alpha, beta;
};
// A tensor of the flat vectors, or a piece of them that nobody has a copy of (own null).
struct UpdatePlace {
  TensorPlace tensor;  // own_offset counts from `own`
  void* own = nullptr;
  float weight_decay = 0;
  bool own_is_fp32 = true;
  int range = 0;                     // of the update's ranges
  float matrix_factor = 0;           // of a matrix of Muon's; 0: it is none
  std::int64_t direction_shift = 0;  // from its elements in the flat vector to those of its direction
  std::int64_t state_shift = 0;      // the same to those of its state, where a rank keeps parts of it
};
// The optimizer's step, and a program's own copies of the new weights.
struct UpdateArguments {
  const UpdateRule* rule;  // in device memory; weight_decay, gradient_scale and trust ratios come from elsewhere
  const UpdateScalars* scalars;
  const UpdatePlace* places;  // in device memory
  int count;
  float* weights;
  const float* gradients;
  float* state[2];                      // the second null: the optimizer has none
  const float* trust_ratios = nullptr;  // one per range, in device memory; null: none
  const float* directions = nullptr;    // of Muon's matrices
};
struct AverageArguments {
  float* weights;
  const float* means;
  const UpdateScalars* scalars;
  std::int64_t count;
  float momentum;
};

struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1, block = 1;
  unsigned shared_bytes = 0;
  // Not 0: blocks in x walk over the rows, any number up to this does the work with the same bits, and the device takes
  // one that fits it (occupancy.h).
  unsigned most_x = 0;
};

// A kernel with its arguments by value: plain bytes, so that a device can record and compare them.
struct KernelLaunch {
  Kernel kernel = Kernel::count;
  Type type = Type::fp32;
  LaunchShape shape;
  alignas(16) std::array<std::byte, 256> arguments{};
  std::size_t argument_bytes = 0;
};

// Each makes the launch of one kernel: grid, block and shared memory from the sizes. Errors name the kernel and the
// size.
KernelLaunch launch_of(Type type, const ImageInputArguments& a);
KernelLaunch launch_of(Type type, const OneHotArguments& a);
KernelLaunch launch_of(Type type, const NormSumsArguments& a);
KernelLaunch launch_of(Type type, const NormFinalizeArguments& a);
KernelLaunch launch_of(const NormInferenceArguments& a);
KernelLaunch launch_of(Type type, const NormApplyArguments& a);
KernelLaunch launch_of(Type type, const NormBackwardSumsArguments& a);
KernelLaunch launch_of(const NormBackwardFinalizeArguments& a);
KernelLaunch launch_of(Type type, const NormBackwardApplyArguments& a);
KernelLaunch launch_of(Type type, const NormPoolArguments& a);
KernelLaunch launch_of(Type type, const NormPoolBackwardSumsArguments& a);
KernelLaunch launch_of(Type type, const NormPoolBackwardApplyArguments& a);
KernelLaunch launch_of(Type type, const ActivateArguments& a);
KernelLaunch launch_of(Type type, const ActivateBackwardArguments& a);
KernelLaunch launch_of(Type type, const ColumnSumsArguments& a);
KernelLaunch launch_of(Type type, const AddArguments& a);
KernelLaunch launch_of(Type type, Kernel pool, const PoolArguments& a);  // one of the four pools
KernelLaunch launch_of(Type type, const ReorderArguments& a);
KernelLaunch launch_of(Type type, const DropoutArguments& a);
KernelLaunch launch_of(Type type, const CrossEntropyArguments& a);
KernelLaunch launch_of(Type type, Kernel direction, const CopyTensorsArguments& a, std::int64_t blocks);
KernelLaunch launch_of(Type type, Kernel direction, const StateArguments& a);
KernelLaunch launch_of(const CastArguments& a);
KernelLaunch launch_of(const SquaredNormPartsArguments& a);
KernelLaunch launch_of(const SquaredNormsArguments& a);
KernelLaunch launch_of(const ChecksumPartsArguments& a);
KernelLaunch launch_of(const NormTotalArguments& a);
KernelLaunch launch_of(const UpdateScalarsArguments& a);
KernelLaunch launch_of(const LambMomentsArguments& a);
KernelLaunch launch_of(const TrustRatiosArguments& a);
KernelLaunch launch_of(const MuonDirectionsArguments& a);
KernelLaunch launch_of(const NormalizeRangesArguments& a);
KernelLaunch launch_of(const BlendArguments& a);
KernelLaunch launch_of(Type type, const UpdateArguments& a, std::int64_t blocks);
KernelLaunch launch_of(const AverageArguments& a);

// What the size of a grid follows from.
struct GpuSize {
  int compute_capability = 90;  // 90 for 9.0
  int multiprocessors = 132;
};
// Blocks (and scratch) that the reducing kernels want: one wave of the GPU where there is work for it. The same for the
// same sizes and kind of GPU, so results keep their bits there; another kind of GPU may add up in another order.
int norm_blocks(const GpuSize& gpu, Kernel sums, Type type, std::int64_t rows_per_group, int groups, int channels);
int loss_blocks(const GpuSize& gpu, Type type, std::int64_t rows);
// Fills first_block of each and returns how many blocks a copy (an update) of all of them takes.
std::int64_t place_blocks(TensorPlace* places, int count);
std::int64_t place_blocks(UpdatePlace* places, int count);
// The same for norms.
std::int64_t range_blocks(std::span<NormRange> ranges);

}  // namespace ringtrain::cuda
