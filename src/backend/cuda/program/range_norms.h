// Computes squared norms of ranges of a vector on a device. The kernels are in kernels/squared_norms.cuh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/program/base.h"
#include "backend/range_norms.h"

namespace ringtrain::cuda {

class DeviceRangeNorms : public RangeNorms {
 public:
  // `bytes` counts the device memory of this object.
  DeviceRangeNorms(Device& device, std::function<void()> poll, std::span<const ElementRange> ranges,
                   std::shared_ptr<std::int64_t> bytes);
  ~DeviceRangeNorms() override;
  DeviceRangeNorms(const DeviceRangeNorms&) = delete;
  DeviceRangeNorms& operator=(const DeviceRangeNorms&) = delete;

  std::int64_t size() const override { return std::ssize(ranges_); }
  void measure(const Vector& values, std::uintptr_t stream) override;
  void measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t stream) override;
  const double* data() const override { return norms_.data<double>(); }
  void fetch() override;

  // Parts is for a kernel that computes the values itself. The kernel fills `partial` with the sum of squares of each
  // block's chunk, in the program's stream. add_parts() then adds up these sums; data() has the result.
  struct Parts {
    const NormRange* ranges;  // [count], in device memory
    int count;
    double* partial;  // [blocks]
    std::int64_t blocks;
  };
  Parts parts();
  void add_parts(bool add = false);  // add: adds to the present data()
  std::span<const double> values() override;

 private:
  void launch(const Vector& values, Vector* before, bool first, std::uintptr_t stream);
  std::int64_t taken() const { return table_.bytes() + partial_.bytes() + norms_.bytes(); }

  Device& device_;
  std::function<void()> poll_;
  std::vector<NormRange> ranges_;
  std::int64_t end_ = 0, blocks_ = 0;  // end_: the largest end of a range; blocks_: blocks of the first kernel
  DeviceMemory table_, partial_, norms_;
  HostMemory<double> host_;
  std::shared_ptr<std::int64_t> bytes_;
  Stream stream_;    // stream of the newest work
  Event done_ = {};  // happens when the newest work is done
  bool fetched_ = false;
};

class DeviceNormTotal : public NormTotal {
 public:
  DeviceNormTotal(Device& device, std::shared_ptr<std::int64_t> bytes);
  ~DeviceNormTotal() override;
  DeviceNormTotal(const DeviceNormTotal&) = delete;
  DeviceNormTotal& operator=(const DeviceNormTotal&) = delete;
  void add(const RangeNorms& norms, bool first, std::uintptr_t stream) override;
  void store(Vector& values, std::int64_t at, std::uintptr_t stream) override;

 private:
  void launch(const NormTotalArguments& arguments, std::uintptr_t stream);

  Device& device_;
  DeviceMemory total_;  // double
  Event done_;          // happens when the newest work is done
  std::shared_ptr<std::int64_t> bytes_;
};

}  // namespace ringtrain::cuda
