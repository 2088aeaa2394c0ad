// Tests the copies between the flat vector and a program's layouts, and the optimizer's kernels.
#include <algorithm>

#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

struct Tensor {
  std::int64_t outer;
  int inner, taps, padded;
  bool windows = false;
  std::int64_t own_elements() const { return outer * padded * (windows ? 1 : taps); }
};
// Biases, dense weights, padded rows, the stem, and 3 x 3 and 11 x 11 convolutions. Some have more inner channels than
// a tile. The stems of ResNet and AlexNet come with windows, too.
const Tensor tensors[] = {{1, 64, 1, 64},        {10, 100, 1, 100},      {7, 17, 1, 24},     {9000, 1, 1, 1},
                          {6, 3, 49, 4},         {5, 64, 9, 64},         {2, 600, 9, 600},   {3, 3, 121, 8},
                          {4, 5, 9, 16},         {1, 1, 1, 1},           {1, 8192, 1, 8192}, {2, 2, 2304, 3},
                          {6, 3, 49, 152, true}, {5, 3, 121, 368, true}, {2, 1, 9, 16, true}};

struct CopyCase {
  TestMemory memory;
  Array flat, own;
  std::vector<TensorPlace> places;
  std::int64_t blocks;
  CopyTensorsArguments a{};

  CopyCase(Type own_type, bool accumulate) {
    std::int64_t flat_size = 0, own_size = 0;
    for (const Tensor& t : tensors) {
      places.push_back({.flat_offset = flat_size,
                        .own_offset = own_size,
                        .outer = t.outer,
                        .inner = t.inner,
                        .taps = t.taps,
                        .padded = t.padded,
                        .windows = t.windows});
      flat_size += (t.outer * t.inner * t.taps + 63) / 64 * 64;
      own_size += (t.own_elements() + 127) / 128 * 128;
    }
    const auto count = static_cast<int>(places.size());
    blocks = place_blocks(places.data(), count);
    auto* on_device = memory.make<TensorPlace>(count);
    std::copy(places.begin(), places.end(), on_device);
    flat = memory.array(Type::fp32, flat_size);
    own = memory.array(own_type, own_size);
    a = {.flat = flat.floats(),
         .own = own.data,
         .places = on_device,
         .count = count,
         .accumulate = accumulate,
         .own_is_fp32 = own_type == Type::fp32};
  }
  // Calls body(place in the flat vector or -1 for padding, place in the own layout) for every element of every tensor.
  template <class Body>
  void each(const Body& body) const {
    for (const TensorPlace& p : places)
      for (std::int64_t o = 0; o < p.outer; ++o)
        if (p.windows)
          each_of_windows(p, o, body);
        else
          each_plain(p, o, body);
  }
  template <class Body>
  static void each_plain(const TensorPlace& p, std::int64_t o, const Body& body) {
    for (int tap = 0; tap < p.taps; ++tap)
      for (int i = 0; i < p.padded; ++i)
        body(i < p.inner ? p.flat_offset + (o * p.inner + i) * p.taps + tap : -1,
             p.own_offset + (o * p.taps + tap) * p.padded + i);
  }
  template <class Body>
  static void each_of_windows(const TensorPlace& p, std::int64_t o, const Body& body) {
    for (int i = 0; i < p.padded; ++i)
      body(i < p.taps * p.inner ? p.flat_offset + (o * p.inner + i % p.inner) * p.taps + i / p.inner : -1,
           p.own_offset + o * p.padded + i);
  }
};

TEST(CudaKernelsFlat, CopiesInAreTransposedPaddedAndRounded) {
  for (const Type own : all_types)
    for (const Type kernel_type : all_types) {
      if (own != kernel_type && own != Type::fp32) continue;
      SCOPED_TRACE(testing::Message() << type_name(kernel_type) << ", own " << type_name(own));
      CopyCase k(own, false);
      k.flat.normal(1);
      ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(kernel_type, Kernel::copy_tensors_in, k.a, k.blocks)));
      std::int64_t wrong = 0;
      k.each([&](std::int64_t flat, std::int64_t at) {
        wrong += k.own[at] != (flat < 0 ? 0 : static_cast<double>(rounded(own, k.flat[flat])));
      });
      EXPECT_EQ(wrong, 0);
    }
}

