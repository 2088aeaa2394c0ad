#include "tests/emulation/kernel_regions.h"

#include <cstring>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

class Regions {
 public:
  explicit Regions(Type type) : size_(bytes_of(type)) {}
  // The elements have the type of the launch.
  void read(const void* at, std::int64_t count) { add(at, count * size_, false); }
  void write(const void* at, std::int64_t count) { add(at, count * size_, true); }
  // The elements have the type of the pointer.
  template <class T>
  void read_own(const T* at, std::int64_t count) {
    add(at, count * static_cast<std::int64_t>(sizeof(T)), false);
  }
  template <class T>
  void write_own(const T* at, std::int64_t count) {
    add(at, count * static_cast<std::int64_t>(sizeof(T)), true);
  }
  void add(const void* at, std::int64_t bytes, bool write) {
    if (at != nullptr && bytes > 0) result.push_back({at, bytes, write});
  }
  std::int64_t element_bytes() const { return size_; }
  std::vector<Region> result;

 private:
  std::int64_t size_;
};

void list(const ImageInputArguments& a, Regions& r, Kernel) {
  const ImageWindows& w = a.windows;
  const std::int64_t images = w.kernel > 0 ? a.pixel_count / (w.out_height * w.out_width) : 0;
  r.read_own(a.pixels, (w.kernel > 0 ? images * w.height * w.width : a.pixel_count) * a.channels);
  r.write(a.output, a.pixel_count * a.padded);
}
void list(const OneHotArguments& a, Regions& r, Kernel) {
  r.read_own(a.symbols, a.samples * a.length);
  r.write(a.output, a.samples * a.length * a.padded);
}
void list(const NormSumsArguments& a, Regions& r, Kernel) {
  r.read(a.x, a.groups * a.rows_per_group * a.channels);
  r.write_own(a.partial, std::int64_t{2} * a.groups * a.blocks * a.channels);
}
void list(const NormJoinChannelsArguments& a, Regions& r, Kernel) {
  r.read_own(a.partial, std::int64_t{a.groups} * a.blocks * a.sums_per_block * a.channels);
  r.read_own(a.gamma, a.channels);
  r.write_own(a.joined, std::int64_t{2} * a.groups * a.channels);
}
void list(const NormFinalizeArguments& a, Regions& r, Kernel) {
  const std::int64_t each = std::int64_t{a.groups} * a.channels;
  r.read_own(a.partial, 2 * each * a.blocks);
  for (const float* p : {a.gamma, a.beta}) r.read_own(p, a.channels);
  for (float* p : {a.mean, a.inverse, a.scale, a.bias}) r.write_own(p, each);
  for (void* p : {a.scale_as_type, a.bias_as_type}) r.write(p, each);
  for (float* p : {a.mean_statistic, a.variance_statistic}) r.write_own(p, a.channels);
  r.read_own(a.state, 1);
}
void list(const NormInferenceArguments& a, Regions& r, Kernel) {
  for (const float* p : {a.gamma, a.beta, a.running_mean, a.running_var}) r.read_own(p, a.channels);
  for (float* p : {a.scale, a.bias}) r.write_own(p, a.channels);
}
void list(const NormApplyArguments& a, Regions& r, Kernel) {
  const std::int64_t each = std::int64_t{a.groups} * a.channels, all = each * a.rows_per_group;
  for (const void* p : {a.x, a.other}) r.read(p, all);
  for (const float* p : {a.scale, a.bias, a.other_scale, a.other_bias}) r.read_own(p, each);
  r.write(a.y, all);
  r.write_own(a.mask, all / 8);
}
void list(const NormBackwardSumsArguments& a, Regions& r, Kernel) {
  const std::int64_t each = std::int64_t{a.groups} * a.channels, all = each * a.rows_per_group;
  for (const void* p : {a.dy, a.x, a.other}) r.read(p, all);
  r.read_own(a.mask, all / 8);
  r.write_own(a.partial, each * a.blocks * (a.other != nullptr ? 3 : 2));
}
void list(const NormBackwardFinalizeArguments& a, Regions& r, Kernel) {
  const std::int64_t each = std::int64_t{a.groups} * a.channels;
  r.read_own(a.partial, each * a.blocks * a.sums_per_block);
  r.read_own(a.gamma, a.channels);
  for (const float* p : {a.mean, a.inverse}) r.read_own(p, each);
  for (float* p : {a.a, a.b, a.c}) r.write_own(p, each);
  for (float* p : {a.gamma_gradient, a.beta_gradient}) r.write_own(p, a.channels);
}
void list(const NormBackwardApplyArguments& a, Regions& r, Kernel) {
  const std::int64_t each = std::int64_t{a.groups} * a.channels, all = each * a.rows_per_group;
  for (const void* p : {a.dy, a.x, a.other}) r.read(p, all);
  r.read_own(a.mask, all / 8);
  for (const float* p : {a.a, a.b, a.c, a.other_a, a.other_b, a.other_c}) r.read_own(p, each);
  for (void* p : {a.dx, a.dr_output, a.d_other}) r.write(p, all);
}
std::int64_t pooled(const PoolWindow& w, std::int64_t samples, int channels) {
  return samples * w.out_height * w.out_width * channels;
}
std::int64_t samples_of(const PoolWindow& w, std::int64_t rows) {
  return rows / (std::int64_t{w.height} * w.width);
}
void list(const NormPoolArguments& a, Regions& r, Kernel) {
  const std::int64_t each = a.samples / a.samples_per_group * a.channels, out = pooled(a.window, a.samples, a.channels);
  r.read(a.x, a.samples * a.window.height * a.window.width * a.channels);
  for (const float* p : {a.scale, a.bias}) r.read_own(p, each);
  r.write(a.y, out);
  r.write_own(a.places, out);
}
void list(const NormPoolBackwardSumsArguments& a, Regions& r, Kernel) {
  const std::int64_t rows = a.groups * a.rows_per_group;
  const std::int64_t out = pooled(a.window, samples_of(a.window, rows), a.channels);
  r.read(a.dy, out);
  r.read_own(a.places, out);
  r.read(a.x, rows * a.channels);
  r.write_own(a.partial, std::int64_t{2} * a.groups * a.blocks * a.channels);
}
void list(const NormPoolBackwardApplyArguments& a, Regions& r, Kernel) {
  const std::int64_t rows = a.groups * a.rows_per_group;
  const std::int64_t out = pooled(a.window, samples_of(a.window, rows), a.channels);
  r.read(a.dy, out);
  r.read_own(a.places, out);
  r.read(a.x, rows * a.channels);
  for (const float* p : {a.a, a.b, a.c}) r.read_own(p, std::int64_t{a.groups} * a.channels);
  r.write(a.dx, rows * a.channels);
}
void list(const ActivateArguments& a, Regions& r, Kernel) {
  r.read(a.x, a.rows * a.channels);
  r.read_own(a.bias, a.channels);
  r.write(a.y, a.rows * a.channels);
  r.write_own(a.mask, a.rows * a.channels / 8);
}
void list(const ActivateBackwardArguments& a, Regions& r, Kernel) {
  r.read(a.dy, a.rows * a.channels);
  r.read_own(a.mask, a.rows * a.channels / 8);
  r.write(a.dx, a.rows * a.channels);
}
void list(const ColumnSumPartsArguments& a, Regions& r, Kernel) {
  r.read(a.x, a.rows * a.stride);
  r.write_own(a.partial, std::int64_t{a.blocks} * a.columns);
}
void list(const ColumnSumsArguments& a, Regions& r, Kernel) {
  r.read_own(a.partial, std::int64_t{a.blocks} * a.columns);
  if (a.accumulate) r.read_own(a.sums, a.columns);
  r.write_own(a.sums, a.columns);
}
void list(const AddArguments& a, Regions& r, Kernel) {
  for (const void* p : {a.a, a.b}) r.read(p, a.count);
  r.write(a.y, a.count);
}
void list(const PoolArguments& a, Regions& r, Kernel kernel) {
  const bool average = kernel == Kernel::average_pool || kernel == Kernel::average_pool_backward;
  const bool backward = kernel == Kernel::max_pool_backward || kernel == Kernel::average_pool_backward;
  const std::int64_t in = a.samples * a.height * a.width * a.channels;
  const std::int64_t out = a.samples * a.channels * (average ? 1 : a.out_height * a.out_width);
  r.read(a.x, backward ? out : in);
  r.write(a.y, backward ? in : out);
  r.add(a.places, out, !backward);
}
void list(const ReorderArguments& a, Regions& r, Kernel) {
  r.read(a.from, a.samples * a.spatial * a.channels);
  r.write(a.to, a.samples * a.spatial * a.channels);
}
void list(const DropoutArguments& a, Regions& r, Kernel) {
  r.read(a.x, a.samples * a.length * a.units);
  r.write(a.y, a.samples * a.length * a.units);
  r.read_own(a.state, 1);
}
void list(const CrossEntropyArguments& a, Regions& r, Kernel) {
  const std::int64_t rows = a.samples * a.length;
  r.read_own(a.logits, rows * a.stride);
  r.read_own(a.targets, rows);
  r.write(a.gradient, rows * a.stride);
  r.write_own(a.partial, a.blocks);
  r.write_own(a.sums, 1);
  r.write_own(a.finished, 1);
  r.read_own(a.state, 1);
}
void expect_sizes(const TensorPlace& p, int number, int count) {
  if (p.outer <= 0 || p.inner <= 0 || p.taps <= 0 || p.padded < p.inner)
    throw Error(
        cat("tensor ", number, " of ", count, " of a copy has no sizes: were the places written before its launch?"));
}
void list(const CopyTensorsArguments& a, Regions& r, Kernel kernel) {
  const bool home = kernel == Kernel::copy_tensors_home;
  r.read_own(a.places, a.count);
  for (int i = 0; i < a.count; ++i) {
    const TensorPlace& p = a.places[i];
    expect_sizes(p, i, a.count);
    const std::int64_t own = p.outer * (p.windows ? 1 : p.taps) * p.padded;
    r.add(a.flat + p.flat_offset, p.outer * p.inner * p.taps * 4, home);
    const std::int64_t each = a.own_is_fp32 ? 4 : r.element_bytes();
    r.add(static_cast<const char*>(a.own) + p.own_offset * each, own * each, !home);
  }
}
void list(const StateArguments& a, Regions& r, Kernel kernel) {
  const bool in = kernel == Kernel::state_in;
  const std::int64_t each = a.samples * a.layers * a.hidden;
  r.add(a.packed, 2 * each * 4, !in);
  for (const void* p : {a.h, a.c}) r.add(p, each * r.element_bytes(), in);
}
void list(const CastArguments& a, Regions& r, Kernel) {
  r.add(a.from, a.count * bytes_of(a.from_type), false);
  r.add(a.to, a.count * bytes_of(a.to_type), true);
}
void list(const SquaredNormPartsArguments& a, Regions& r, Kernel) {
  r.read_own(a.ranges, a.count);
  for (int i = 0; i < a.count; ++i) {
    const NormRange& range = a.ranges[i];
    r.read_own(a.values + range.begin, range.count);
    if (a.before == nullptr) continue;
    if (!a.first) r.read_own(a.before + range.begin, range.count);
    r.write_own(a.before + range.begin, range.count);
  }
  r.write_own(a.partial, a.blocks);
}
void list(const SquaredNormsArguments& a, Regions& r, Kernel) {
  r.read_own(a.partial, a.blocks);
  r.read_own(a.ranges, a.count);
  if (a.add) r.read_own(a.norms, a.count);
  r.write_own(a.norms, a.count);
}
void list(const ChecksumPartsArguments& a, Regions& r, Kernel) {
  r.read_own(a.ranges, a.count);
  for (int i = 0; i < a.count; ++i) r.read_own(a.words + a.ranges[i].begin, a.ranges[i].count);
  r.write_own(a.partial, a.blocks);
}
void list(const NormTotalArguments& a, Regions& r, Kernel) {
  if (a.count > 0) r.read_own(a.norms, a.count);
  if (!a.first) r.read_own(a.total, 1);
  r.write_own(a.total, 1);
  if (a.to != nullptr) r.write_own(a.to, 1);
}
void list(const UpdateScalarsArguments& a, Regions& r, Kernel) {
  r.read_own(a.norms, a.count);
  if (a.small_norms != nullptr) r.read_own(a.small_norms, 1);
  r.write_own(a.scalars, 1);
}
void list(const LambMomentsArguments& a, Regions& r, Kernel) {
  r.read_own(a.rule, 1);
  r.read_own(a.scalars, 1);
  r.read_own(a.ranges, a.count);
  r.read_own(a.trust, a.count);
  for (int i = 0; i < a.count; ++i) {
    const auto& [begin, count, first_block] = a.ranges[i];
    for (const float* p : {a.weights, a.gradients}) r.read_own(p + begin, count);
    for (float* p : {a.m, a.v}) r.write_own(p + begin + a.trust[i].state_shift, count);
  }
  r.write_own(a.partial, a.blocks);
}
void list(const TrustRatiosArguments& a, Regions& r, Kernel) {
  r.read_own(a.rule, 1);
  r.read_own(a.scalars, 1);
  r.read_own(a.trust, a.count);
  for (const double* norms : {a.weights, a.other}) r.read_own(norms, a.count);
  r.write_own(a.ratios, a.count);
}
void list(const MuonDirectionsArguments& a, Regions& r, Kernel) {
  r.read_own(a.rule, 1);
  r.read_own(a.scalars, 1);
  r.read_own(a.ranges, a.count);
  r.read_own(a.places, a.count);
  for (int i = 0; i < a.count; ++i) {
    const auto& [begin, count, first_block] = a.ranges[i];
    r.read_own(a.gradients + begin, count);
    r.write_own(a.momentum + begin, count);
    r.write_own(a.directions + a.places[i], count);
  }
}
void list(const NormalizeRangesArguments& a, Regions& r, Kernel) {
  r.read_own(a.ranges, a.count);
  r.read_own(a.norms, a.count);
  for (int i = 0; i < a.count; ++i) r.write_own(a.values + a.ranges[i].begin, a.ranges[i].count);
}
void list(const BlendArguments& a, Regions& r, Kernel) {
  r.read_own(a.x, a.count);
  r.write_own(a.y, a.count);
}
void list(const UpdateArguments& a, Regions& r, Kernel) {
  r.read_own(a.rule, 1);
  r.read_own(a.scalars, 1);
  r.read_own(a.places, a.count);
  for (int i = 0; i < a.count; ++i) {
    const UpdatePlace& place = a.places[i];
    const TensorPlace& p = place.tensor;
    expect_sizes(p, i, a.count);
    if (a.trust_ratios != nullptr) r.read_own(a.trust_ratios + place.range, 1);
    const std::int64_t flat = p.outer * p.inner * p.taps, own = p.outer * (p.windows ? 1 : p.taps) * p.padded;
    r.write_own(a.weights + p.flat_offset, flat);
    r.read_own((place.matrix_factor > 0 ? a.directions + place.direction_shift : a.gradients) + p.flat_offset, flat);
    for (const float* state : a.state)
      if (state != nullptr) r.write_own(state + p.flat_offset + place.state_shift, flat);
    if (a.average != nullptr) r.write_own(a.average + p.flat_offset + place.state_shift, flat);
    const std::int64_t each = place.own_is_fp32 ? 4 : r.element_bytes();
    if (place.own != nullptr) r.add(static_cast<char*>(place.own) + p.own_offset * each, own * each, true);
  }
}
void list(const AverageArguments& a, Regions& r, Kernel) {
  r.write_own(a.weights, a.count);
  r.read_own(a.means, a.count);
  r.read_own(a.scalars, 1);
}

