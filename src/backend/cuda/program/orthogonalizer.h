// This file has Newton-Schulz orthogonalisation on a device. cuDNN computes the products in full fp32. The kernels are
// in kernels/orthogonalize.cuh.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/program/range_norms.h"
#include "backend/orthogonalizer.h"

namespace ringtrain::cuda {

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