TEST(CudaKernelsFlat, CopiesHomeSetOrAddAndSkipPadding) {
  for (const Type own : all_types)
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(testing::Message() << type_name(own) << accumulate);
      CopyCase k(own, accumulate);
      std::vector<double> before;
      if (accumulate) k.flat.normal(2);
      for (std::int64_t i = 0; i < k.flat.count; ++i) before.push_back(accumulate ? k.flat[i] : 0);
      k.each([&](std::int64_t flat, std::int64_t at) {
        k.own.set(at, flat < 0 ? NAN : random_normal(1, static_cast<std::uint64_t>(at)));
      });
      ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(own, Kernel::copy_tensors_home, k.a, k.blocks)));
      std::int64_t wrong = 0;
      k.each([&](std::int64_t flat, std::int64_t at) {
        if (flat < 0) return;
        const double e = before[static_cast<std::size_t>(flat)] + k.own[at];
        wrong += !(std::abs(k.flat[flat] - e) <= 1e-6 * (1 + std::abs(e)));
      });
      EXPECT_EQ(wrong, 0);
    }
}

TEST(CudaKernelsFlat, InThenHomeIsTheIdentityAndGapsStayUntouched) {
  for (const bool accumulate : {false, true}) {
    CopyCase k(Type::fp32, accumulate);
    k.flat.normal(1);
    std::vector<double> before;
    for (std::int64_t i = 0; i < k.flat.count; ++i) before.push_back(k.flat[i]);
    ASSERT_NO_FATAL_FAILURE(k.memory.run({launch_of(Type::bf16, Kernel::copy_tensors_in, k.a, k.blocks),
                                          launch_of(Type::bf16, Kernel::copy_tensors_home, k.a, k.blocks)}));
    std::vector<double> expected = before;
    if (accumulate)
      k.each([&](std::int64_t flat, std::int64_t) {
        if (flat >= 0) expected[static_cast<std::size_t>(flat)] *= 2;
      });
    for (std::int64_t i = 0; i < k.flat.count; ++i) ASSERT_EQ(k.flat[i], expected[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(CudaKernelsFlat, CastScalesAndRoundsOnce) {
  for (const Type from_type : all_types)
    for (const Type to_type : all_types)
      for (const std::int64_t count : {1, 9, 2048, 5001}) {
        SCOPED_TRACE(testing::Message() << type_name(from_type) << " to " << type_name(to_type) << " " << count);
        TestMemory memory;
        const Array from = memory.array(from_type, count).normal(1, 100), to = memory.array(to_type, count);
        from.set(0, 65500);
        ASSERT_NO_FATAL_FAILURE(
            memory.run(launch_of(CastArguments{from.data, to.data, count, from_type, to_type, 0.5f})));
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_EQ(to[i], static_cast<double>(rounded(to_type, 0.5 * from[i]))) << i;
      }
}

TEST(CudaKernelsFlat, TooLargeForFp16IsInfinite) {
  TestMemory memory;
  const Array from = memory.array(Type::fp32, 3), to = memory.array(Type::fp16, 3);
  from.set(0, 65520);
  from.set(1, -1e30);
  from.set(2, NAN);
  ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(CastArguments{from.data, to.data, 3, Type::fp32, Type::fp16, 1.0f})));
  EXPECT_EQ(to[0], INFINITY);
  EXPECT_EQ(to[1], -INFINITY);
  EXPECT_TRUE(std::isnan(to[2]));
}

// The places of an update in device memory, and the number of blocks that they need.
struct DevicePlaces {
  UpdatePlace* data;
  int count;
  std::int64_t blocks;
};
DevicePlaces device_places(TestMemory& memory, std::vector<UpdatePlace> places) {
  const auto count = static_cast<int>(places.size());
  const std::int64_t blocks = place_blocks(places.data(), count);
  auto* data = memory.make<UpdatePlace>(count);
  std::copy(places.begin(), places.end(), data);
  return {data, count, blocks};
}

// Computes squared norms of ranges of a gradient. Without given ranges there are three, which cover all elements: the
// first element, the last element, and all elements between them.
struct NormCase {
  TestMemory memory;
  Array values;
  NormRange* ranges;
  int count;
  std::int64_t blocks;
  double *partial, *norms;
  UpdateScalars* scalars;

  explicit NormCase(std::int64_t elements)
      : NormCase(elements,
                 {{.begin = 0, .count = 1}, {.begin = 1, .count = elements - 2}, {.begin = elements - 1, .count = 1}}) {
  }
  NormCase(std::int64_t elements, std::vector<NormRange> wanted)
      : count(static_cast<int>(wanted.size())), blocks(range_blocks(wanted)) {
    values = memory.array(Type::fp32, elements).normal(1);
    ranges = memory.make<NormRange>(count);
    std::copy(wanted.begin(), wanted.end(), ranges);
    partial = memory.make<double>(blocks);
    norms = memory.make<double>(count);
    scalars = memory.make<UpdateScalars>(1);
  }
  void run(float unscale, double clip) {
    memory.run({launch_of(SquaredNormPartsArguments{values.floats(), ranges, partial, count, blocks}),
                launch_of(SquaredNormsArguments{partial, ranges, norms, count, blocks}),
                launch_of(UpdateScalarsArguments{norms, scalars, count, unscale, clip})});
  }
  double expected(std::int64_t begin, std::int64_t elements) const {
    double sum = 0;
    for (std::int64_t i = begin; i < begin + elements; ++i) sum += values[i] * values[i];
    return sum;
  }
};

TEST(CudaKernelsFlat, SquaredNormsAreSummedInDoublePrecision) {
  for (const std::int64_t count : {3, 7, 64, 8194, 8195, 1300003}) {
    NormCase k(count);
    k.values.set(0, 1e25);  // its square overflows fp32
    ASSERT_NO_FATAL_FAILURE(k.run(0.5f, 0));
    const double sum = k.expected(0, count);
    EXPECT_NEAR(k.scalars->squared_norm, sum / 4, 1e-12 * sum) << count;
    EXPECT_EQ(k.scalars->applied, 1);
    EXPECT_EQ(k.scalars->gradient_scale, 0.5f);
    k.values.set(0, 1);
    ASSERT_NO_FATAL_FAILURE(k.run(1, 0));
    EXPECT_NEAR(k.scalars->squared_norm, k.expected(0, count), 1e-12 * sum) << count;
    EXPECT_NEAR(k.norms[1], k.expected(1, count - 2), 1e-12 * k.expected(1, count - 2)) << count;
    EXPECT_EQ(k.norms[0], 1);
  }
}

// Each range is measured by itself. Some are unaligned, have one element, are longer than many chunks, or overlap.
// Elements between the ranges do not count.
TEST(CudaKernelsFlat, SquaredNormsOfRangesIgnoreWhatLiesBetween) {
  const std::vector<NormRange> wanted = {{.begin = 3, .count = 1},     {.begin = 64, .count = 8191},
                                         {.begin = 8256, .count = 64}, {.begin = 8321, .count = 100003},
                                         {.begin = 60, .count = 9000}, {.begin = 120000, .count = 8}};
  NormCase k(120008, wanted);
  std::vector<bool> within(120008, false);
  for (const NormRange& range : wanted)
    for (std::int64_t i = range.begin; i < range.begin + range.count; ++i) within[static_cast<std::size_t>(i)] = true;
  for (std::int64_t i = 0; i < k.values.count; ++i)
    if (!within[static_cast<std::size_t>(i)]) k.values.set(i, NAN);
  ASSERT_NO_FATAL_FAILURE(k.run(1, 0));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double expected = k.expected(wanted[i].begin, wanted[i].count);
    EXPECT_NEAR(k.norms[i], expected, 1e-12 * expected) << i;
  }
  EXPECT_EQ(k.scalars->applied, 1);
}

// Two calls add the norms to the total. The first one begins from zero. The third call adds nothing and stores the
// total at a place within a longer vector.
TEST(CudaKernelsFlat, NormsAreAddedToATotalAndStored) {
  for (const int count : {1, 3, 700}) {
    TestMemory memory;
    auto* norms = memory.make<double>(count);
    auto* total = memory.make<double>(1);
    auto* to = memory.make<float>(4);
    double expected = 0;
    for (int i = 0; i < count; ++i) expected += norms[i] = 0.1 + i;
    *total = 1e30;  // a value that the step before has left
    to[1] = to[3] = 7;
    ASSERT_NO_FATAL_FAILURE(memory.run({launch_of(NormTotalArguments{norms, total, count, true}),
                                        launch_of(NormTotalArguments{norms, total, count, false}),
                                        launch_of(NormTotalArguments{nullptr, total, 0, false, to + 2})}));
    EXPECT_NEAR(*total, 2 * expected, 1e-12 * expected);
    EXPECT_EQ(to[2], static_cast<float>(*total));
    EXPECT_EQ(to[1], 7);
    EXPECT_EQ(to[3], 7);
  }
}

TEST(CudaKernelsFlat, AdaScalesGainFollowsFromTheNormsWithoutTheLossScale) {
  NormCase k(4);
  k.values.fill(8);  // the squared norm is 256, unscaled 16
  auto* small = k.memory.make<float>(1);
  *small = 16.0f * 3;  // unscaled 3
  const AdaScaleStep step{
      .times = 4, .batch = 64, .small_batch = 4, .averages = {.variance = 2, .gradient = 3, .steps = 1}};
  const auto run = [&](const float* small_norms) {
    k.memory.run({launch_of(SquaredNormPartsArguments{k.values.floats(), k.ranges, k.partial, k.count, k.blocks}),
                  launch_of(SquaredNormsArguments{k.partial, k.ranges, k.norms, k.count, k.blocks}),
                  launch_of(UpdateScalarsArguments{k.norms, k.scalars, k.count, 0.25f, 0, step, small_norms})});
  };
  ASSERT_NO_FATAL_FAILURE(run(small));
  const AdaScaleAverages expected = with_step(step, 16, 3);
  EXPECT_DOUBLE_EQ(k.scalars->adascale.variance, expected.variance);
  EXPECT_DOUBLE_EQ(k.scalars->adascale.gradient, expected.gradient);
  EXPECT_EQ(k.scalars->adascale.steps, 2);
  EXPECT_DOUBLE_EQ(k.scalars->gain, adascale_gain(expected, 4));
  EXPECT_EQ(k.scalars->rate_factor, static_cast<float>(k.scalars->gain));
  EXPECT_GT(k.scalars->gain, 1);
  ASSERT_NO_FATAL_FAILURE(run(nullptr));
  EXPECT_EQ(k.scalars->rate_factor, 1) << "it is off";
}

TEST(CudaKernelsFlat, ClippingScalesTheUnscaledGradientToTheLimit) {
  NormCase k(4);
  k.values.fill(8);  // the norm is 16, unscaled 4
  ASSERT_NO_FATAL_FAILURE(k.run(0.25f, 1));
  EXPECT_EQ(k.scalars->squared_norm, 16);
  EXPECT_EQ(k.scalars->gradient_scale, 0.25f * 0.25f);
  ASSERT_NO_FATAL_FAILURE(k.run(0.25f, 4.5));
  EXPECT_EQ(k.scalars->gradient_scale, 0.25f);
}

TEST(CudaKernelsFlat, AnOverflowSkipsTheUpdate) {
  for (const double bad : {double{INFINITY}, double{NAN}}) {
    NormCase k(5000);
    k.values.set(4321, bad);
    ASSERT_NO_FATAL_FAILURE(k.run(1, 1));
    EXPECT_EQ(k.scalars->applied, 0);
    const Array weights = k.memory.array(Type::fp32, 5000).normal(2),
                momentum = k.memory.array(Type::fp32, 5000).fill(3);
    const double before = weights[17];
    auto* rule = k.memory.make<UpdateRule>(1);
    *rule = {.learning_rate = 1};
    const Array copy = k.memory.array(Type::bf16, 5000).fill(7);
    const UpdateRange range{0, 5000, 0};
    const WeightCopy copied{{.outer = 1, .inner = 5000, .taps = 1, .padded = 5000}, copy.data, false};
    const DevicePlaces places = device_places(k.memory, update_places({&range, 1}, {&copied, 1}));
    ASSERT_NO_FATAL_FAILURE(
        k.memory.run({launch_of(Type::bf16,
                                UpdateArguments{rule,
                                                k.scalars,
                                                places.data,
                                                places.count,
                                                weights.floats(),
                                                k.values.floats(),
                                                {momentum.floats(), nullptr}},
                                places.blocks),
                      launch_of(AverageArguments{weights.floats(), momentum.floats(), k.scalars, 5000, 0.5f})}));
    EXPECT_EQ(weights[17], before);
    EXPECT_EQ(momentum[17], 3);
    EXPECT_EQ(copy[17], 7);
  }
}

TEST(CudaKernelsFlat, UpdatesFollowTheSharedRulesRangeByRange) {
  for (int number = 0; number < optimizer_kinds; ++number)
    for (const bool inside : {false, true})
      for (const std::int64_t shift : {0, 1}) {
        SCOPED_TRACE(testing::Message() << number << inside << shift);
        TestMemory memory;
        const std::int64_t n = 10000;
        const auto kind = static_cast<OptimizerKind>(number);
        const Array w = memory.array(Type::fp32, n, shift).normal(1), g = memory.array(Type::fp32, n, shift).normal(2);
        const Array m = memory.array(Type::fp32, n, shift).normal(3), v = memory.array(Type::fp32, n, shift).fill(0.5);
        if (kind == OptimizerKind::rmsprop) m.fill(0.5);  // a mean of squares is positive
        auto* rule = memory.make<UpdateRule>(1);
        *rule = {.kind = kind,
                 .learning_rate = 0.1f,
                 .clip_value = inside ? 0.1f : 0,
                 .momentum = 0.9f,
                 .nesterov = inside,
                 .rate_inside = inside,
                 .correction = 0.8f,
                 .beta1_share = 0.1f,
                 .beta2_share = 0.01f,
                 .epsilon = 1e-8f,
                 .bias_correction1 = 0.5f,
                 .bias_correction2 = 0.3f,
                 .sgd_share = 0.6f,
                 .rmsprop_share = 0.4f};
        auto* scalars = memory.make<UpdateScalars>(1);
        *scalars = {.squared_norm = 1, .gradient_scale = 0.25f, .applied = 1};
        // The kernel loads four elements at once where it can. The ranges have gaps between them. Some begin or end
        // inside such a group of four, one lies inside a group, one needs several blocks, and one ends at the last
        // element.
        const std::vector<UpdateRange> ranges = {
            {2, 3, 0.5f}, {3, 11, 0}, {64, 9001, 0.1f}, {9001, 9002, 0.2f}, {9990, 10000, 0}};
        const DevicePlaces places = device_places(memory, update_places(ranges, {}));
        auto* ratios = memory.make<float>(std::ssize(ranges));
        for (std::size_t i = 0; i < ranges.size(); ++i) ratios[i] = 0.5f + 0.25f * static_cast<float>(i);
        std::vector<float> ew(w.floats(), w.floats() + n), em(m.floats(), m.floats() + n),
            ev(v.floats(), v.floats() + n);
        for (const UpdateRange& range : ranges)
          for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
            UpdateRule r = *rule;
            r.gradient_scale = 0.25f;
            r.weight_decay = range.weight_decay;
            if (has_trust_ratio(kind)) r.learning_rate *= ratios[&range - ranges.data()];
            ew[i] = updated_weight(r, ew[i], g.floats()[i], em[i], ev[i]);
          }
        ASSERT_NO_FATAL_FAILURE(
            memory.run(launch_of(Type::fp32,
                                 UpdateArguments{rule,
                                                 scalars,
                                                 places.data,
                                                 places.count,
                                                 w.floats(),
                                                 g.floats(),
                                                 {m.floats(), has_second_state(kind) ? v.floats() : nullptr},
                                                 has_trust_ratio(kind) ? ratios : nullptr},
                                 places.blocks)));
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          ASSERT_NEAR(w.floats()[i], ew[i], 1e-6f * (1 + std::abs(ew[i]))) << i;
          ASSERT_NEAR(m.floats()[i], em[i], 1e-6f * (1 + std::abs(em[i]))) << i;
          ASSERT_NEAR(v.floats()[i], ev[i], 1e-6f * (1 + std::abs(ev[i]))) << i;
          if (i < 2 || (i >= 11 && i < 64)) {
            ASSERT_EQ(w.floats()[i], ew[i]) << i;
          }
        }
      }
}