template <class Arguments>
std::vector<Region> regions_as(const KernelLaunch& launch) {
  if (launch.argument_bytes != sizeof(Arguments))
    throw Error(cat(kernel_name(launch.kernel), " has ", launch.argument_bytes, " bytes of arguments, expected ",
                    sizeof(Arguments)));
  Arguments arguments;
  std::memcpy(&arguments, launch.arguments.data(), sizeof arguments);
  Regions regions(launch.type);
  list(arguments, regions, launch.kernel);
  return regions.result;
}

}  // namespace

std::vector<Region> regions_of(const KernelLaunch& launch) {
  switch (launch.kernel) {
#define RINGTRAIN_REGIONS_OF(name, typed, arguments) \
  case Kernel::name:                                 \
    return regions_as<arguments>(launch);
    RINGTRAIN_KERNEL_LIST(RINGTRAIN_REGIONS_OF)
#undef RINGTRAIN_REGIONS_OF
    case Kernel::count:
      break;
  }
  throw Error("a launch of no kernel");
}

std::vector<void**> addresses_in_memory(const KernelLaunch& launch) {
  std::vector<void**> result;
  if (launch.kernel == Kernel::update) {
    UpdateArguments a;
    std::memcpy(&a, launch.arguments.data(), sizeof a);
    auto* places = const_cast<UpdatePlace*>(a.places);
    for (int i = 0; i < a.count; ++i)
      if (places[i].own != nullptr) result.push_back(&places[i].own);
  }
  return result;
}

