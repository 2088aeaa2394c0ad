// A host device with one planted fault, so that checks of a GPU can be tried on a machine without one. The variable
// RINGTRAIN_TEST_FAULT names the fault:
//
//   hang:NAME    A kernel or an operation whose name contains NAME never ends. The call that gives it returns, as on a
//                GPU. The first call that waits for the device does not return.
//   throw:NAME   The call that gives a kernel or an operation whose name contains NAME throws Error. The device stays
//                usable. A way of fusion throws when one of its operations does.
//   lost:N       The N-th command (kernel, operation or graph) has an illegal address. This call and every later one
//                throw Error, so only a new process can go on.
//   plan         No plan of cuDNN can be loaded or built. plan:NAME: none for operations whose name contains NAME.
//
// Names are those of HostDevice's calls: "norm_sums", or an operation's key with " forward" or " backward" for
// recurrent layers.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tests/emulation/host_device.h"

namespace ringtrain::cuda {

struct Fault {
  enum class Kind { none, hang, throws, lost, plan };
  Kind kind = Kind::none;
  std::string name;         // "" fits every name
  std::int64_t number = 0;  // of the command with which the device is lost, from 1
};
// Throws Error when the text is none of the above. "" means no fault.
Fault parse_fault(const std::string& text);
// Reads RINGTRAIN_TEST_FAULT.
Fault fault_of_environment();

class FaultyDevice : public HostDevice {
 public:
  explicit FaultyDevice(HostDeviceOptions options = {}, Fault fault = fault_of_environment())
      : HostDevice(std::move(options)), fault_(std::move(fault)) {}

  void launch(const KernelLaunch& launch, Stream stream) override;
  void launch(CapturedGraph graph, Stream stream) override;
  const DnnPlan* plan(const DnnOperation& operation, std::string* why = nullptr) override;
  const RnnPlan* plan(const RnnOperation& operation, std::string* why = nullptr) override {
    return HostDevice::plan(operation, why);
  }
  void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) override;
  void run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) override;
  void run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) override;
  void begin_capture(Stream stream) override;
  CapturedGraph end_capture(Stream stream) override;

  bool done(Event event) override;
  void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) override;
  void release(void* memory) override;
  double time(const std::function<void(Stream)>& work, int repetitions) override;
  std::string why_unusable() override;
  void finish_all();

 private:
  void command(const std::string& name);  // does what the fault says for this command
  bool fits(Fault::Kind kind, const std::string& name) const {
    return fault_.kind == kind && name.find(fault_.name) != std::string::npos;
  }
  void abandon_capture();
  void wait() const;  // as long as the device hangs, which is for ever

  Fault fault_;
  std::int64_t commands_ = 0;
  Stream captured_stream_;
  bool hangs_ = false, capturing_ = false, capture_hangs_ = false;
  std::set<std::uintptr_t> hanging_graphs_;
};

}  // namespace ringtrain::cuda