// The expected values follow from the same formulas, element by element, with sums in double. One range has several
// chunks, one has no ratio, and there are gaps between ranges.
TEST(CudaKernelsFlat, TrustRatiosAreThoseOfTheSharedFormulas) {
  for (const OptimizerKind kind : {OptimizerKind::lars, OptimizerKind::lamb}) {
    NormCase k(30000, {{.begin = 1, .count = 1}, {.begin = 64, .count = 20001}, {.begin = 20100, .count = 9000}});
    TestMemory& memory = k.memory;
    const Array w = memory.array(Type::fp32, 30000).normal(2);
    const Array m = memory.array(Type::fp32, 30000).normal(3), v = memory.array(Type::fp32, 30000).fill(0.5);
    auto* rule = memory.make<UpdateRule>(1);
    *rule = {.kind = kind,
             .beta1_share = 0.1f,
             .beta2_share = 0.01f,
             .epsilon = 1e-3f,
             .bias_correction1 = 0.5f,
             .trust_coefficient = 0.02f};
    auto* trust = memory.make<TrustRange>(3);
    trust[0] = {0.5f, 1};
    trust[1] = {0.1f, 1};
    trust[2] = {0, 0};
    auto *weights = memory.make<double>(3), *directions = memory.make<double>(3);
    auto* ratios = memory.make<float>(3);
    k.run(0.25f, 0);
    std::vector<float> em(m.floats(), m.floats() + 30000), ev(v.floats(), v.floats() + 30000);
    std::vector<double> expected;
    for (int range = 0; range < 3; ++range) {
      UpdateRule r = *rule;
      r.gradient_scale = 0.25f;
      r.weight_decay = trust[range].weight_decay;
      double squared = 0, direction = 0;
      for (std::int64_t at = 0; at < k.ranges[range].count; ++at) {
        const auto i = static_cast<std::size_t>(k.ranges[range].begin + at);
        move_moments(r, scaled_gradient(r, k.values.floats()[i]), em[i], ev[i]);
        squared += std::pow(static_cast<double>(w.floats()[i]), 2);
        direction += std::pow(static_cast<double>(lamb_direction(r, w.floats()[i], em[i], ev[i])), 2);
      }
      weights[range] = squared;
      const double other = kind == OptimizerKind::lars ? k.norms[range] : direction;
      expected.push_back(range == 2 ? 1 : trust_ratio(r, r.weight_decay, squared, other));
    }
    const double* other = k.norms;
    if (kind == OptimizerKind::lamb) {
      ASSERT_NO_FATAL_FAILURE(
          memory.run({launch_of(LambMomentsArguments{rule, k.scalars, k.ranges, trust, w.floats(), k.values.floats(),
                                                     m.floats(), v.floats(), k.partial, k.count, k.blocks}),
                      launch_of(SquaredNormsArguments{k.partial, k.ranges, directions, k.count, k.blocks})}));
      for (std::size_t i = 0; i < 30000; ++i) {
        ASSERT_NEAR(m.floats()[i], em[i], 1e-6f * (1 + std::abs(em[i]))) << i;
        ASSERT_NEAR(v.floats()[i], ev[i], 1e-6f * (1 + std::abs(ev[i]))) << i;
      }
      other = directions;
    }
    ASSERT_NO_FATAL_FAILURE(
        memory.run(launch_of(TrustRatiosArguments{rule, k.scalars, trust, weights, other, ratios, 3})));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(ratios[i], expected[i], 1e-6 * expected[i]) << i;
  }
}