std::vector<Region> regions_of(const DnnOperation& operation, std::span<void* const> tensors) {
  std::vector<Region> result;
  const std::vector<DnnTensor> described = operation.tensors();
  if (described.size() != tensors.size())
    throw Error(cat(operation.key(), ": ", described.size(), " tensors, but ", tensors.size(), " addresses"));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (described[i].role != DnnRole::alpha)
      result.push_back({tensors[i], described[i].elements() * bytes_of(described[i].type), described[i].output});
  return result;
}

std::vector<Region> regions_of(const RnnPlan& plan, const RnnForward& a) {
  const RnnOperation& op = plan.operation();
  Regions r(op.type);
  const std::int64_t rows = op.length * op.batch, state = op.layers * op.batch * op.hidden;
  r.read(a.x, rows * op.input);
  r.add(a.weights, plan.weight_bytes(), false);
  for (const void* p : {a.h0, a.c0}) r.read(p, state);
  r.write(a.y, rows * op.hidden);
  for (const void* p : {a.hn, a.cn}) r.write(p, state);
  r.add(a.workspace, plan.workspace_bytes(), true);
  r.add(a.reserve, plan.reserve_bytes(), true);
  return r.result;
}

std::vector<Region> regions_of(const RnnPlan& plan, const RnnBackward& a) {
  const RnnOperation& op = plan.operation();
  Regions r(op.type);
  const std::int64_t rows = op.length * op.batch, state = op.layers * op.batch * op.hidden;
  r.read(a.x, rows * op.input);
  r.add(a.weights, plan.weight_bytes(), false);
  for (const void* p : {a.h0, a.c0}) r.read(p, state);
  for (const void* p : {a.y, a.dy}) r.read(p, rows * op.hidden);
  r.write(a.dx, rows * op.input);
  r.add(a.dweights, plan.weight_bytes(), true);
  r.add(a.workspace, plan.workspace_bytes(), true);
  r.add(a.reserve, plan.reserve_bytes(), true);
  return r.result;
}

}  // namespace ringtrain::cuda
