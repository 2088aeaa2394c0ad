// This folder contains the CUDA kernels of the program. This header lists the kernels and the arguments of each;
// launch_of() makes a launch from arguments. Begin here, then read one kernel in its .cuh file: norm.cuh, pool.cuh,
// update.cuh and so on. table.cu compiles all of them with nvcc, once for each type. Tests compile the same files as
// C++ and run them on the CPU.
//
// Activations are NHWC: [rows, channels] with rows = samples x height x width. A group of batch norm is a range of
// consecutive samples. T is the type of the activations. A kernel reads numbers that change from step to step from
// StepState in device memory. So a captured graph stays valid.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "backend/cuda/types.h"
#include "nn/update_rule.h"

// Lists every kernel once as X(name, typed, arguments). `typed` is 0 for a kernel without a type of its own, which is
// launched as fp32. The enumeration, the names, the table of addresses and the emulation are made from this list.
#define RINGTRAIN_KERNEL_LIST(X)                                 \
  X(image_input, 1, ImageInputArguments)                         \
  X(one_hot, 1, OneHotArguments)                                 \
  X(norm_sums, 1, NormSumsArguments)                             \
  X(norm_join_channels, 0, NormJoinChannelsArguments)            \
  X(norm_finalize, 1, NormFinalizeArguments)                     \
  X(norm_inference, 0, NormInferenceArguments)                   \
  X(norm_apply, 1, NormApplyArguments)                           \
  X(norm_backward_sums, 1, NormBackwardSumsArguments)            \
  X(norm_backward_finalize, 0, NormBackwardFinalizeArguments)    \
  X(norm_backward_apply, 1, NormBackwardApplyArguments)          \
  X(norm_pool, 1, NormPoolArguments)                             \
  X(norm_pool_backward_sums, 1, NormPoolBackwardSumsArguments)   \
  X(norm_pool_backward_apply, 1, NormPoolBackwardApplyArguments) \
  X(activate, 1, ActivateArguments)                              \
  X(activate_backward, 1, ActivateBackwardArguments)             \
  X(column_sum_parts, 1, ColumnSumPartsArguments)                \
  X(column_sums, 0, ColumnSumsArguments)                         \
  X(add, 1, AddArguments)                                        \
  X(max_pool, 1, PoolArguments)                                  \
  X(max_pool_backward, 1, PoolArguments)                         \
  X(average_pool, 1, PoolArguments)                              \
  X(average_pool_backward, 1, PoolArguments)                     \
  X(reorder, 1, ReorderArguments)                                \
  X(dropout, 1, DropoutArguments)                                \
  X(cross_entropy, 1, CrossEntropyArguments)                     \
  X(copy_tensors_in, 1, CopyTensorsArguments)                    \
  X(copy_tensors_home, 1, CopyTensorsArguments)                  \
  X(state_in, 1, StateArguments)                                 \
  X(state_out, 1, StateArguments)                                \
  X(cast, 0, CastArguments)                                      \
  X(squared_norm_parts, 0, SquaredNormPartsArguments)            \
  X(squared_norms, 0, SquaredNormsArguments)                     \
  X(checksum_parts, 0, ChecksumPartsArguments)                   \
  X(norm_total, 0, NormTotalArguments)                           \
  X(update_scalars, 0, UpdateScalarsArguments)                   \
  X(lamb_moments, 0, LambMomentsArguments)                       \
  X(trust_ratios, 0, TrustRatiosArguments)                       \
  X(muon_directions, 0, MuonDirectionsArguments)                 \
  X(normalize_ranges, 0, NormalizeRangesArguments)               \
  X(blend, 0, BlendArguments)                                    \
  X(update, 1, UpdateArguments)                                  \
  X(average, 0, AverageArguments)

