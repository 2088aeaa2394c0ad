// Computes checksums of ranges of vectors on a device. The kernel is in kernels/checksum.cuh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/checksums.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

class DeviceChecksums : public Checksums {
 public:
  // `bytes` counts the device memory of this object.
  DeviceChecksums(Device& device, std::function<void()> poll, std::span<const ChecksumRange> ranges,
                  std::shared_ptr<std::int64_t> bytes);
  ~DeviceChecksums() override;
  DeviceChecksums(const DeviceChecksums&) = delete;
  DeviceChecksums& operator=(const DeviceChecksums&) = delete;

  void start() override;
  std::span<const std::uint64_t> values() override;

 private:
  // One launch computes consecutive ranges of the same vector.
  struct Launch {
    const Vector* values;
    std::size_t first, count;  // ranges
    std::int64_t first_block, blocks;
  };
  std::int64_t taken() const { return table_.bytes() + partial_.bytes(); }

  Device& device_;
  std::function<void()> poll_;
  std::vector<NormRange> ranges_;  // in words; first_block counts from the first block of the launch
  std::vector<Launch> launches_;
  std::int64_t blocks_;
  DeviceMemory table_, partial_;
  HostMemory<std::uint64_t> host_;  // partial sums of the blocks
  std::vector<std::uint64_t> values_;
  std::shared_ptr<std::int64_t> bytes_;
  Event done_;  // happens when the newest work is done
};

}  // namespace ringtrain::cuda
