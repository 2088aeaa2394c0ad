// Flat vectors in device memory, and the operations of backend/vector_operations.h on them. `bytes` counts the device
// memory of an object, or the part of it that the device did not allocate.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "backend/vector_operations.h"

namespace ringtrain::cuda {

// Takes the memory from `reduced`, or from the device if its functions are empty.
std::unique_ptr<Vector> make_device_vector(Device& device, std::int64_t size, ReducedMemory reduced,
                                           std::shared_ptr<std::int64_t> bytes);
std::unique_ptr<NormTotal> make_device_norm_total(Device& device, std::shared_ptr<std::int64_t> bytes);
std::unique_ptr<Checksums> make_device_checksums(Device& device, std::function<void()> poll,
                                                 std::span<const ChecksumRange> ranges,
                                                 std::shared_ptr<std::int64_t> bytes);
// Throws Error if cuDNN has no plan for a product.
std::unique_ptr<Orthogonalizer> make_device_orthogonalizer(Device& device, std::function<void()> poll,
                                                           std::span<const MatrixRange> matrices,
                                                           std::shared_ptr<std::int64_t> norm_bytes);

// The newest work of an object that queues work, and the count of the object's memory. The destructor waits for this
// work, because it may still use the memory. So this is the object's last member.
class NewestWork {
 public:
  NewestWork(Device& device, std::shared_ptr<std::int64_t> count, std::int64_t bytes)
      : device_(device), count_(std::move(count)), bytes_(bytes), done_(device.make_event()) {
    *count_ += bytes_;
  }
  NewestWork(const NewestWork&) = delete;
  NewestWork& operator=(const NewestWork&) = delete;
  ~NewestWork();
  void record(Stream stream) { device_.record(done_, stream); }  // the stream has the newest work now
  void wait(const std::function<void()>& poll) const { device_.synchronize(done_, poll); }

 private:
  Device& device_;
  std::shared_ptr<std::int64_t> count_;
  std::int64_t bytes_;
  Event done_;
};

// Computes squared norms of ranges of a vector on a device. The kernels are in kernels/flat.cuh.
class DeviceRangeNorms : public RangeNorms {
 public:
  DeviceRangeNorms(Device& device, std::function<void()> poll, std::span<const ElementRange> ranges,
                   std::shared_ptr<std::int64_t> bytes);
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

  Device& device_;
  std::function<void()> poll_;
  std::vector<NormRange> ranges_;
  std::int64_t end_ = 0, blocks_ = 0;  // end_: the largest end of a range; blocks_: blocks of the first kernel
  DeviceMemory table_, partial_, norms_;
  HostMemory<double> host_;
  Stream stream_;  // stream of the newest work
  bool fetched_ = false;
  NewestWork work_;
};

}  // namespace ringtrain::cuda
