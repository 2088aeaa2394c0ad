// One GPU as the program sees it. Behind it stand the CUDA runtime and cuDNN (runtime/device.cpp), a GPU that is only
// described (described.h: plans and memory, no execution) and, in tests, a device on the CPU that runs every kernel
// and records every call. Nothing outside this folder and cluster/nccl* includes a CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/dnn/rnn.h"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Opaque handles; 0 is none. The device owns what they name. A stream's handle on a GPU is its cudaStream_t: NCCL is
// given it.
struct Stream {
  std::uintptr_t handle = 0;
  bool operator==(const Stream&) const = default;
};
struct Event {
  std::uintptr_t handle = 0;
};
struct CapturedGraph {
  std::uintptr_t handle = 0;
};

struct DeviceFacts {
  std::string name;            // "NVIDIA H200"
  std::string uuid;            // of the GPU, or of its MIG slice
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;  // of the whole device
  std::int64_t free_bytes = 0;    // when it was asked
  std::string cuda_version, cudnn_version;
  GpuSize size() const { return {compute_capability, multiprocessors}; }
};

// How many of cuDNN's plans of an operation are timed unless somebody asks otherwise.
inline constexpr int usual_plan_candidates = 6;

enum class CopyKind { to_device, to_host, on_device };

// All calls are for the one thread that made the device. Errors of the device throw Error; one that leaves the device
// unusable (an illegal address) makes every later call throw too.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;

  // 256-byte aligned, zeroed. Throws Error naming `what`, the bytes wanted and the bytes free.
  virtual void* allocate(std::int64_t bytes, const std::string& what) = 0;
  virtual void release(void* memory) = 0;
  virtual void* allocate_host(std::int64_t bytes) = 0;  // page-locked
  virtual void release_host(void* memory) = 0;
  // Page-locks memory that somebody else owns until unpin(); where the machine refuses that, copies are merely slower.
  // Throws Error unless these are whole pages (base/pages.h), none of which is pinned already: a copy from or to memory
  // that is pinned in part is refused.
  virtual void pin(void* memory, std::int64_t bytes) = 0;
  virtual void unpin(void* memory) = 0;
  virtual std::int64_t allocated_bytes() const = 0;  // by allocate(), now

  virtual Stream compute_stream() = 0;  // the program's
  virtual Stream make_stream(bool high_priority) = 0;
  virtual Event make_event() = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;  // later work of the stream waits; the host does not
  virtual bool done(Event event) = 0;
  // Blocks until the event has happened. `poll` is called often meanwhile and may throw.
  virtual void synchronize(Event event, const std::function<void()>& poll) = 0;

  // Asynchronous in the stream where the host side is page-locked.
  virtual void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) = 0;
  virtual void zero(void* memory, std::int64_t bytes, Stream stream) = 0;

  virtual void launch(const KernelLaunch& launch, Stream stream) = 0;

  // A cuDNN plan for this operation, or null when there is none: `why` then says so in cuDNN's words. Plans of equal
  // operations are made once.
  virtual const DnnPlan* plan(const DnnOperation& operation, std::string* why = nullptr) = 0;
  // Builds up to `most` plans of each of these operations, on several host threads where that helps; plan() and tune()
  // find them afterwards. 1 where nothing will be timed.
  virtual void prepare(std::span<const DnnOperation> /*operations*/, int /*most*/) {}
  // Times up to `most` of cuDNN's plans of the operation and keeps the fastest for plan(). Returns the seconds of
  // device time that this took: 0 where the device cannot time, or where the answer is kept from before. A plan that
  // plan() gave before stays valid; plan() gives the fastest from now on.
  virtual double tune(const DnnOperation& /*operation*/, int /*most*/) { return 0; }
  // All plans so far, and what was refused: for other ranks with the same kind of GPU, and for a resumed run. plan()
  // then takes what fits instead of asking cuDNN.
  virtual std::string packed_plans() { return {}; }
  virtual void take_plans(const std::string& /*packed*/) {}
  // `tensors`: one address per entry of operation.tensors(), in that order.
  virtual void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) = 0;

  // The same for recurrent layers.
  virtual const RnnPlan* plan(const RnnOperation& operation, std::string* why = nullptr) = 0;
  virtual void run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) = 0;
  virtual void run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) = 0;

  // Work given to `stream` between the two is recorded, not run. A device without graphs throws.
  virtual void begin_capture(Stream stream) = 0;
  virtual CapturedGraph end_capture(Stream stream) = 0;
  virtual void launch(CapturedGraph graph, Stream stream) = 0;

  // Seconds of device time of `work` in the stream, the least of `repetitions`; a device that cannot time returns -1.
  virtual double time(const std::function<void(Stream)>& work, int repetitions) = 0;
};

// Memory of a device, given back at the end.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device& device, std::int64_t bytes, const std::string& what)
      : device_(&device), data_(bytes > 0 ? device.allocate(bytes, what) : nullptr), bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) device_->release(data_);
  }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(DeviceMemory& other) {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// Device `ordinal` of those that CUDA_VISIBLE_DEVICES leaves. Loads the driver, cuDNN and the plans of `plan_cache` (a
// folder; "" = none). Throws Error with advice where there is no driver, no such device or no cuDNN.
std::unique_ptr<Device> make_runtime_device(int ordinal, const std::string& plan_cache);
// How many devices this process sees; 0 without a driver.
int visible_devices();
// Their uuids (of a MIG slice: the slice's) in order of their ordinals, asked without taking any of them into use.
std::vector<std::string> visible_uuids();

}  // namespace ringtrain::cuda
