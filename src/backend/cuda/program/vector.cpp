#include "backend/cuda/program/vector.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

DeviceVector::DeviceVector(Device& device, std::int64_t size)
    : device_(device), size_(size), own_(device, bytes(), "a flat vector"), data_(own_.data<float>()) {}

DeviceVector::DeviceVector(Device& device, std::int64_t size, const BackendOptions& options,
                           std::shared_ptr<std::int64_t> reduced_bytes)
    : device_(device), size_(size), release_(options.reduced.release), reduced_bytes_(std::move(reduced_bytes)) {
  const std::int64_t before = device.allocated_bytes();
  data_ = static_cast<float*>(options.reduced.allocate(bytes()));
  elsewhere_ = std::max<std::int64_t>(0, bytes() - (device.allocated_bytes() - before));
  *reduced_bytes_ += elsewhere_;
  device_.zero(data_, bytes(), device_.compute_stream());
}

DeviceVector::~DeviceVector() {
  try {
    wait_for_device();
  } catch (const Error&) {  // the device is lost, and the next call to it reports that
  }
  if (reduced_bytes_ == nullptr) return;
  *reduced_bytes_ -= elsewhere_;
  if (release_) release_(data_);
}

// Waits for the compute stream, because its work may still use the vector.
void DeviceVector::wait_for_device() {
  const Event finished = device_.make_event();
  device_.record(finished, device_.compute_stream());
  device_.synchronize(finished, {});
}

}  // namespace ringtrain::cuda
