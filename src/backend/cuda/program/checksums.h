// Checksums of ranges on a device; the kernel is in kernels/checksum.cuh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/checksums.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

class DeviceChecksums : public Checksums {
 public:
  // `bytes` counts what it takes on the device.
  DeviceChecksums(Device& device, std::function<void()> poll, std::span<const ChecksumRange> ranges,
                  std::shared_ptr<std::int64_t> bytes);
  ~DeviceChecksums() override;
  DeviceChecksums(const DeviceChecksums&) = delete;
  DeviceChecksums& operator=(const DeviceChecksums&) = delete;

  void start() override;
  std::span<const std::uint64_t> values() override;

 private:
  // Neighbouring ranges of one vector: one launch.
  struct Launch {
    const Vector* values;
    std::size_t first, count;  // ranges
    std::int64_t first_block, blocks;
  };
  std::int64_t taken() const { return table_.bytes() + partial_.bytes(); }

  Device& device_;
  std::function<void()> poll_;
  std::vector<NormRange> ranges_;  // in words; first_block counts from that of the launch
  std::vector<Launch> launches_;
  std::int64_t blocks_;
  DeviceMemory table_, partial_;
  HostMemory<std::uint64_t> host_;  // of the blocks
  std::vector<std::uint64_t> values_;
  std::shared_ptr<std::int64_t> bytes_;
  Event done_;  // when the newest work is done
};

}  // namespace ringtrain::cuda