namespace ringtrain::cuda {

// Holds the numbers that change from pass to pass; see PassContext in backend/backend.h.
struct StepState {
  float gradient_scale = 0;   // fp16's loss scale / targets of the global batch
  float statistic_scale = 0;  // 1 / (virtual workers of the global batch x ranks that share each)
  std::uint64_t dropout_key = 0;
  std::int64_t step = 0, first_row = 0;
};

// Holds sums over the passes since the host last fetched them.
struct PassSums {
  double loss = 0;
  std::int64_t correct = 0, correct5 = 0, targets = 0;
};

#define RINGTRAIN_KERNEL_ENUMERATOR(name, ...) name,
enum class Kernel { RINGTRAIN_KERNEL_LIST(RINGTRAIN_KERNEL_ENUMERATOR) count };  // count: the number of kernels
#undef RINGTRAIN_KERNEL_ENUMERATOR
const char* kernel_name(Kernel kernel);

// Writes the windows of a convolution as the channels of one pixel each (im2col), because tensor cores compute little
// of a convolution with three or four channels. The channels are [row][column][channel] of a window with `kernel` rows
// and columns. The convolution then has a kernel of one pixel and the stride 1. A kernel of 0 leaves pixels as they
// are.
struct ImageWindows {
  int kernel = 0, stride = 1, padding = 0;
  int height = 0, width = 0;          // of the image
  int out_height = 0, out_width = 0;  // windows
};
constexpr int widest_image_window = 512;  // channels
// Converts u8 pixels [samples, height x width, channels] to T [samples, height x width, padded]. Each value is pixel x
// scale[c] + shift[c]; padding is 0. With windows, `padded` is a multiple of 8 and at most widest_image_window.
struct ImageInputArguments {
  const std::uint8_t* pixels;
  void* output;
  std::int64_t pixel_count;  // samples x height x width of the result
  int channels, padded;      // at most 4 channels in `pixels`
  float scale[4], shift[4];
  ImageWindows windows;
};
// Converts u8 symbols [samples, length] to one-hot T [length, samples, padded].
struct OneHotArguments {
  const std::uint8_t* symbols;
  void* output;
  std::int64_t samples, length, padded;
};

// Computes the sum and the sum of squares of x: partial[group][block][2][channels]. The order of the additions is
// fixed, so every run has the same bits.
struct NormSumsArguments {
  const void* x;
  float* partial;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
};
// Takes sums for each channel and group, and joins those of `together` neighbouring channels, for group norm. With the
// first of the sums and sum number `which`, joined[group][2][channels] is the mean of both over the channels that are
// together, which all get it. With `gamma`, the channels' sums are first multiplied by it.
struct NormJoinChannelsArguments {
  const float *partial, *gamma;  // partial: [group][block][sums_per_block][channels]; gamma may be null
  float* joined;
  int groups, channels, blocks, sums_per_block, which, together;
};
// Takes the sums of norm_sums. Computes the mean, the inverse 1 / sqrt(variance + epsilon), and the affine form scale =
// gamma x inverse, bias = beta - mean x scale. Each is [groups][channels]. The epilogue of a convolution
// may have made the sums instead; a rank then has one block for each group.
//
// The kernel also sums statistic_scale x (mean, unbiased variance) over the groups. It adds that sum to mean_statistic
// and variance_statistic (accumulate) or sets them. With mean_squares it takes the mean square in place of the variance
// and a scale of 1. Both pointers may be null.
struct NormFinalizeArguments {
  const float* partial;
  const float *gamma, *beta;
  float *mean, *inverse, *scale, *bias;
  void* scale_as_type;  // scale in T for a convolution's prologue, or null; bias_as_type likewise
  void* bias_as_type;
  float *mean_statistic, *variance_statistic;
  const StepState* state;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
  float epsilon;
  bool accumulate;
  bool mean_squares = false;
};
// Computes the affine form from running statistics.
struct NormInferenceArguments {
  const float *gamma, *beta, *running_mean, *running_var;
  float *scale, *bias;
  int channels;
  float epsilon;
};
// Computes y = scale x + bias [+ other, or + other_scale other + other_bias] [, ReLU]. `mask` gets a bit for each
// element that passed the ReLU.
struct NormApplyArguments {
  const void *x, *other;                                 // other may be null
  const float *scale, *bias, *other_scale, *other_bias;  // [groups][channels]; the last two may be null
  void* y;
  std::uint8_t* mask;  // [rows, channels / 8], bit c % 8 of byte c / 8, or null
  std::int64_t rows_per_group;
  int groups, channels;
  bool relu;
};
// dr is dy where the mask has a bit, else 0; without a mask dr is dy everywhere. The kernel computes sum(dr), sum(dr x)
// and, when `other` is given (for a norm on the shortcut), sum(dr other): partial[group][block][2 or 3][channels].
struct NormBackwardSumsArguments {
  const void *dy, *x, *other;
  const std::uint8_t* mask;
  float* partial;
  std::int64_t rows_per_group;
  int groups, channels, blocks;
};
// Computes the coefficients of dx = A dr + B x + C (Ioffe and Szegedy 2015). With the sums S = sum(dr) and P =
// sum(dr x) they are
//   A = gamma inverse, B = -A inverse^2 (P - mean S) / rows, C = -A S / rows - B mean.
// `which` is the index of P among the `sums_per_block` sums: 1 or 2. The kernel also computes d gamma, the sum over
// groups of inverse (P - mean S), and d beta, the sum over groups of S. It sets them or adds to them (accumulate). If S
// and P already contain gamma (with_gamma), B and C have `inverse` in place of A, and d gamma and d beta have no
// meaning.
struct NormBackwardFinalizeArguments {
  const float* partial;
  const float *gamma, *mean, *inverse;
  float *a, *b, *c;  // [groups][channels]
  float *gamma_gradient, *beta_gradient;
  std::int64_t rows_per_group;
  int groups, channels, blocks, sums_per_block, which;
  bool accumulate;
  bool with_gamma = false;
};
// Computes dx = a dr + b x + c. When dr_output is given, the kernel also writes dr, the shortcut's gradient. When
// `other` is given, it computes d_other in the same way as dx.
struct NormBackwardApplyArguments {
  const void *dy, *x, *other;
  const std::uint8_t* mask;
  const float *a, *b, *c, *other_a, *other_b, *other_c;
  void *dx, *dr_output, *d_other;
  std::int64_t rows_per_group;
  int groups, channels;
};

// Describes pooling windows over [height, width].
struct PoolWindow {
  int height, width, out_height, out_width, kernel, stride, padding;
};
// Returns whether the windows are those of ResNets: 3 x 3 with stride 2 and padding 1, on a map of even height and
// width. The kernels then know where all windows of a pixel are, so all loads of a thread are in flight at once.
RINGTRAIN_HD bool is_usual(const PoolWindow& p) {
  return p.kernel == 3 && p.stride == 2 && p.padding == 1 && p.height % 2 == 0 && p.width % 2 == 0;
}
constexpr std::uint8_t no_gradient = 255;  // in `places`: the maximum did not pass the ReLU
constexpr int widest_joined_window = 15;   // 15 x 15 places, so that no place is 255
// Computes y = max pooling of relu(scale x + bias). The ReLU's output is not stored. `places` are as in PoolArguments,
// or no_gradient. The window is at most 15 wide. A group is samples_per_group consecutive samples.
struct NormPoolArguments {
  const void* x;
  const float *scale, *bias;  // [groups][channels]
  void* y;                    // [samples, out_height, out_width, channels]
  std::uint8_t* places;       // the same shape as y; null in inference
  std::int64_t samples, samples_per_group;
  int channels;
  PoolWindow window;
};
// Computes the sums of NormBackwardSumsArguments. Here dr of an element is the sum of dy over all windows whose
// maximum is this element. dy and `places` have the shape of the pooled map.
struct NormPoolBackwardSumsArguments {
  const void *dy, *x;
  const std::uint8_t* places;
  float* partial;  // [group][block][2][channels]
  std::int64_t rows_per_group;
  int groups, channels, blocks;
  PoolWindow window;
};
// Computes dx = a dr + b x + c with the same dr.
struct NormPoolBackwardApplyArguments {
  const void *dy, *x;
  const std::uint8_t* places;
  const float *a, *b, *c;  // [groups][channels]
  void* dx;
  std::int64_t rows_per_group;
  int groups, channels;
  PoolWindow window;
};

// Computes y = x + bias[column] [, ReLU]. `mask` is as in NormApplyArguments. bias may be null. y may be x.
struct ActivateArguments {
  const void* x;
  const float* bias;
  void* y;
  std::uint8_t* mask;
  std::int64_t rows;
  int channels;
  bool relu;
};
// Computes dx = dy where the mask has a bit, else 0. dx may be dy.
struct ActivateBackwardArguments {
  const void* dy;
  const std::uint8_t* mask;
  void* dx;
  std::int64_t rows;
  int channels;
};
// Computes for each block the sum of every column over the rows of the block: partial[blocks][columns].
struct ColumnSumPartsArguments {
  const void* x;  // [rows, stride]; only the first `columns` elements of a row count
  float* partial;
  std::int64_t rows;
  int columns, stride, blocks;
};
// Adds the blocks' partial sums up in a fixed order. Sets sums[column] to the result, or adds the result to it
// (accumulate).
struct ColumnSumsArguments {
  const float* partial;
  float* sums;
  int columns, blocks;
  bool accumulate;
};
struct AddArguments {  // y = a + b; y may be a or b
  const void *a, *b;
  void* y;
  std::int64_t count;
};

// Computes max pooling or global average pooling, or the backward pass of one. Among equal elements the first in
// reading order is the maximum, as in PyTorch. `places` holds the position of the maximum in the kernel x kernel
// window.
struct PoolArguments {
  const void* x;         // in the backward pass dy
  void* y;               // in the backward pass dx
  std::uint8_t* places;  // [samples, out_height, out_width, channels]; null in inference and for averages
  std::int64_t samples;
  int height, width, out_height, out_width, channels, kernel, stride, padding;  // an average is over all height x width
};

// Reorders [samples, spatial, channels] to [samples, channels x spatial] (PyTorch's flatten), or back (inverse).
struct ReorderArguments {
  const void* from;
  void* to;
  std::int64_t samples;
  int spatial, channels;
  bool inverse;
};
// Computes y = x / (1 - p) where the unit is kept, else 0. nn/math.h defines which units are kept. Rows are
// [length][samples].
struct DropoutArguments {
  const void* x;
  void* y;
  const StepState* state;
  std::int64_t samples, length, units, layer;
  double probability;
};

// Computes the softmax cross-entropy. Logits are fp32 [rows, stride]; the rows are [length][samples], and length is 1
// for images. Targets are i32 [samples, length]; a negative target does not count. The kernel adds the results to
// `sums`. If `gradient` is not null, the kernel sets it to gradient_scale x (softmax - target) in T [rows, stride], and
// to 0 in the padding.
// Each block takes a range of rows and writes partial sums to partial[blocks]. All sums have a fixed order, and the
// loss is summed in double precision.
struct CrossEntropyArguments {
  const float* logits;
  const std::int32_t* targets;
  void* gradient;
  PassSums* partial;
  PassSums* sums;      // the last block that finishes adds the partial sums up, in order
  unsigned* finished;  // number of finished blocks; 0 between launches
  const StepState* state;
  std::int64_t samples, length;
  int classes, stride, blocks;
  float label_smoothing;
  bool top5;
};

// Holds the places of one tensor in the flat fp32 vector and in a program's own copy. The flat vector has the canonical
// order [outer][inner][taps]. For a convolution, outer is the output channel, inner the input channel, and a tap a
// position in the kernel. The copy is [outer][taps][padded inner] in T or fp32. With taps = 1 and padded = inner the
// copy differs only in its type. With `windows`, the input is ImageWindows and the copy is [outer][padded (tap,
// inner)].
struct TensorPlace {
  std::int64_t flat_offset = 0, own_offset = 0;  // elements from the beginning of each
  std::int64_t outer = 0;
  int inner = 0, taps = 1, padded = 0;
  bool windows = false;
  std::int64_t first_block = 0;  // first block of this tensor in the launch
};
// copy_tensors_in copies from the flat vector to the program's own copies. copy_tensors_home copies in the
// other direction.
struct CopyTensorsArguments {
  float* flat;
  void* own;
  const TensorPlace* places;  // in device memory
  int count;
  bool accumulate;  // copy_tensors_home: adds to the flat vector
  bool own_is_fp32;
};

// Copies carried hidden state. `packed` is in the host's order [samples, layers, 2, hidden] in fp32. h and c are
// [layers, samples, hidden] in T. The kernels state_in and state_out copy in the two directions.
struct StateArguments {
  float* packed;
  void *h, *c;
  std::int64_t samples, layers, hidden;
};

// Converts values to another type and multiplies them by `scale`. Gradients go to a 16-bit bucket and back in this way.
struct CastArguments {
  const void* from;
  void* to;
  std::int64_t count;
  Type from_type, to_type;
  float scale;
};

// Describes a range of a flat vector whose squared norm is computed.
struct NormRange {
  std::int64_t begin = 0, count = 0;  // elements
  std::int64_t first_block = 0;       // first block of this range in the launch
};
// Computes for each block the sum of squares of its chunk, in double precision: partial[blocks].
struct SquaredNormPartsArguments {
  const float* values;
  const NormRange* ranges;  // [count], in device memory
  double* partial;
  int count;
  std::int64_t blocks;
  float* before = nullptr;  // not null: squares values - before, then sets before = values
  bool first = false;       // takes zeros in place of before
};
// Adds the blocks' partial sums up for each range: norms[count].
struct SquaredNormsArguments {
  const double* partial;
  const NormRange* ranges;  // [count], in device memory
  double* norms;
  int count;
  std::int64_t blocks;
  bool add = false;  // adds to the present values of norms
};
// Computes for each block the sum of checksum_term() over the 64-bit words of its chunk: partial[blocks].
struct ChecksumPartsArguments {
  const std::uint64_t* words;
  const NormRange* ranges;  // [count], in words, in device memory
  std::uint64_t* partial;
  int count;
  std::int64_t blocks;
};
// Sets total to the sum of `norms` (first) or adds the sum to total. Then sets to[0] = total, unless `to` is null.
struct NormTotalArguments {
  const double* norms;  // [count]
  double* total;
  int count;  // 0: total only goes to `to`
  bool first;
  float* to = nullptr;
};
// Holds the results of update_scalars, which the other kernels of an update read. When a squared norm is not finite
// (overflow or NaN), the update is skipped.
struct UpdateScalars {
  double squared_norm = 0;   // the gradient's, without the loss scale
  float gradient_scale = 1;  // 1 / loss scale, times the clipping
  std::int32_t applied = 0;  // 0: the update is skipped
  double gain = 1;           // AdaScale's gain
  AdaScaleAverages adascale = {};
  float rate_factor = 1;  // the gain, which multiplies the learning rate
};
struct UpdateScalarsArguments {
  const double* norms;  // [count], the squared norms of the gradient's ranges
  UpdateScalars* scalars;
  int count;
  float unscale;     // 1 / loss scale
  double clip_norm;  // 0: off
  AdaScaleStep adascale = {};
  const float* small_norms = nullptr;  // see AdaScaleStep; null: AdaScale is off
};
// Holds the numbers that differ between the ranges of an update.
struct TrustRange {
  float weight_decay = 0;
  std::int32_t has_trust_ratio = 0;
  std::int64_t state_shift = 0;  // distance from an element of the flat vector to its element of the state
};
// The first pass of LAMB updates the moments and computes for each block the sum of squares of the directions in its
// chunk, in double precision: partial[blocks]. When the update is skipped, the kernel does nothing.
struct LambMomentsArguments {
  const UpdateRule* rule;  // in device memory, like the next members
  const UpdateScalars* scalars;
  const NormRange* ranges;  // [count]
  const TrustRange* trust;  // [count]
  const float *weights, *gradients;
  float *m, *v;
  double* partial;
  int count;
  std::int64_t blocks;
};
// Computes trust_ratio() of each range: ratios[count]. A range without a trust ratio gets 1.
struct TrustRatiosArguments {
  const UpdateRule* rule;
  const UpdateScalars* scalars;
  const TrustRange* trust;        // [count], in device memory
  const double *weights, *other;  // [count], squared norms; see trust_ratio()
  float* ratios;
  int count;
};
// Computes muon_direction() for every element of Muon's matrices. When the update is skipped, the kernel does nothing.
struct MuonDirectionsArguments {
  const UpdateRule* rule;  // in device memory, like the next members
  const UpdateScalars* scalars;
  const NormRange* ranges;     // [count], in the flat vectors
  const std::int64_t* places;  // [count], the beginning of each in `directions`
  const float* gradients;
  float *momentum, *directions;
  int count;
  std::int64_t blocks;
};
// Divides every range by its norm, or by epsilon when epsilon is larger.
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
// Describes a tensor of the flat vectors, or a piece of them that has no copy. `own` is then null.
struct UpdatePlace {
  TensorPlace tensor;  // own_offset counts from `own`
  void* own = nullptr;
  float weight_decay = 0;
  bool own_is_fp32 = true;
  int range = 0;                     // index among the update's ranges
  float matrix_factor = 0;           // the factor of the rate of a Muon matrix; 0: not a Muon matrix
  std::int64_t direction_shift = 0;  // distance from an element of the flat vector to its element of the direction
  std::int64_t state_shift = 0;      // distance from an element of the flat vector to its element of the state
};
// Runs the optimizer's step. It also writes the new weights to a program's own copies.
struct UpdateArguments {
  const UpdateRule* rule;  // in device memory; weight_decay, gradient_scale and trust ratios have members of their own
  const UpdateScalars* scalars;
  const UpdatePlace* places;  // in device memory
  int count;
  float* weights;
  const float* gradients;
  float* state[2];                      // state[1] is null when the optimizer has one state vector
  const float* trust_ratios = nullptr;  // one per range, in device memory; may be null
  const float* directions = nullptr;    // directions of Muon's matrices
  float* average = nullptr;             // average of the weights, with the places of the state; may be null
};
// Updates running statistics: weights = (1 - momentum) weights + momentum means. When the update is skipped, the kernel
// does nothing.
struct AverageArguments {
  float* weights;
  const float* means;
  const UpdateScalars* scalars;
  std::int64_t count;
  float momentum;
};

struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1, block = 1;
  // When this is not 0, blocks in x loop over the rows. Any number of them up to most_x gives the same bits. The device
  // then chooses a number that fits it (compiled.h).
  unsigned most_x = 0;
};

