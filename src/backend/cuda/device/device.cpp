#include "backend/cuda/device/device.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <vector>

#include "base/random.h"
#include "base/small_floats.h"

namespace ringtrain::cuda {
namespace {

constexpr std::int64_t block_bytes = std::int64_t{1} << 20;
constexpr double deviation = 0.125;

std::vector<std::byte> make_block(Type type) {
  std::vector<std::byte> block(static_cast<std::size_t>(block_bytes));
  const auto size = static_cast<std::size_t>(bytes_of(type));
  for (std::size_t i = 0; i < block.size() / size; ++i) {
    const auto value = static_cast<float>(deviation * random_normal(1, i));
    const std::uint16_t half = type == Type::bf16 ? to_bf16(value) : to_fp16(value);
    std::memcpy(block.data() + size * i, type == Type::fp32 ? static_cast<const void*>(&value) : &half, size);
  }
  return block;
}

const std::vector<std::byte>& block_of(Type type) {
  static std::map<Type, std::vector<std::byte>> blocks;
  std::vector<std::byte>& block = blocks[type];
  if (block.empty()) block = make_block(type);
  return block;
}

}  // namespace

// Each copy on the device doubles the part that is filled, so a GiB takes ten of them.
void fill_random(Device& device, void* memory, std::int64_t bytes, Type type, Stream stream) {
  if (bytes <= 0) return;
  auto* const begin = static_cast<std::byte*>(memory);
  std::int64_t filled = std::min(bytes, block_bytes);
  device.copy(begin, block_of(type).data(), filled, CopyKind::to_device, stream);
  for (std::int64_t more = 0; filled < bytes; filled += more) {
    more = std::min(filled, bytes - filled);
    device.copy(begin + filled, begin, more, CopyKind::on_device, stream);
  }
}

}  // namespace ringtrain::cuda
