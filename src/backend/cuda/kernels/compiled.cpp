#include "backend/cuda/kernels/compiled.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/rounding.h"

namespace ringtrain::cuda {
namespace {

struct Recorded {
  const char* kernel;
  const char* type;
  int compute_capability, registers, shared_bytes;
};
constexpr Recorded recorded[] = {
#include "kernel_resources.inc"
};

struct Multiprocessor {
  int threads, blocks, shared_bytes;
};
// The numbers are from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
Multiprocessor multiprocessor(int compute_capability) {
  switch (compute_capability) {
    case 86:
      return {1536, 16, 100 << 10};
    case 87:
      return {1536, 16, 164 << 10};
    case 89:
    case 120:
    case 121:
      return {1536, 24, 100 << 10};
    default:
      return {2048, 32, (compute_capability < 90 ? 164 : 228) << 10};
  }
}

constexpr int registers_per_partition = 16384, partitions = 4, register_unit = 256, warp_threads = 32;
constexpr int shared_unit = 128, shared_of_system = 1024;

struct Resources {
  int registers = 64, shared_bytes = 0;  // the values for a kernel that is not in the table
};
constexpr std::size_t kernel_count = static_cast<std::size_t>(Kernel::count);
constexpr int compiled_for[] = {80, 90, 100};
using Table = std::array<std::array<std::array<Resources, 3>, kernel_count>, std::size(compiled_for)>;

Table read_table() {
  Table table{};
  for (const Recorded& row : recorded)
    for (std::size_t code = 0; code < std::size(compiled_for); ++code)
      for (std::size_t kernel = 0; kernel < kernel_count; ++kernel)
        for (const Type type : {Type::fp32, Type::bf16, Type::fp16})
          if (row.compute_capability == compiled_for[code] && std::strcmp(row.type, type_name(type)) == 0 &&
              std::strcmp(row.kernel, kernel_name(static_cast<Kernel>(kernel))) == 0)
            table[code][kernel][static_cast<std::size_t>(type)] = {row.registers, row.shared_bytes};
  return table;
}

// Returns the index of the newest code that this GPU can run.
std::size_t code_for(int compute_capability) {
  std::size_t code = 0;
  while (code + 1 < std::size(compiled_for) && compiled_for[code + 1] <= compute_capability) ++code;
  return code;
}

}  // namespace

int blocks_per_multiprocessor(int compute_capability, int threads, int registers, int shared_bytes) {
  const Multiprocessor m = multiprocessor(compute_capability);
  const int warps = (threads + warp_threads - 1) / warp_threads;
  int blocks = std::min(m.blocks, m.threads / (warps * warp_threads));
  if (registers > 0) {
    const int of_warp = round_up(registers * warp_threads, register_unit);
    // CUDA refuses a launch when its warps, rounded up to whole rounds over the partitions, need more registers than
    // there are.
    if (of_warp * round_up(warps, partitions) > partitions * registers_per_partition) return 0;
    blocks = std::min(blocks, partitions * (registers_per_partition / of_warp) / warps);
  }
  return std::min(blocks, m.shared_bytes / round_up(shared_bytes + shared_of_system, shared_unit));
}

std::int64_t resident_blocks(const GpuSize& gpu, Kernel kernel, Type type, unsigned threads) {
  static const Table table = read_table();
  const Resources& r =
      table[code_for(gpu.compute_capability)][static_cast<std::size_t>(kernel)][static_cast<std::size_t>(type)];
  const int each =
      blocks_per_multiprocessor(gpu.compute_capability, static_cast<int>(threads), r.registers, r.shared_bytes);
  return std::int64_t{std::max(each, 1)} * std::max(gpu.multiprocessors, 1);
}

std::int64_t whole_waves(std::int64_t resident, std::int64_t wanted, std::int64_t others, std::int64_t most) {
  if (most * others <= resident) return std::max<std::int64_t>(most, 1);
  const std::int64_t first = std::max<std::int64_t>(1, (wanted * others + resident / 2) / resident);
  std::int64_t best = 1;
  double best_filled = 0;
  // Blocks in y and z may leave a part of the last wave empty. With more waves that part is smaller.
  for (std::int64_t waves = first; waves < first + 8; ++waves) {
    const std::int64_t x = std::clamp<std::int64_t>(waves * resident / others, 1, most);
    const std::int64_t blocks = x * others, taken = (blocks + resident - 1) / resident * resident;
    const double filled = static_cast<double>(blocks) / static_cast<double>(taken);
    if (filled > best_filled) {
      best = x;
      best_filled = filled;
    }
    if (best_filled >= 0.95) break;
  }
  return best;
}

LaunchShape fitted(const KernelLaunch& launch, const GpuSize& gpu) {
  LaunchShape shape = launch.shape;
  if (shape.most_x == 0) return shape;
  const std::int64_t resident = resident_blocks(gpu, launch.kernel, launch.type, shape.block);
  shape.grid_x = static_cast<unsigned>(
      whole_waves(resident, shape.grid_x, std::int64_t{shape.grid_y} * shape.grid_z, shape.most_x));
  return shape;
}

}  // namespace ringtrain::cuda