// One kernel does the work of two: an update without copies, and a copy of all tensors.
TEST(CudaKernelsFlat, AnUpdateWritesTheCopiesOfWhatTheWeightsBecome) {
  for (const Type own : all_types)
    for (const Type kernel_type : all_types)
      for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
        if (own != kernel_type && own != Type::fp32) continue;
        SCOPED_TRACE(testing::Message() << type_name(kernel_type) << ", own " << type_name(own));
        CopyCase k(own, false);
        const std::int64_t n = k.flat.count;
        TestMemory& memory = k.memory;
        const Array g = memory.array(Type::fp32, n).normal(2);
        auto* rule = memory.make<UpdateRule>(1);
        *rule = {.kind = kind, .learning_rate = 0.1f, .momentum = 0.9f, .beta1_share = 0.1f, .beta2_share = 0.01f};
        auto* scalars = memory.make<UpdateScalars>(1);
        *scalars = {.gradient_scale = 0.25f, .applied = 1};
        std::vector<WeightCopy> copies;
        for (const TensorPlace& place : k.places) copies.push_back({place, k.own.data, own == Type::fp32});
        std::ranges::reverse(copies);  // the order must not matter
        const UpdateRange range{0, n, 0.5f};
        const DevicePlaces joined = device_places(memory, update_places({&range, 1}, copies)),
                           alone = device_places(memory, update_places({&range, 1}, {}));
        const Array expected = memory.array(Type::fp32, n);
        Array states[2][2];
        const auto launch = [&](const Array& weights, int which, Type type, const DevicePlaces& places) {
          weights.normal(1);
          for (int i = 0; i < 2; ++i) states[which][i] = memory.array(Type::fp32, n).fill(0.5);
          return launch_of(type,
                           UpdateArguments{rule,
                                           scalars,
                                           places.data,
                                           places.count,
                                           weights.floats(),
                                           g.floats(),
                                           {states[which][0].floats(),
                                            kind == OptimizerKind::sgd ? nullptr : states[which][1].floats()}},
                           places.blocks);
        };
        k.own.fill(0);
        ASSERT_NO_FATAL_FAILURE(memory.run(launch(k.flat, 0, kernel_type, joined)));
        ASSERT_NO_FATAL_FAILURE(memory.run(launch(expected, 1, Type::fp32, alone)));
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(k.flat[i], expected[i]) << i;
          for (int s = 0; s < 2; ++s) ASSERT_EQ(states[0][s][i], states[1][s][i]) << i;
        }
        std::int64_t wrong = 0;
        k.each([&](std::int64_t flat, std::int64_t at) {
          wrong += k.own[at] != (flat < 0 ? 0 : static_cast<double>(rounded(own, k.flat[flat])));
        });
        EXPECT_EQ(wrong, 0);
      }
}

