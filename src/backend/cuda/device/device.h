// This folder is the border between the program and a GPU. Device is the interface: memory, streams, events, kernel
// launches, cuDNN's plans, captured graphs and timing. Begin reading here.
//
// Three classes implement it. The runtime device (runtime/device.cpp) calls the CUDA runtime and cuDNN. The described
// device (described.h) plans and counts memory for a GPU that this machine does not have, and executes nothing. The
// device of the tests runs every kernel on the CPU and records every call.
//
// plan_store.h keeps and times the plans of a real GPU. plan_process.h has the process that makes plans for a described
// one. Outside this folder only dnn/plans.cpp, hopper/ and kernels/ include headers of CUDA or cuDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Opaque handles; 0 means "none". The device owns the objects that they name. On a GPU the handle of a stream is its
// cudaStream_t, because NCCL needs it.
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
  std::string uuid;            // names the GPU, or the MIG slice
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;  // all memory of the device
  std::int64_t free_bytes = 0;    // the free part, when the device was made
  std::string cuda_version, cudnn_version;
  GpuSize size() const { return {compute_capability, multiprocessors}; }
};

// This many of cuDNN's plans are timed for an operation, unless the caller asks for another number.
inline constexpr int usual_plan_candidates = 6;

enum class CopyKind { to_device, to_host, on_device };

// Only the thread that made the device may call it. An error of the device throws Error. After an error that leaves the
// device unusable, such as an illegal address, every later call throws too.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceFacts& facts() const = 0;

  // Takes `bytes` of memory, zeroed and aligned to 256 bytes. Throws Error that names `what`, the bytes wanted and the
  // bytes free.
  virtual void* allocate(std::int64_t bytes, const std::string& what) = 0;
  virtual void release(void* memory) = 0;
  virtual void* allocate_host(std::int64_t bytes) = 0;  // page-locked
  virtual void release_host(void* memory) = 0;
  // Page-locks memory that the caller owns, until unpin(). If the machine refuses, copies from and to this memory are
  // only slower. CUDA refuses a copy from or to memory that is pinned in part. Therefore pin() throws Error unless the
  // memory is whole pages (base/pages.h), none of which is pinned already.
  virtual void pin(void* memory, std::int64_t bytes) = 0;
  virtual void unpin(void* memory) = 0;
  virtual std::int64_t allocated_bytes() const = 0;  // held by allocate() at this moment

  virtual Stream compute_stream() = 0;  // the stream of all programs
  virtual Stream make_stream(bool high_priority) = 0;
  virtual Event make_event() = 0;
  virtual Event make_timed_event() = 0;  // an event for seconds_between()
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;  // later work of the stream waits, the host does not
  virtual bool done(Event event) = 0;
  // Returns the seconds between the last records of two timed events, which have both happened.
  virtual double seconds_between(Event begin, Event end) = 0;
  // Blocks until the event has happened. Calls `poll` often while it waits; `poll` may throw.
  virtual void synchronize(Event event, const std::function<void()>& poll) = 0;

  // The copy is asynchronous when the memory on the host is page-locked.
  virtual void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) = 0;
  virtual void zero(void* memory, std::int64_t bytes, Stream stream) = 0;

  virtual void launch(const KernelLaunch& launch, Stream stream) = 0;

  // Returns a plan for this operation. Returns null when there is none; `why` is then the reason in cuDNN's words.
  // Equal operations share one plan.
  virtual const DnnPlan* plan(const DnnOperation& operation, std::string* why = nullptr) = 0;
  // Builds up to `most` plans for each of these operations in their order, so that plan() and tune() find them later.
  // Callers that will time nothing pass 1. Uses several host threads when that helps. They call `stop` before each
  // operation. Once it returns true, no other operation is begun. An empty `stop` never stops.
  virtual void prepare(std::span<const DnnOperation> /*operations*/, int /*most*/,
                       const std::function<bool()>& /*stop*/) {}
  // Returns whether prepare() wants the operations of every way to compute a layer, although nothing is timed.
  virtual bool plans_every_way() const { return false; }
  // Times up to `most` of cuDNN's plans for the operation; plan() returns the fastest of them from then on. Plans that
  // plan() returned before stay valid. Returns the seconds that the timing took. Returns 0 when the device cannot time,
  // or when the choice was made earlier.
  virtual double tune(const DnnOperation& /*operation*/, int /*most*/) { return 0; }
  // packed_plans() returns all plans made so far and all refusals as one text, for a resumed run and for other ranks
  // with the same type of GPU. After take_plans() a plan comes from such a text, and cuDNN is asked only for the
  // operations that the text lacks.
  virtual std::string packed_plans() { return {}; }
  virtual void take_plans(const std::string& /*packed*/) {}
  // `tensors` has one address for each entry of operation.tensors(), in the same order.
  virtual void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) = 0;

  // These functions do the same for recurrent layers.
  virtual const RnnPlan* plan(const RnnOperation& operation, std::string* why = nullptr) = 0;
  virtual void run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) = 0;
  virtual void run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) = 0;

  // Work given to `stream` between these two calls is recorded and does not run. A device without graphs throws Error.
  virtual void begin_capture(Stream stream) = 0;
  virtual CapturedGraph end_capture(Stream stream) = 0;
  virtual void launch(CapturedGraph graph, Stream stream) = 0;

  // Runs `work` in the compute stream, first once without timing it, then at most `repetitions` times. Returns the
  // least device time of a timed run in seconds. That is the time from the begin of the first command to the end of the
  // last one, with the gaps between them. The host's time for queueing the commands does not count, because the device
  // is kept busy until they are queued. Only where `repetitions` is 1 and queueing takes more than 60 us does a part of
  // that time count. `work` does not call time() or tune(). A device that cannot time returns -1.
  virtual double time(const std::function<void(Stream)>& work, int repetitions) = 0;

  // Waits for the work of the compute stream. Returns "" if the device works. After an error that leaves it unusable,
  // returns that error.
  virtual std::string why_unusable() { return {}; }
};

// Returns the bytes of `count` values of type T.
template <class T>
constexpr std::int64_t size_in_bytes(std::int64_t count) {
  return count * static_cast<std::int64_t>(sizeof(T));
}

// Owns memory of a device and releases it in the destructor.
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

// Events that are used again, because a device keeps all that it has made.
class EventPool {
 public:
  explicit EventPool(Device& device) : device_(device) {}

  // Returns an event that was put back, or makes one.
  Event take() {
    if (free_.empty()) return device_.make_event();
    const Event event = free_.back();
    free_.pop_back();
    return event;
  }
  // Nothing may wait for these events any more.
  void put_back(std::initializer_list<Event> events) { free_.insert(free_.end(), events.begin(), events.end()); }

 private:
  Device& device_;
  std::vector<Event> free_;
};

// Fills memory with random numbers before work is timed on it, and queues this work in the stream. Zeros would give
// wrong times: a GPU needs less power for them, so its clock stays higher. The numbers are normally distributed, with a
// standard deviation of 1/8, and repeat after 1 MiB. Read as fp32, they are finite for every `type`.
void fill_random(Device& device, void* memory, std::int64_t bytes, Type type, Stream stream);

}  // namespace ringtrain::cuda
