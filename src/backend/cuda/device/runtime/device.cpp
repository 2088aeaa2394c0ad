// Implements Device with the CUDA runtime and cuDNN.
#include "backend/cuda/device/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/runtime/runtime.h"
#include "backend/cuda/dnn/plans.h"
#include "backend/cuda/hopper/plans.h"
#include "backend/cuda/kernels/compiled.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pages.h"

namespace ringtrain::cuda {

namespace {

constexpr std::size_t copy_bytes = std::size_t{4} << 20;  // 70 to 160 us by PCI Express; queueing a copy takes 3 us
constexpr int measured_copies = 4;
constexpr int most_copies = 400;

// Keeps a stream busy for a while, so that the host can queue work behind. RuntimeDevice::time() needs this.
//
// The delay is made of copies from page-locked memory. They need no multiprocessor and no kernel of the program. They
// end by themselves, so work that waits for the stream cannot hang.
class Delay {
 public:
  Delay() = default;
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;
  ~Delay() { release(); }

  // Queues copies that take about `seconds` together. The first call takes 4 MiB of memory on the GPU and on the host,
  // and measures how long a copy takes. Throws Error.
  void queue(cudaStream_t stream, double seconds) {
    if (copy_seconds_ == 0) {
      release();  // an earlier start may have failed half-way
      start(stream);
    }
    const double copies = std::min(seconds / copy_seconds_, static_cast<double>(most_copies));
    for (int i = 0; i == 0 || i < copies; ++i) copy(stream);
  }

  void release() {  // ignores errors
    if (device_ != nullptr) cudaFree(std::exchange(device_, nullptr));
    if (host_ != nullptr) cudaFreeHost(std::exchange(host_, nullptr));
    copy_seconds_ = 0;
  }

 private:
  // The host's clock is exact enough here. It includes the host's own calls, so a copy seems to take a little longer.
  void start(cudaStream_t stream) {
    check(cudaHostAlloc(&host_, copy_bytes, cudaHostAllocDefault), "taking page-locked memory");
    std::memset(host_, 0, copy_bytes);
    check(cudaMalloc(&device_, copy_bytes), "taking memory");
    copy(stream);  // the first copy is slow
    check(cudaStreamSynchronize(stream), "delaying a stream");
    const double begin = now_seconds();
    for (int i = 0; i < measured_copies; ++i) copy(stream);
    check(cudaStreamSynchronize(stream), "delaying a stream");
    copy_seconds_ = (now_seconds() - begin) / measured_copies;
  }
  void copy(cudaStream_t stream) {
    check(cudaMemcpyAsync(device_, host_, copy_bytes, cudaMemcpyHostToDevice, stream), "delaying a stream");
  }

