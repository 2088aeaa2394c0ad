// Tests the GPU's kernels for one-hot symbols, dropout and carried state.
#include "backend/cpu/kernels.h"
#include "cuda_kernels.h"
#include "nn/math.h"

namespace ringtrain::cuda {
namespace {

TEST(CudaKernelsSequence, SymbolsBecomeOneHotTimeMajorRows) {
  for (const Type type : all_types)
    for (const std::int64_t padded : {5, 64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << type_name(type) << " " << padded);
      TestMemory memory;
      const std::int64_t samples = 7, length = 9;
      auto* symbols = memory.make<std::uint8_t>(samples * length);
      for (std::int64_t i = 0; i < samples * length; ++i) symbols[i] = static_cast<std::uint8_t>(i * 31 % padded);
      const Array to = memory.array(type, samples * length * padded);
      ASSERT_NO_FATAL_FAILURE(memory.run(launch_of(type, OneHotArguments{symbols, to.data, samples, length, padded})));
      for (std::int64_t i = 0; i < to.count; ++i) {
        const std::int64_t row = i / padded, time = row / samples, sample = row % samples;
        ASSERT_EQ(to[i], i % padded == symbols[sample * length + time] ? 1 : 0) << i;
      }
    }
}

TEST(CudaKernelsSequence, DropoutDropsWhatTheCpuBackendDrops) {
  for (const Type type : all_types)
    for (const std::int64_t units : {8, 17, 128, 300}) {
      SCOPED_TRACE(testing::Message() << type_name(type) << " " << units);
      TestMemory memory;
      const std::int64_t samples = 5, length = 6, layer = 3;
      const double probability = 0.37;
      auto* state = memory.make<StepState>(1);
      *state = {.dropout_key = 0x1234567890abcdefull, .step = 77, .first_row = 1000};
      const Array x = memory.array(type, samples * length * units).normal(1, 1, 3), y = memory.array(type, x.count);
      ASSERT_NO_FATAL_FAILURE(memory.run(
          launch_of(type, DropoutArguments{x.data, y.data, state, samples, length, units, layer, probability})));
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(samples * units));
      for (std::int64_t time = 0; time < length; ++time) {
        cpu::kernels(cpu::Isa::baseline)
            .dropout_mask({.key = state->dropout_key,
                           .step = state->step,
                           .layer = layer,
                           .first_row = state->first_row,
                           .time = time,
                           .threshold = dropout_threshold(probability)},
                          samples, units, mask.data());
        for (std::int64_t i = 0; i < samples * units; ++i) {
          const std::int64_t at = time * samples * units + i;
          const double scale = 1 / (1 - dropout_threshold(probability) / 65536.0);
          const double e = mask[static_cast<std::size_t>(i)] != 0 ? x[at] * scale : 0;
          ASSERT_NEAR(y[at], e, tolerance(type, e)) << at;
          ASSERT_EQ(y[at] == 0, e == 0) << at;
        }
      }
    }
}

// In an earlier version, time step 65536 had the bits of time step 0 of this row or of the next one.
TEST(CudaKernelsSequence, DropoutOfALongSequenceRepeatsNoBits) {
  TestMemory memory;
  const std::int64_t samples = 2, length = 65538, units = 64;
  auto* state = memory.make<StepState>(1);
  *state = {.dropout_key = 5, .step = 3, .first_row = 0};
  const Array x = memory.array(Type::bf16, samples * length * units).fill(1), y = memory.array(Type::bf16, x.count);
  memory.run_once(launch_of(Type::bf16, DropoutArguments{x.data, y.data, state, samples, length, units, 1, 0.5}));
  const auto row = [&](std::int64_t time, std::int64_t sample) {
    std::vector<bool> kept;
    for (std::int64_t i = 0; i < units; ++i) kept.push_back(y[(time * samples + sample) * units + i] != 0);
    return kept;
  };
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(units));
  for (const std::int64_t sample : {0, 1}) {
    EXPECT_NE(row(0, sample), row(65536, sample)) << sample;
    EXPECT_NE(row(1, 1), row(65537, sample)) << sample;
    cpu::kernels(cpu::Isa::baseline)
        .dropout_mask({state->dropout_key, state->step, 1, sample, 65536, dropout_threshold(0.5)}, 1, units,
                      mask.data());
    EXPECT_EQ(row(65536, sample), std::vector<bool>(mask.begin(), mask.end())) << sample;
  }
}

TEST(CudaKernelsSequence, CarriedStateComesBackAsItWas) {
  for (const Type type : all_types)
    for (const std::int64_t hidden : {5, 64, 2056}) {
      SCOPED_TRACE(testing::Message() << type_name(type) << " " << hidden);
      TestMemory memory;
      const std::int64_t samples = 3, layers = 2, n = samples * layers * hidden;
      const Array packed = memory.array(Type::fp32, 2 * n);
      for (std::int64_t i = 0; i < packed.count; ++i)
        packed.set(i, static_cast<double>(rounded(type, random_normal(1, static_cast<std::uint64_t>(i)))));
      const Array h = memory.array(type, n), c = memory.array(type, n), back = memory.array(Type::fp32, 2 * n);
      ASSERT_NO_FATAL_FAILURE(memory.run(
          launch_of(type, Kernel::state_in, StateArguments{packed.floats(), h.data, c.data, samples, layers, hidden})));
      for (std::int64_t s = 0; s < samples; ++s)
        for (std::int64_t l = 0; l < layers; ++l)
          for (std::int64_t u = 0; u < hidden; ++u) {
            ASSERT_EQ(h[(l * samples + s) * hidden + u], packed[((s * layers + l) * 2) * hidden + u]);
            ASSERT_EQ(c[(l * samples + s) * hidden + u], packed[((s * layers + l) * 2 + 1) * hidden + u]);
          }
      ASSERT_NO_FATAL_FAILURE(memory.run(
          launch_of(type, Kernel::state_out, StateArguments{back.floats(), h.data, c.data, samples, layers, hidden})));
      for (std::int64_t i = 0; i < packed.count; ++i) ASSERT_EQ(back[i], packed[i]) << i;
    }
}

}  // namespace
}  // namespace ringtrain::cuda
