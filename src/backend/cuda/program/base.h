// This folder contains what all programs on a GPU share, and the optimizer's update. A program is a list of commands in
// a Schedule (schedule.h), which plans their memory and captures them as graphs. ProgramBase, below, stages input,
// keeps the program's own copies of the weights, and returns sums and logits. FusionTable (fusion.h) chooses what is
// fused. Updater (update.h) runs the update. Begin with schedule.h, then read this header.
//
// The constructor of a program adds its commands in this order:
//
//   forward commands | schedule_.begin_backward() | backward commands | finish()
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/program/fusion.h"
#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// BackendOptions holds the options with which programs for a device are compiled.
struct BackendOptions {
  bool graphs = true;                 // capture segments and replay them
  std::int64_t segment_elements = 0;  // elements of the flat vector between ends of segments; 0: one segment
  std::int64_t least_offload = std::int64_t{1} << 20;  // bytes; memory.offload moves no smaller activation
  FusionTable* fusions = nullptr;                      // compile() fills it; null: the backend has a table of its own
  ReducedMemory reduced = {};                          // registered with NCCL
  std::function<void()> poll = {};  // called while the host waits for the device; reports errors of other ranks
};

// These are the places that the update's kernel processes. A place is a piece of the flat vector inside one
// range. If the program has a copy of this piece, the place names the copy, and the kernel writes both.

// Describes a program's own copy of a tensor.
struct WeightCopy {
  TensorPlace place;  // own_offset counts from `own`
  void* own = nullptr;
  bool own_is_fp32 = true;
};

// Returns places that cover every element of the ranges once. Throws Error when a copy does not lie inside one range
// (its tensor is not trained, for example), or when two copies overlap.
std::vector<UpdatePlace> update_places(std::span<const UpdateRange> ranges, std::span<const WeightCopy> copies);

Type type_of(Precision precision);
Math math_of(Precision precision);

// Owns page-locked memory and releases it in the destructor.
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

// Blocks until the present work of the stream is done. `event` is recorded to that end.
inline void wait_for(Device& device, Stream stream, Event event, const std::function<void()>& poll) {
  device.record(event, stream);
  device.synchronize(event, poll);
}

// Copies small values to the device in the compute stream. Each upload uses the next of four page-locked places. The
// host therefore waits only for the copy from four uploads earlier.
template <class T>
class UploadRing {
 public:
  UploadRing(Device& device, std::int64_t count_per_place = 1)
      : device_(device), count_(count_per_place), host_(device, places * count_per_place) {
    for (Event& event : copied_) event = device.make_event();
  }
  // Copies `count` values, at most count_per_place.
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

// Holds the place of the logits: fp32 [position][row][stride].
struct LogitsPlace {
  Storage storage = -1;
  std::int64_t classes = 0, stride = 0;
};

class ProgramBase : public Program {
 public:
  ~ProgramBase() override;
  std::int64_t micro_batch() const override { return micro_batch_; }
  std::vector<MemoryItem> memory() const override;
  HostTraffic host_traffic() const override { return schedule_.host_traffic(); }
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
  // Returns the copies of the weights that set_weights() fills. They are known after allocate().
  std::shared_ptr<const std::vector<WeightCopy>> weight_copies() const { return weight_copies_; }

  // ---- The layers of a program call these functions to add their commands.

  Schedule& schedule() { return schedule_; }
  const Schedule& schedule() const { return schedule_; }
  // Adds a forward command that reads the staged symbols or pixels, u8 [micro_batch, input_bytes]. The command is never
  // captured.
  void add_input_command(std::string name, std::vector<Access> uses,
                         std::function<void(Device&, Stream, const std::uint8_t*)> issue);
  // These functions are for a part of a model. They add a command that copies `bytes` of received data to a new buffer,
  // or one that copies `from` to the data that will be sent. connect() sets the other addresses. The commands are never
  // captured.
  Storage add_activations_in(std::int64_t bytes);
  void add_activations_out(Storage from);
  Storage add_gradients_in(std::int64_t bytes);
  void add_gradients_out(Storage from);
  // Adds the loss of the logits of all targets, and in training their gradient: a new buffer with this name, which is
  // returned. `top5`: also counts the targets among the five largest. `bytes` is as in Command.
  Storage add_loss(std::string name, const CrossEntropy& node, const LogitsPlace& logits, const std::string& gradient,
                   bool top5, double bytes = 0);
  // Adds y = dropout(x) for `units` values at each position. The backward pass does the same with the gradient. x may
  // be y.
  void add_dropout(std::string name, const Dropout& node, std::int64_t units, Storage x, Storage y);
  // Adds the gradient of a bias: the sums of the columns of dy [rows, stride].
  void add_bias_gradient(const std::string& name, const Parameter& bias, Storage dy, std::int64_t rows,
                         std::int64_t stride);
  // Fills `own` from the flat weights whenever they have changed. `own` is a lasting storage in type() or fp32. Its
  // padding stays zero.
  void copy_in(Storage own, bool own_is_fp32, std::vector<TensorPlace> places);
  // Adds a backward command that copies the gradients of these parameters from `own` to the flat vector. The command
  // sets them or adds to them.
  void copy_home(std::string name, Storage own, bool own_is_fp32, std::vector<TensorPlace> places,
                 std::vector<std::string> finishes);
  // Adds a command of an inference program that depends only on the weights. It runs after the copies of copy_in().
  void add_weight_command(Command command) { weight_commands_.push_back(std::move(command)); }

