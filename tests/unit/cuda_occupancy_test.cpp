// Compares the number of blocks that a GPU holds with CUDA's own rules, and tests grids of whole waves.
#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "backend/cuda/kernels/compiled.h"
#include "backend/cuda/kernels/tiles.h"
#include "cuda_kernels.h"
#include "tests/unit/recorded_rows.h"
#include "tests/unit/repository.h"

#if __has_include(<cuda_occupancy.h>)
#include <cuda_occupancy.h>
#define RINGTRAIN_HAS_CUDA_OCCUPANCY 1
#endif

namespace ringtrain::cuda {
namespace {

#ifdef RINGTRAIN_HAS_CUDA_OCCUPANCY
// The numbers of a GPU, from "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
struct Kind {
  int major, minor, threads, shared_of_multiprocessor, shared_of_block;
};

int blocks_by_cuda(const Kind& kind, int threads, int registers, int shared_bytes) {
  cudaOccDeviceProp device;
  std::memset(static_cast<void*>(&device), 0, sizeof device);
  device.computeMajor = kind.major;
  device.computeMinor = kind.minor;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = kind.threads;
  device.regsPerBlock = device.regsPerMultiprocessor = 65536;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 << 10;
  device.sharedMemPerMultiprocessor = static_cast<std::size_t>(kind.shared_of_multiprocessor);
  device.numSms = 132;
  device.sharedMemPerBlockOptin = static_cast<std::size_t>(kind.shared_of_block);
  device.reservedSharedMemPerBlock = 1024;
  cudaOccFuncAttributes function;
  std::memset(static_cast<void*>(&function), 0, sizeof function);
  function.maxThreadsPerBlock = INT_MAX;
  function.numRegs = registers;
  function.sharedSizeBytes = static_cast<std::size_t>(shared_bytes);
  function.partitionedGCConfig = PARTITIONED_GC_OFF;
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_DEFAULT;
  function.maxDynamicSharedSizeBytes = INT_MAX;
  const cudaOccDeviceState state;
  cudaOccResult result{};
  EXPECT_EQ(cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, 0), CUDA_OCC_SUCCESS);
  return result.activeBlocksPerMultiprocessor;
}

TEST(CudaOccupancy, BlocksOfAMultiprocessorAreThoseOfCudasRules) {
  for (const Kind& kind : {Kind{8, 0, 2048, 164 << 10, 163 << 10}, Kind{8, 6, 1536, 100 << 10, 99 << 10},
                           Kind{8, 9, 1536, 100 << 10, 99 << 10}, Kind{9, 0, 2048, 228 << 10, 227 << 10},
                           Kind{10, 0, 2048, 228 << 10, 227 << 10}, Kind{12, 0, 1536, 100 << 10, 99 << 10}})
    for (const int threads : {32, 96, 160, 256, 512, 1024})
      for (int registers = 16; registers <= 255; registers += 7)
        for (const int shared : {0, 64, 257, 8448, 16384, 24576, 48 << 10})
          ASSERT_EQ(blocks_per_multiprocessor(10 * kind.major + kind.minor, threads, registers, shared),
                    blocks_by_cuda(kind, threads, registers, shared))
              << kind.major << '.' << kind.minor << ", " << threads << " threads, " << registers << " registers, "
              << shared << " bytes";
}
#endif

TEST(CudaOccupancy, ARegisterMoreCanCostABlock) {
  EXPECT_EQ(blocks_per_multiprocessor(90, 256, 80, 24576), 3);
  EXPECT_EQ(blocks_per_multiprocessor(90, 256, 81, 24576), 2);
  EXPECT_EQ(blocks_per_multiprocessor(90, 256, 32, 0), 8);
  EXPECT_EQ(blocks_per_multiprocessor(90, 256, 32, 40 << 10), 5);
  EXPECT_EQ(blocks_per_multiprocessor(80, 256, 32, 40 << 10), 4);
}

// The table that is compiled in must equal the recorded one, row by row.
TEST(CudaOccupancy, KernelsTakeWhatTheRecordedTableSays) {
  std::ifstream file(repository() / recorded_folder / "kernel_resources.csv");
  if (!file) GTEST_SKIP() << "the record is not in this folder; RINGTRAIN_ROOT names the repository";
  int checked = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string kernel, type, sm, registers, skipped, shared;
    if (!std::getline(fields, kernel, ',') || !std::getline(fields, type, ',') || !std::getline(fields, sm, ',') ||
        !std::getline(fields, registers, ','))
      continue;
    for (int i = 0; i < 3; ++i) std::getline(fields, skipped, ',');
    std::getline(fields, shared, ',');
    for (int k = 0; k < static_cast<int>(Kernel::count); ++k)
      for (const Type t : all_types) {
        if (kernel != kernel_name(static_cast<Kernel>(k)) || type != type_name(t)) continue;
        const int capability = std::stoi(sm);
        ASSERT_EQ(resident_blocks({capability, 7}, static_cast<Kernel>(k), t, 256),
                  7 * blocks_per_multiprocessor(capability, 256, std::stoi(registers), std::stoi(shared)))
            << line;
        ++checked;
      }
  }
  EXPECT_GT(checked, 3 * static_cast<int>(Kernel::count));
}

