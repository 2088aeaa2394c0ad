// What programs on a device share: input that is copied while the pass before it runs, the numbers that change from
// pass to pass, the program's own copies of the weights, sums and logits on their way back. A program's constructor
// adds its commands to the schedule:
//
//   forward commands | schedule_.begin_backward() | backward commands | finish()
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/options.h"
#include "backend/cuda/program/schedule.h"
#include "backend/cuda/program/update_places.h"

namespace ringtrain::cuda {

Type type_of(Precision precision);
Math math_of(Precision precision);
inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Page-locked memory of a device, given back at the end.
template <class T>
class HostMemory {
 public:
  HostMemory(Device& device, std::int64_t count)
      : device_(&device), data_(static_cast<T*>(device.allocate_host(count * static_cast<std::int64_t>(sizeof(T))))) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() { device_->release_host(data_); }
  T* data() const { return data_; }

 private:
  Device* device_;
  T* data_;
};

// Small things on their way to the device, in the compute stream: each is written to the next of a few page-locked
// places, so that neither the caller nor a replayed graph waits for the copy.
template <class T>
class UploadRing {
 public:
  UploadRing(Device& device, std::int64_t count_per_place = 1)
      : device_(device), count_(count_per_place), host_(device, places * count_per_place) {
    for (Event& event : copied_) event = device.make_event();
  }
  // `count` of them, at most count_per_place.
  void upload(const T* values, std::int64_t count, void* to, const std::function<void()>& poll) {
    const std::int64_t place = next_++ % places;
    if (next_ > places) device_.synchronize(copied_[place], poll);
    T* from = host_.data() + place * count_;
    std::copy_n(values, count, from);
    const Stream stream = device_.compute_stream();
    device_.copy(to, from, count * static_cast<std::int64_t>(sizeof(T)), CopyKind::to_device, stream);
    device_.record(copied_[place], stream);
  }

 private:
  static constexpr std::int64_t places = 4;
  Device& device_;
  std::int64_t count_;
  HostMemory<T> host_;
  Event copied_[places];
  std::int64_t next_ = 0;
};

// Where the logits lie: fp32 [position][row][stride].
struct LogitsPlace {
  Storage storage = -1;
  std::int64_t classes = 0, stride = 0;
};

class ProgramBase : public Program {
 public:
  ~ProgramBase() override;
  std::int64_t micro_batch() const override { return micro_batch_; }
  std::vector<MemoryItem> memory() const override;
  HostTraffic host_traffic() const override;
  void allocate() override;
  void set_weights(const Vector& weights) override;
  void stage(const PassInput& input) override;
  void stage_again() override;
  void select(int slot) override { schedule_.select(slot); }
  void connect(const PartTraffic& traffic) override { traffic_ = traffic; }
  PartBytes part_bytes() const override { return part_bytes_; }
  void forward(const PassContext& context) override;
  void close_sums() override;
  LossSums take_sums() override;
  void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) override;
  std::vector<float> logits(std::int64_t row, std::int64_t position) const override;

  Type type() const { return type_; }
  // Of a training program whose memory is there: all that set_weights() would fill.
  std::shared_ptr<const std::vector<WeightCopy>> weight_copies() const { return weight_copies_; }

  // ---- For the layers of a program, which add their commands to the schedule.

  Schedule& schedule() { return schedule_; }
  const Schedule& schedule() const { return schedule_; }
  // Adds a forward command that reads the staged symbols or pixels, u8 [micro_batch, input_bytes]. Never captured.
  void add_input_command(std::string name, std::vector<Access> uses,
                         std::function<void(Device&, Stream, const std::uint8_t*)> issue);
  // Adds a command that copies what arrives at an end of a part to `to`, or what leaves it from `from`; the other side
  // is where connect() has said. Never captured.
  void add_arrival(std::string name, Storage to, const std::byte* PartTraffic::*end, std::int64_t PartBytes::*bytes);
  void add_departure(std::string name, Storage from, std::byte* PartTraffic::*end, std::int64_t PartBytes::*bytes);
  // Fills `own` (lasting; T, or fp32) from the flat weights whenever they have changed. Padding stays zero.
  void copy_in(Storage own, bool own_is_fp32, std::vector<TensorPlace> places);
  // Adds a backward command that sets or accumulates the flat gradients of these parameters from `own`.
  void copy_home(std::string name, Storage own, bool own_is_fp32, std::vector<TensorPlace> places,
                 std::vector<std::string> finishes);
  // A command of an inference program that depends on nothing but the weights; runs behind those of copy_in().
  void add_weight_command(Command command) { weight_commands_.push_back(std::move(command)); }

  // While commands are issued.
  float* gradient(const Parameter& parameter) const { return gradients_ + parameter.offset; }
  const StepState* step_state() const { return schedule_.at<const StepState>(state_); }
  const std::int32_t* targets() const { return schedule_.at<const std::int32_t>(targets_); }
  PassSums* sums() const { return schedule_.at<PassSums>(sums_); }

 protected:
  ProgramBase(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
              Precision precision, PassMode mode, int slots);

  // Ends the list of commands: weights' copies, memory, segments.
  void finish();
  // fp32 values of a storage, behind the passes so far. Waits for them.
  std::vector<float> fetch(Storage storage, std::int64_t count) const;

  // Around the forward commands, for what is copied per pass (carried state). Both are called in the compute stream's
  // order; `context.state` may be written until take_sums() has returned.
  virtual void before_forward(const PassContext&) {}
  virtual void after_forward(const PassContext&) {}

  Device& device_;
  const BackendOptions options_;
  const ParameterTable parameters_;
  const std::int64_t micro_batch_, sequence_;
  const Type type_;
  const Math math_;
  const PassMode mode_;
  const bool training_;
  const double offload_stretch_;  // 0: nothing travels
  Schedule schedule_;
  LogitsPlace logits_;  // set by the program

 private:
  struct Staged {
    Storage inputs = -1, targets = -1;
    Event copied = {}, consumed = {};
  };
  struct TensorCopies {
    Storage own, table;
    bool own_is_fp32;
    std::vector<TensorPlace> places;
    std::int64_t blocks;
  };
  TensorCopies make_copies(const std::string& what, Storage own, bool own_is_fp32, std::vector<TensorPlace> places);
  KernelLaunch launch_copies(const TensorCopies& copies, Kernel direction, float* flat, bool accumulate) const;
  std::int64_t input_bytes() const { return micro_batch_ * sample_bytes_; }
  std::int64_t target_count() const { return micro_batch_ * sequence_; }

  const std::int64_t sample_bytes_;  // 0: a part whose values come from the part before
  Stream copy_stream_;
  Staged places_[2];
  std::int64_t staged_ = 0, taken_ = 0;  // passes
  PartTraffic traffic_;
  PartBytes part_bytes_;
  Storage state_, targets_, sums_;
  UploadRing<StepState> state_ring_;
  HostMemory<PassSums> host_sums_;
  HostMemory<float> host_logits_;
  Event finished_, sums_closed_;
  bool closed_ = false;  // close_sums() has been called since take_sums()
  std::vector<std::unique_ptr<TensorCopies>> copies_in_, copies_home_;
  std::vector<Command> weight_commands_;
  std::shared_ptr<const std::vector<WeightCopy>> weight_copies_;
  float* gradients_ = nullptr;      // of the pass under way
  const float* weights_ = nullptr;  // last set
  DeviceMemory memory_;
  std::unique_ptr<HostMemory<std::byte>> offloaded_;
};

}  // namespace ringtrain::cuda