  // These addresses are valid while commands are issued.
  float* gradient(const Parameter& parameter) const { return gradients_ + parameter.offset; }
  const StepState* step_state() const { return schedule_.at<const StepState>(state_); }

 protected:
  ProgramBase(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
              Precision precision, PassMode mode, int slots);

  // Ends the list of commands: adds the copies of the weights and plans memory and segments.
  void finish();
  // Returns fp32 values of a storage after the passes so far; waits for those passes.
  std::vector<float> fetch(Storage storage, std::int64_t count) const;

  // Called before the forward commands, in the order of the compute stream. A program copies there what changes per
  // pass, such as carried state. `context.state` may be written until take_sums() has returned.
  virtual void before_forward(const PassContext&) {}

  Device& device_;
  const BackendOptions options_;
  const ParameterTable parameters_;
  const std::int64_t micro_batch_, sequence_;
  const Type type_;
  const Math math_;
  const PassMode mode_;
  const bool training_;
  const double offload_stretch_;  // 0: no activation is offloaded
  Schedule schedule_;

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
  void add_arrival(std::string name, Storage to, const std::byte* PartTraffic::*end, std::int64_t PartBytes::*bytes);
  void add_departure(std::string name, Storage from, std::byte* PartTraffic::*end, std::int64_t PartBytes::*bytes);
  TensorCopies make_copies(const std::string& what, Storage own, bool own_is_fp32, std::vector<TensorPlace> places);
  KernelLaunch launch_copies(const TensorCopies& copies, Kernel direction, float* flat, bool accumulate) const;
  // Copies the values to `host`, which is page-locked, and returns them.
  std::vector<float> fetch(const float* values, std::int64_t count, float* host) const;
  std::int64_t input_bytes() const { return micro_batch_ * sample_bytes_; }
  std::int64_t target_count() const { return micro_batch_ * sequence_; }
  PassSums* sums() const { return schedule_.at<PassSums>(sums_); }

  const std::int64_t sample_bytes_;  // 0: the input is the output of the previous part of the model
  Stream copy_stream_;
  Staged places_[2];
  std::int64_t staged_ = 0, taken_ = 0;  // passes that were staged, and passes that forward() has begun
  PartTraffic traffic_;
  PartBytes part_bytes_;
  Storage state_, targets_, sums_;
  UploadRing<StepState> state_ring_;
  HostMemory<PassSums> host_sums_;
  LogitsPlace logits_;
  HostMemory<float> host_logits_;
  Event finished_, sums_closed_;
  bool closed_ = false;                               // close_sums() has been called after the last take_sums()
  std::deque<TensorCopies> copies_in_, copies_home_;  // commands refer to them
  std::vector<Command> weight_commands_;
  std::shared_ptr<const std::vector<WeightCopy>> weight_copies_;
  float* gradients_ = nullptr;      // gradients of the current pass
  const float* weights_ = nullptr;  // the argument of the last set_weights()
  DeviceMemory memory_;
  std::unique_ptr<HostMemory<std::byte>> offloaded_;
};

// Chooses the number of samples of a pass on a device when the experiment does not name it.

// Returns a lower bound of the memory of a training program per sample. It counts values that the backward pass reads
// again.
std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision);

// Returns the largest divisor of demand.rows that is a multiple of demand.group and whose programs fit into `room`
// bytes. When none fits, returns the smallest; the allocation then throws an error that names what is missing.
// `program_bytes` compiles programs, and cuDNN needs seconds for that. It is therefore called from the largest size
// down, and only for sizes whose lower bound fits.
std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t room, std::int64_t least_bytes_per_sample,
                                 const std::function<std::int64_t(std::int64_t samples)>& program_bytes);

}  // namespace ringtrain::cuda