TEST(CudaOccupancy, GridsAreWholeWaves) {
  // The sums of a norm's backward pass on an H200 once ran 512 blocks where 396 fit, so that a second wave had 116.
  EXPECT_EQ(whole_waves(396, 396, 1, 100'000), 396);
  EXPECT_EQ(whole_waves(396, 512, 1, 100'000), 396);
  EXPECT_EQ(whole_waves(396, 2048, 1, 100'000), 5 * 396);
  EXPECT_EQ(whole_waves(396, 4, 8, 100), 49);  // 49 x 8 = 392 of the 396 blocks
  EXPECT_EQ(whole_waves(396, 10, 1, 25), 25) << "less work than one wave: all of it at once";
  EXPECT_EQ(whole_waves(396, 1, 500, 1), 1);
  for (const std::int64_t resident : {12, 132, 396, 1056, 1184})
    for (const std::int64_t others : {1, 2, 7, 8, 64, 256, 1000})
      for (const std::int64_t wanted : {1, 40, 700})
        for (const std::int64_t most : {1, 3, 50, 10'000}) {
          const std::int64_t x = whole_waves(resident, wanted, others, most);
          ASSERT_GE(x, 1);
          ASSERT_LE(x, most);
          if (most < 10'000) continue;
          const double blocks = static_cast<double>(x * others),
                       waves = std::ceil(blocks / static_cast<double>(resident));
          EXPECT_GE(blocks / (waves * static_cast<double>(resident)), 0.8)
              << resident << ' ' << others << ' ' << wanted;
        }
}

TEST(CudaOccupancy, TheSumsOfANormRunOneWaveOfEachGpu) {
  for (const GpuSize gpu : {GpuSize{90, 132}, GpuSize{80, 108}, GpuSize{100, 148}})
    for (const Kernel kernel : {Kernel::norm_sums, Kernel::norm_backward_sums}) {
      const std::int64_t resident = resident_blocks(gpu, kernel, Type::bf16, tile_threads);
      for (const int groups : {1, 2, 8}) {  // the largest map of ResNet-50, of 32 samples
        const std::int64_t large = std::int64_t{groups} * norm_blocks(gpu, kernel, Type::bf16, 401'408, groups, 64);
        EXPECT_LE(large, resident);
        EXPECT_GT(large, resident - groups);
      }
      // In the smallest map a thread has at least four rows.
      EXPECT_LE(norm_blocks(gpu, kernel, Type::bf16, 1568, 1, 2048), 392);
    }
}

// Kernels that walk over their data give the same bits with any grid, so the device may choose the grid.
TEST(CudaOccupancy, AFittedGridGivesTheSameBits) {
  TestMemory memory;
  constexpr std::int64_t rows = 10'007;
  constexpr int channels = 72;
  const Array x = memory.array(Type::bf16, rows * channels).normal(1),
              bias = memory.array(Type::fp32, channels).normal(2);
  const Array y = memory.array(Type::bf16, rows * channels), other_y = memory.array(Type::bf16, rows * channels);
  ActivateArguments a{x.data, bias.floats(), y.data, nullptr, rows, channels, true};
  memory.run_once(launch_of(Type::bf16, a));
  a.y = other_y.data;
  KernelLaunch launch = launch_of(Type::bf16, a);
  const unsigned planned = launch.shape.grid_x;
  const auto expect_same_bits = [&] {
    other_y.fill(0);
    memory.run_once(launch);
    EXPECT_EQ(std::memcmp(y.data, other_y.data, static_cast<std::size_t>(rows * channels * 2)), 0)
        << launch.shape.grid_x << " blocks";
  };
  for (const unsigned blocks : {1u, 7u, launch.shape.most_x}) {
    launch.shape.grid_x = blocks;
    expect_same_bits();
  }
  for (const int multiprocessors : {1, 3, 10, 132}) {
    launch.shape.grid_x = planned;
    launch.shape = fitted(launch, {90, multiprocessors});
    const auto resident = static_cast<double>(resident_blocks({90, multiprocessors}, launch.kernel, launch.type, 256));
    const double waves = launch.shape.grid_x / resident;
    EXPECT_TRUE(waves <= 1 || waves / std::ceil(waves) > 0.9) << waves << " waves";
    expect_same_bits();
  }
  AddArguments add{};
  add.count = 1000;
  launch = launch_of(Type::fp32, add);
  EXPECT_EQ(fitted(launch, {}).grid_x, launch.shape.grid_x) << "a thread has one octet, so the grid stays as it is";
}

}  // namespace
}  // namespace ringtrain::cuda
