// Flat vectors in device memory, and the operations of backend/vector_operations.h on them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "backend/vector_operations.h"

namespace ringtrain::cuda {

// DeviceVector is a flat fp32 vector in device memory.
class DeviceVector : public Vector {
 public:
  DeviceVector(Device& device, std::int64_t size);
  // Takes memory from options.reduced. `reduced_bytes` counts the part of it that the device did not allocate.
  DeviceVector(Device& device, std::int64_t size, const BackendOptions& options,
               std::shared_ptr<std::int64_t> reduced_bytes);
  ~DeviceVector() override;
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;

  float* data() override { return data_; }
  const float* data() const override { return data_; }
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(float)); }
  void wait_for_device();

  Device& device_;
  std::int64_t size_;
  DeviceMemory own_;
  std::function<void(void*)> release_;  // releases reduced memory; may be empty
  std::int64_t elsewhere_ = 0;          // bytes that Device::allocate() did not count
  std::shared_ptr<std::int64_t> reduced_bytes_;
  float* data_ = nullptr;
};

// Computes checksums of ranges of vectors on a device. The kernel is in kernels/flat.cuh.
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

// Computes squared norms of ranges of a vector on a device. The kernels are in kernels/flat.cuh.
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

// This file has Newton-Schulz orthogonalisation on a device. cuDNN computes the products in full fp32. The kernels are
// in kernels/update.cuh.
class DeviceOrthogonalizer : public Orthogonalizer {
 public:
  // Throws Error if cuDNN has no plan for a product. `norm_bytes` counts the device memory of the norms.
  DeviceOrthogonalizer(Device& device, std::function<void()> poll, std::span<const MatrixRange> matrices,
                       std::shared_ptr<std::int64_t> norm_bytes);
  std::int64_t bytes() const override;
  void allocate() override;
  void run(Vector& values) override;

 private:
  struct Products {
    MatrixRange matrix;
    const DnnPlan *gram, *square, *apply;
  };
  Products plan_products(const MatrixRange& matrix) const;
  void orthogonalize(const Products& products, float* x);
  void multiply(const DnnPlan& plan, const float* a, const float* b, float* y);
  void blend(std::int64_t count, float alpha, const float* x, float beta, float* y);

  Device& device_;
  std::function<void()> poll_;
  std::vector<Products> products_;
  std::shared_ptr<std::int64_t> norm_bytes_;
  std::int64_t largest_ = 0, largest_gram_ = 0, workspace_bytes_ = 0;  // elements; elements; bytes
  DeviceMemory product_, gram_, square_, workspace_;
  std::unique_ptr<DeviceRangeNorms> norms_;
};

}  // namespace ringtrain::cuda
