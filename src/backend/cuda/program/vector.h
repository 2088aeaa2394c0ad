// DeviceVector is a flat fp32 vector in device memory.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/program/options.h"

namespace ringtrain::cuda {

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

}  // namespace ringtrain::cuda
