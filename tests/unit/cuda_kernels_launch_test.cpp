// Tests launches of the GPU's own kernels, and the emulation that runs them on the CPU.
#include <set>

#include "backend/cuda/kernels/compiled.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "cuda_kernels.h"
#include "tests/emulation/cuda_emulation.h"

namespace ringtrain::cuda {
namespace {

std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Arguments that are zero except for those that `set` changes.
template <class Arguments, class Set>
Arguments with(const Set& set) {
  Arguments a{};
  set(a);
  return a;
}
AddArguments add_of(std::int64_t count) {
  return with<AddArguments>([&](AddArguments& a) { a.count = count; });
}

TEST(CudaKernelsLaunch, EveryKernelHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(Kernel::count); ++i) names.insert(kernel_name(static_cast<Kernel>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Kernel::count));
  EXPECT_EQ(names.count(kernel_name(Kernel::count)), 0u);
  EXPECT_STREQ(kernel_name(Kernel::norm_backward_sums), "norm_backward_sums");
}

TEST(CudaKernelsLaunch, EveryKernelIsEmulatedInItsTypesAndInNoOther) {
  const auto known = [](Kernel kernel, Type type) {
    KernelLaunch launch;
    launch.kernel = kernel;
    launch.type = type;
    return message([&] { run_emulated(launch); }).find("there is no kernel") == std::string::npos;
  };
#define RINGTRAIN_EXPECT_KERNEL(name, typed, ...)    \
  EXPECT_TRUE(known(Kernel::name, Type::fp32));      \
  EXPECT_EQ(known(Kernel::name, Type::bf16), typed); \
  EXPECT_EQ(known(Kernel::name, Type::fp16), typed);
  RINGTRAIN_KERNEL_LIST(RINGTRAIN_EXPECT_KERNEL)
#undef RINGTRAIN_EXPECT_KERNEL
  EXPECT_FALSE(known(Kernel::count, Type::fp32));
}

TEST(CudaKernelsLaunch, WhatIsTooLargeIsNamed) {
  const auto refused = [](const std::function<void()>& body, const std::string& kernel, const std::string& size) {
    const std::string what = message(body);
    EXPECT_NE(what.find(kernel), std::string::npos) << what;
    EXPECT_NE(what.find(size), std::string::npos) << what;
  };
  const auto apply = with<NormApplyArguments>([](NormApplyArguments& a) {
    a.rows_per_group = 4;
    a.groups = 70000;
    a.channels = 8;
  });
  refused([&] { launch_of(Type::bf16, apply); }, "norm_apply", "70000");
  refused([] { launch_of(Type::bf16, add_of(0)); }, "add", "0");
  refused([] { launch_of(Type::bf16, add_of(std::int64_t{1} << 45)); }, "add", "17179869184 blocks");
  const auto pool = with<PoolArguments>([](PoolArguments& a) {
    a.kernel = 17;
    a.stride = 1;
  });
  refused([&] { launch_of(Type::fp32, Kernel::max_pool, pool); }, "max_pool", "17");
  refused([&] { launch_of(Type::fp32, Kernel::add, pool); }, "add", "pooling");
  const auto loss = with<CrossEntropyArguments>([](CrossEntropyArguments& a) {
    a.classes = 10;
    a.stride = 8;
  });
  refused([&] { launch_of(Type::fp32, loss); }, "cross_entropy", "10");
  TensorPlace place{.outer = 2, .inner = 9, .padded = 8};
  refused([&] { place_blocks(&place, 1); }, "tensor 0", "padded 8");
}

TEST(CudaKernelsLaunch, CountsBeyond32BitsAreCovered) {
  const std::int64_t count = (std::int64_t{1} << 33) + 1;
  const KernelLaunch add = launch_of(Type::bf16, add_of(count));
  EXPECT_GE(std::int64_t{add.shape.grid_x} * add.shape.block * 8, count);
  const UpdateRange all{0, count, 0};
  std::vector<UpdatePlace> whole = update_places({&all, 1}, {});
  const KernelLaunch update = launch_of(Type::bf16, with<UpdateArguments>([](UpdateArguments& a) { a.count = 1; }),
                                        place_blocks(whole.data(), 1));
  EXPECT_GE(std::int64_t{update.shape.grid_x} * 4096, count);
  TensorPlace places[2] = {{.outer = std::int64_t{1} << 20, .inner = 1 << 13, .padded = 1 << 13},
                           {.outer = 1, .inner = 1, .padded = 1}};
  EXPECT_EQ(place_blocks(places, 2), (std::int64_t{1} << 33) / 4096 + 1);
  EXPECT_EQ(places[1].first_block, (std::int64_t{1} << 33) / 4096);
}

// A captured graph must not contain values that change. The launches of two steps are therefore compared byte by byte.
TEST(CudaKernelsLaunch, EqualArgumentsAreEqualBytes) {
#if !__has_builtin(__builtin_clear_padding)
  GTEST_SKIP() << "this compiler cannot clear the padding of launches";
#endif
  const auto launch = [](unsigned char garbage) {
    CastArguments a;
    std::memset(static_cast<void*>(&a), garbage, sizeof(a));
    a.from = a.to = nullptr;
    a.count = 100;
    a.from_type = a.to_type = Type::bf16;
    a.scale = 2;
    CopyTensorsArguments b;
    std::memset(static_cast<void*>(&b), garbage, sizeof(b));
    b.flat = nullptr;
    b.own = nullptr;
    b.places = nullptr;
    b.count = 3;
    b.accumulate = b.own_is_fp32 = true;
    return std::pair{launch_of(a).arguments, launch_of(Type::bf16, Kernel::copy_tensors_in, b, 7).arguments};
  };
  EXPECT_EQ(launch(0x55), launch(0xaa));
}

TEST(CudaKernelsLaunch, BlockCountsDependOnSizesAlone) {
  for (const std::int64_t rows : {1, 100, 12544, 802816})
    for (const int groups : {1, 8, 1000})
      for (const int channels : {3, 64, 2048, 4096}) {
        const int blocks = norm_blocks({}, Kernel::norm_sums, Type::bf16, rows, groups, channels);
        EXPECT_GE(blocks, 1);
        EXPECT_LE(blocks, 32 * 132);
        EXPECT_EQ(blocks, norm_blocks({}, Kernel::norm_sums, Type::bf16, rows, groups, channels));
      }
  EXPECT_EQ(loss_blocks({}, Type::fp32, 1), 1);
  EXPECT_EQ(column_sum_blocks(1, 1), 1);
  EXPECT_EQ(column_sum_blocks(std::int64_t{1} << 40, 1 << 30), 1);
  EXPECT_EQ(column_sum_blocks(50 * 4096, 98), 528);   // the character LSTM's classes: four blocks per multiprocessor
  EXPECT_EQ(2 * column_sum_blocks(2048, 4096), 512);  // two tiles of columns
  NormRange ranges[] = {{.begin = 0, .count = 1}, {.begin = 64, .count = 8193}, {.begin = 9000, .count = 8192}};
  EXPECT_EQ(range_blocks(ranges), 4);
  EXPECT_EQ(ranges[1].first_block, 1);
  EXPECT_EQ(ranges[2].first_block, 3);
}

using emulated::Index;

TEST(CudaEmulation, BlocksAndThreadsAreAllVisitedOnce) {
  for (const bool barriers : {false, true})
    for (const bool backwards : {false, true}) {
      std::vector<int> visits(3 * 2 * 4 * 64);
      emulated::run_grid({3, 2, 4}, 64, barriers, backwards, [&] {
        using namespace emulated;
        ++visits[((blockIdx.z * 2 + blockIdx.y) * 3 + blockIdx.x) * 64 + threadIdx.x];
      });
      EXPECT_EQ(std::set<int>(visits.begin(), visits.end()), std::set<int>{1});
    }
}

TEST(CudaEmulation, ABarrierLetsEveryThreadSeeWhatAllWrote) {
  int seen[2] = {};
  for (const bool barrier : {false, true}) {
    std::vector<int> written(64), wrong(64);
    emulated::run_grid({1, 1, 1}, 64, true, false, [&] {
      const unsigned t = emulated::threadIdx.x;
      written[t] = 1;
      if (barrier) emulated::block_barrier();
      if (written[63 - t] != 1) ++seen[barrier];
    });
  }
  EXPECT_EQ(seen[false], 32);  // without the barrier, half of the threads read too early
  EXPECT_EQ(seen[true], 0);
}

TEST(CudaEmulation, LanesExchangeWithTheirPartnersOnly) {
  emulated::run_grid({2, 1, 1}, 96, true, false, [] {
    const unsigned t = emulated::threadIdx.x;
    for (const int distance : {16, 8, 4, 2, 1, 1, 31})
      EXPECT_EQ(emulated::exchange(t, distance), t ^ static_cast<unsigned>(distance));
  });
}

// A block must not find values of another block or of an earlier launch.
TEST(CudaEmulation, SharedMemoryHoldsNoNumbersUntilTheBlockWritesIt) {
  for (const bool barriers : {false, true}) {
    int read_too_early = 0, lost = 0;
    for (int launch = 0; launch < 2; ++launch)
      emulated::run_grid({3, 1, 1}, 64, barriers, false, [&] {
        RINGTRAIN_SHARED(float, values, [64]);
        RINGTRAIN_SHARED(unsigned, whole, );
        const unsigned t = emulated::threadIdx.x;
        read_too_early += std::isnan(values[t]) && (t > 0 || whole == ~0u);
        values[t] = 1;
        whole = t;
        if (barriers) emulated::block_barrier();
        lost += values[t] != 1 || (barriers && whole != 63);
      });
    EXPECT_EQ(read_too_early, 2 * 3 * 64);
    EXPECT_EQ(lost, 0);
  }
}

TEST(CudaEmulation, WhatWouldHangOnAGpuIsAnError) {
  const auto run = [](const std::function<void()>& body) {
    return message([&] { emulated::run_grid({1, 1, 1}, 64, true, false, body); });
  };
  EXPECT_NE(run([] {
              if (emulated::threadIdx.x != 5) emulated::block_barrier();
            }).find("a GPU would hang"),
            std::string::npos);
  EXPECT_NE(run([] {
              if (emulated::threadIdx.x % 2 == 0)
                emulated::block_barrier();
              else
                emulated::exchange(1, 1);
            }).find("a GPU would hang"),
            std::string::npos);
  EXPECT_EQ(run([] { emulated::block_barrier(); }), "");
  EXPECT_NE(message([] { emulated::run_grid({1, 1, 1}, 32, false, false, [] { emulated::block_barrier(); }); }), "");
  EXPECT_NE(message([] { emulated::run_grid({1, 1, 1}, 33, true, false, [] {}); }), "");
}

}  // namespace
}  // namespace ringtrain::cuda