  void *host_ = nullptr, *device_ = nullptr;
  double copy_seconds_ = 0;
};

constexpr float most_milliseconds = 500;                   // time() stops repeating its work after this time
constexpr double least_delay = 60e-6, most_delay = 10e-3;  // seconds for which time() keeps the GPU busy

cudaStream_t of(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream.handle);
}
cudaEvent_t of(Event event) {
  return reinterpret_cast<cudaEvent_t>(event.handle);
}
template <class Handle>
std::uintptr_t handle_of(Handle* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

cudaMemcpyKind kind_of(CopyKind kind) {
  return kind == CopyKind::to_device ? cudaMemcpyHostToDevice
         : kind == CopyKind::to_host ? cudaMemcpyDeviceToHost
                                     : cudaMemcpyDeviceToDevice;
}

// Pauses a waiting CPU thread. It polls without a pause at first, then yields, then sleeps for a few microseconds, so
// that other threads get the core.
void pause_after(int tries) {
  if (tries < 200) return;
  if (tries < 2000)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

class RuntimeDevice : public Device {
 public:
  RuntimeDevice(int ordinal, const std::string& plan_cache) {
    check_device(ordinal);
    check(cudaSetDevice(ordinal), "taking the GPU into use");
    facts_ = device_facts(ordinal);
    facts_.cudnn_version = cudnn_version_text();
    check(cudaDeviceGetStreamPriorityRange(&low_priority_, &high_priority_), "asking for stream priorities");
    compute_ = make_stream(false);
    check(cudnn().create(&cudnn_), "starting cuDNN");
    use(compute_);
    const std::filesystem::path folder = plan_folder(plan_cache, facts_.name, facts_.cudnn_version);
    if (const std::string note = note_about_other_versions(folder); !note.empty()) log_info(note);
    plans_ = std::make_unique<PlanStore>(
        *this, make_plan_maker(cudnn_), [ordinal] { return make_plan_maker_of_thread(ordinal); }, folder);
    hopper_plans_ = std::make_unique<hopper::Plans>(facts_.compute_capability);
  }

  // The destructor ignores errors. The call that caused an error has reported it.
  ~RuntimeDevice() override {
    cudaDeviceSynchronize();
    for (const auto graph : graphs_) cudaGraphExecDestroy(graph);  // before the plans, whose kernels they launch
    rnn_plans_.clear();
    plans_.reset();
    delay_.release();
    if (cudnn_ != nullptr) cudnn().destroy(cudnn_);
    for (const auto event : events_) cudaEventDestroy(event);
    for (const auto& [memory, bytes] : memory_) cudaFree(memory);
    for (void* memory : host_memory_) cudaFreeHost(memory);
    for (void* memory : pinned_) cudaHostUnregister(memory);
    for (const auto stream : streams_) cudaStreamDestroy(stream);
  }

  const DeviceFacts& facts() const override { return facts_; }

  void* allocate(std::int64_t bytes, const std::string& what) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (status == cudaErrorMemoryAllocation) throw_out_of_memory(what, bytes, std::source_location::current());
    check(status, "taking memory");
    memory_[memory] = bytes;
    allocated_ += bytes;
    // The program's streams do not wait for the default stream. So the memory must be zero before this function
    // returns.
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), of(compute_)), "zeroing memory");
    check(cudaStreamSynchronize(of(compute_)), "zeroing memory");
    return memory;
  }
  void release(void* memory) override {
    const auto place = memory_.find(memory);
    if (place == memory_.end()) throw Error("this GPU did not allocate the memory that is released");
    allocated_ -= place->second;
    memory_.erase(place);
    cudaFree(memory);  // destructors call this; the next checked call reports an error
  }
  void* allocate_host(std::int64_t bytes) override {
    void* memory = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    check(cudaHostAlloc(&memory, size, cudaHostAllocPortable), "taking page-locked memory");
    host_memory_.insert(memory);
    return memory;
  }
  void release_host(void* memory) override {
    if (host_memory_.erase(memory) > 0) cudaFreeHost(memory);
  }
  void pin(void* memory, std::int64_t bytes) override {
    expect_whole_pages(memory, bytes);
    const cudaError_t status = cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
    if (status == cudaSuccess) {
      pinned_.insert(memory);
      return;
    }
    cudaGetLastError();
    if (status == cudaErrorHostMemoryAlreadyRegistered) check(status, "page-locking memory a second time");
  }
  void unpin(void* memory) override {
    if (pinned_.erase(memory) > 0) cudaHostUnregister(memory);
  }
  std::int64_t allocated_bytes() const override { return allocated_; }

  Stream compute_stream() override { return compute_; }
  Stream make_stream(bool high_priority) override {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? high_priority_ : low_priority_),
          "making a stream");
    streams_.push_back(stream);
    return {handle_of(stream)};
  }
  Event make_event() override { return make_event(cudaEventDisableTiming); }
  Event make_timed_event() override { return make_event(cudaEventDefault); }
  void record(Event event, Stream stream) override {
    check(cudaEventRecord(of(event), of(stream)), "recording an event");
  }
  void wait(Stream stream, Event event) override {
    check(cudaStreamWaitEvent(of(stream), of(event), 0), "making a stream wait");
  }
  bool done(Event event) override {
    const cudaError_t status = cudaEventQuery(of(event));
    if (status == cudaErrorNotReady) return false;
    check(status, "waiting for the GPU's work");
    return true;
  }
  double seconds_between(Event begin, Event end) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, of(begin), of(end)), "timing");
    return static_cast<double>(milliseconds) / 1e3;
  }
  void synchronize(Event event, const std::function<void()>& poll) override {
    for (int tries = 1; !done(event); pause_after(tries++))
      if (poll) poll();
  }

  void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) override {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind_of(kind), of(stream)), "copying");
  }
  void zero(void* memory, std::int64_t bytes, Stream stream) override {
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), of(stream)), "zeroing memory");
  }

  void launch(const KernelLaunch& launch, Stream stream) override {
    const void* kernel = kernel_function(launch.kernel, launch.type);
    const LaunchShape shape = fitted(launch, facts_.size());
    void* arguments[] = {const_cast<std::byte*>(launch.arguments.data())};
    check(cudaLaunchKernel(kernel, dim3(shape.grid_x, shape.grid_y, shape.grid_z), dim3(shape.block), arguments, 0,
                           of(stream)),
          kernel_name(launch.kernel));
  }

  const DnnPlan* plan(const DnnOperation& operation, std::string* why) override {
    if (operation.engine == Engine::hopper) return hopper_plans_->find(operation, why);
    use(compute_);
    return plans_->find(operation, why);
  }
  void prepare(std::span<const DnnOperation> operations, int most, const std::function<bool()>& stop) override {
    use(compute_);
    std::vector<DnnOperation> of_cudnn(operations.begin(), operations.end());
    std::erase_if(of_cudnn, [](const DnnOperation& operation) { return operation.engine == Engine::hopper; });
    plans_->prepare(of_cudnn, most, stop);
  }
  double tune(const DnnOperation& operation, int most) override {
    if (operation.engine == Engine::hopper) return 0;
    use(compute_);
    return plans_->tune(operation, most);
  }
  std::string packed_plans() override { return pack(plans_->packed()); }
  void take_plans(const std::string& packed) override { plans_->take(unpack(packed)); }
  void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) override {
    if (plan.operation().engine == Engine::hopper) return hopper::Plans::run(plan, tensors, workspace, of(stream));
    use(stream);
    static_cast<const CudnnPlan&>(plan).execute(cudnn_, tensors, workspace);
  }

  const RnnPlan* plan(const RnnOperation& operation, std::string* why) override {
    const auto [place, added] = rnn_plans_.try_emplace(operation.key());
    Recurrent& known = place->second;
    if (added) {
      known.why = why_excluded(operation.algorithm);
      use(compute_);
      if (known.why.empty()) known.plan = CudnnRnnPlan::make(*this, cudnn_, compute_, operation, &known.why);
    }
    if (why != nullptr) *why = known.why;
    return known.plan.get();
  }
  void run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) override {
    use(stream);
    check(static_cast<const CudnnRnnPlan&>(plan).forward(cudnn_, arguments), plan.operation().key().c_str());
  }
  void run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) override {
    use(stream);
    check(static_cast<const CudnnRnnPlan&>(plan).backward(cudnn_, arguments), plan.operation().key().c_str());
  }

  // Calls of other threads, such as the loader's page-locking, must be neither recorded nor refused during a capture.
  void begin_capture(Stream stream) override {
    use(stream);  // before the capture, so that it is not recorded
    check(cudaStreamBeginCapture(of(stream), cudaStreamCaptureModeThreadLocal), "beginning to record a graph");
  }
  CapturedGraph end_capture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(of(stream), &graph), "recording a graph");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "preparing a recorded graph");
    graphs_.push_back(executable);
    check(cudaGraphUpload(executable, of(stream)), "preparing a recorded graph");
    return {handle_of(executable)};
  }
  void launch(CapturedGraph graph, Stream stream) override {
    check(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph.handle), of(stream)), "launching a recorded graph");
  }

  double time(const std::function<void(Stream)>& work, int repetitions) override {
    if (begin_.handle == 0) begin_ = make_timed_event();
    if (end_.handle == 0) end_ = make_timed_event();
    work(compute_);  // the first run compiles, loads and warms up
    float least = std::numeric_limits<float>::infinity(), total = 0;
    double delay = least_delay;
    for (int i = 0; i < repetitions; ++i) {
      // On an idle stream the event `begin` would happen at once, and the host's time for queueing would count.
      delay_.queue(of(compute_), delay);
      check(cudaEventRecord(of(begin_), of(compute_)), "timing");
      const double queueing = now_seconds();
      work(compute_);
      check(cudaEventRecord(of(end_), of(compute_)), "timing");
      delay = std::clamp(1.5 * (now_seconds() - queueing), least_delay, most_delay);
      check(cudaEventSynchronize(of(end_)), "timing");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, of(begin_), of(end_)), "timing");
      least = std::min(least, milliseconds);
      if ((total += milliseconds) > most_milliseconds) break;
    }
    return static_cast<double>(least) / 1e3;
  }

  // An error of a single call, such as a refused launch, does not come back here. An illegal address does.
  std::string why_unusable() override {
    cudaGetLastError();
    const cudaError_t status = cudaStreamSynchronize(of(compute_));
    return status == cudaSuccess ? "" : cat(cudaGetErrorName(status), ": ", cudaGetErrorString(status));
  }

 private:
  struct Recurrent {
    std::unique_ptr<CudnnRnnPlan> plan;
    std::string why;
  };

  Event make_event(unsigned flags) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, flags), "making an event");
    events_.push_back(event);
    return {handle_of(event)};
  }

  // Makes cuDNN work in this stream. The call to cuDNN is not free, so it is skipped when the stream is the same.
  void use(Stream stream) {
    if (stream == cudnn_stream_) return;
    check(cudnn().set_stream(cudnn_, of(stream)), "choosing a stream");
    cudnn_stream_ = stream;
  }

  DeviceFacts facts_;
  int low_priority_ = 0, high_priority_ = 0;
  Stream compute_, cudnn_stream_;
  cudnnHandle_t cudnn_ = nullptr;
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<hopper::Plans> hopper_plans_;
  std::map<std::string, Recurrent> rnn_plans_;
  std::map<void*, std::int64_t> memory_;
  std::int64_t allocated_ = 0;
  std::set<void*> host_memory_, pinned_;
  Delay delay_;
  Event begin_, end_;  // of time()
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace

std::unique_ptr<Device> runtime::make_device(int ordinal, const std::string& plan_cache) {
  return std::make_unique<RuntimeDevice>(ordinal, plan_cache);
}

}  // namespace ringtrain::cuda