TEST(CudaKernelsFlat, PlacesOfAnUpdateCoverItsRangesOnce) {
  const auto copy = [](std::int64_t flat, std::int64_t outer, int inner, int taps) {
    return WeightCopy{{.flat_offset = flat, .outer = outer, .inner = inner, .taps = taps, .padded = inner}};
  };
  const std::vector<UpdateRange> ranges = {{64, 200, 0.5f}, {200, 256, 0}, {300, 400, 0.1f}};
  const auto places = update_places(ranges, std::vector{copy(300, 10, 10, 1), copy(64, 2, 3, 9), copy(128, 1, 72, 1)});
  std::int64_t done = 0;
  for (const UpdatePlace& place : places) {
    const TensorPlace& p = place.tensor;
    EXPECT_GE(p.flat_offset, done);
    for (std::int64_t i = p.flat_offset; i < p.flat_offset + p.outer * p.inner * p.taps; ++i) {
      const auto range = std::ranges::find_if(ranges, [&](const UpdateRange& r) { return i >= r.begin && i < r.end; });
      ASSERT_NE(range, ranges.end()) << i;
      EXPECT_EQ(place.weight_decay, range->weight_decay) << i;
    }
    done = p.flat_offset + p.outer * p.inner * p.taps;
  }
  std::int64_t elements = 0;
  for (const UpdatePlace& place : places) elements += place.tensor.outer * place.tensor.inner * place.tensor.taps;
  EXPECT_EQ(elements, 136 + 56 + 100);
  for (const WeightCopy& wrong : {copy(190, 1, 20, 1), copy(60, 1, 10, 1), copy(270, 1, 10, 1), copy(400, 1, 1, 1)})
    EXPECT_THROW(update_places(ranges, {&wrong, 1}), Error) << wrong.place.flat_offset;
  EXPECT_THROW(update_places(ranges, std::vector{copy(64, 1, 20, 1), copy(80, 1, 10, 1)}), Error);
}

TEST(CudaKernelsFlat, AveragesMoveTowardsTheMeans) {
  TestMemory memory;
  const Array w = memory.array(Type::fp32, 300).fill(2), means = memory.array(Type::fp32, 300).fill(6);
  auto* scalars = memory.make<UpdateScalars>(1);
  *scalars = {.applied = 1};
  ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(AverageArguments{w.floats(), means.floats(), scalars, 300, 0.25f})));
  for (int i = 0; i < 300; ++i) ASSERT_EQ(w[i], 3);
}

}  // namespace
}  // namespace ringtrain::cuda
