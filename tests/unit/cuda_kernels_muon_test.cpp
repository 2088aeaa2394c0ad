// Compares Muon's own kernels with the shared formulas.
#include <algorithm>

#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

// Three matrices. The first needs several blocks, and the others need one block each. The elements between the matrices
// belong to none.
struct Matrices {
  TestMemory memory;
  std::vector<NormRange> ranges = {{5, 3 * 8192 + 17, 0}, {30000, 1, 0}, {30004, 700, 0}};
  std::vector<std::int64_t> places = {1024, 0, 64};  // places of their directions
  std::int64_t elements = 31000, directions = 30000, blocks = range_blocks(ranges);
  NormRange* device_ranges = on_device(ranges);
  std::int64_t* device_places = on_device(places);
  UpdateRule* rule = memory.make<UpdateRule>(1);
  UpdateScalars* scalars = memory.make<UpdateScalars>(1);
  int count = 3;

  template <class T>
  T* on_device(const std::vector<T>& values) {
    T* to = memory.make<T>(std::ssize(values));
    std::copy(values.begin(), values.end(), to);
    return to;
  }
  template <class Body>  // body(range, element of the range)
  void each(const Body& body) const {
    for (std::size_t range = 0; range < ranges.size(); ++range)
      for (std::int64_t i = 0; i < ranges[range].count; ++i) body(range, i);
  }
};

TEST(CudaKernelsMuon, DirectionsFollowTheSharedRuleAndMoveTheMomentum) {
  for (const std::int32_t applied : {1, 0}) {
    Matrices m;
    *m.rule = UpdateRule{
        .gradient_scale = 100, .momentum = 0.9f, .momentum_share = 0.1f};  // the kernel takes the scale of `scalars`
    *m.scalars = {.squared_norm = 1, .gradient_scale = 0.25f, .applied = applied};
    const Array gradients = m.memory.array(Type::fp32, m.elements).normal(1);
    const Array momentum = m.memory.array(Type::fp32, m.elements).normal(2);
    const Array directions = m.memory.array(Type::fp32, m.directions).fill(7);
    std::vector<float> expected_momentum(momentum.floats(), momentum.floats() + m.elements);
    std::vector<float> expected(directions.floats(), directions.floats() + m.directions);
    UpdateRule rule = *m.rule;
    rule.gradient_scale = 0.25f;
    if (applied != 0)
      m.each([&](std::size_t range, std::int64_t i) {
        const std::int64_t at = m.ranges[range].begin + i;
        expected[static_cast<std::size_t>(m.places[range] + i)] =
            muon_direction(rule, gradients.floats()[at], expected_momentum[static_cast<std::size_t>(at)]);
      });
    ASSERT_NO_FATAL_FAILURE(m.memory.run(
        launch_of(MuonDirectionsArguments{m.rule, m.scalars, m.device_ranges, m.device_places, gradients.floats(),
                                          momentum.floats(), directions.floats(), m.count, m.blocks})));
    for (std::int64_t i = 0; i < m.elements; ++i)
      ASSERT_NEAR(momentum[i], expected_momentum[static_cast<std::size_t>(i)], 1e-6) << i;
    for (std::int64_t i = 0; i < m.directions; ++i)
      ASSERT_NEAR(directions[i], expected[static_cast<std::size_t>(i)], 1e-6) << i;
  }
}

TEST(CudaKernelsMuon, EveryRangeIsDividedByItsOwnNormOrByEpsilon) {
  Matrices m;
  const Array values = m.memory.array(Type::fp32, m.elements).normal(1);
  const std::vector<float> before(values.floats(), values.floats() + m.elements);
  double* norms = m.memory.make<double>(3);
  std::copy_n(std::vector<double>{16, 0, 1e-18}.data(), 3, norms);
  ASSERT_NO_FATAL_FAILURE(m.memory.run_once(
      launch_of(NormalizeRangesArguments{values.floats(), m.device_ranges, norms, m.count, m.blocks, 1e-7f})));
  const double divisors[] = {4, 1e-7, 1e-7};
  std::vector<double> expected(before.begin(), before.end());
  m.each([&](std::size_t range, std::int64_t i) {
    expected[static_cast<std::size_t>(m.ranges[range].begin + i)] /= divisors[range];
  });
  for (std::int64_t i = 0; i < m.elements; ++i) {
    const double wanted = expected[static_cast<std::size_t>(i)];
    ASSERT_NEAR(values[i], wanted, 1e-6 * std::abs(wanted)) << i;
  }
}

TEST(CudaKernelsMuon, BlendsAnyNumberOfElements) {
  for (const std::int64_t count : {1, 256, 5003}) {
    TestMemory memory;
    const Array x = memory.array(Type::fp32, count).normal(1), y = memory.array(Type::fp32, count).normal(2);
    const std::vector<float> before(y.floats(), y.floats() + count);
    ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(BlendArguments{x.floats(), y.floats(), count, -4.775f, 2.0315f})));
    for (std::int64_t i = 0; i < count; ++i)
      ASSERT_NEAR(y[i], -4.775 * x[i] + 2.0315 * static_cast<double>(before[static_cast<std::size_t>(i)]), 4e-6) << i;
  }
}

}  // namespace
}  // namespace ringtrain::cuda