// A KernelLaunch holds a kernel and its arguments by value. The arguments are plain bytes, so a device can record and
// compare launches.
struct KernelLaunch {
  Kernel kernel = Kernel::count;
  Type type = Type::fp32;
  LaunchShape shape;
  alignas(16) std::array<std::byte, 256> arguments{};
  std::size_t argument_bytes = 0;
};

// Each function makes the launch of one kernel. It computes the grid, the block and the shared memory from the sizes.
// Throws Error that names the kernel and the size when a size is out of range.
KernelLaunch launch_of(Type type, const ImageInputArguments& a);
KernelLaunch launch_of(Type type, const OneHotArguments& a);
KernelLaunch launch_of(Type type, const NormSumsArguments& a);
KernelLaunch launch_of(const NormJoinChannelsArguments& a);
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
KernelLaunch launch_of(Type type, const ColumnSumPartsArguments& a);
KernelLaunch launch_of(const ColumnSumsArguments& a);
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

// Holds the properties of a GPU that decide the size of a grid.
struct GpuSize {
  int compute_capability = 90;  // 90 for 9.0
  int multiprocessors = 132;
};
// Returns the number of places of a map that the backward kernels of norm and pooling walk over: squares of four pixels
// under usual windows in 16 bits, else rows.
std::int64_t norm_pool_places(Type type, const PoolWindow& window, std::int64_t rows);
// These return the number of blocks in x of a reducing kernel, which also decides the size of its scratch memory. When
// there is enough work, the whole grid has about as many blocks as the GPU holds at a time (a wave). The number depends
// only on the sizes and the type of GPU. So results have the same bits on GPUs of one type; another type may add in
// another order.
int norm_blocks(const GpuSize& gpu, Kernel sums, Type type, std::int64_t rows_per_group, int groups, int channels);
int loss_blocks(const GpuSize& gpu, Type type, std::int64_t rows);
// Returns the number of blocks in x of column_sum_parts. It depends on the sizes alone, so all GPUs compute the same
// bits.
int column_sum_blocks(std::int64_t rows, int columns);
// Sets first_block of each place and returns the number of blocks of a copy (or an update) of all places.
std::int64_t place_blocks(TensorPlace* places, int count);
std::int64_t place_blocks(UpdatePlace* places, int count);
// Does the same for the ranges of norms.
std::int64_t range_blocks(std::span<NormRange> ranges);

}  // namespace ringtrain::cuda
