#include "tests/emulation/faulty_device.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/text.h"

namespace ringtrain::cuda {
namespace {

constexpr std::chrono::milliseconds pause{5};  // between two looks at a device that hangs

}  // namespace

Fault parse_fault(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  const Error unknown(cat("RINGTRAIN_TEST_FAULT is '", text, "'"),
                      "Expected hang:NAME, throw:NAME, lost:NUMBER, plan or plan:NAME.");
  if (text.empty()) return {};
  if (kind == "hang" && !rest.empty()) return {Fault::Kind::hang, rest};
  if (kind == "throw" && !rest.empty()) return {Fault::Kind::throws, rest};
  if (kind == "plan") return {Fault::Kind::plan, rest};
  Fault lost{Fault::Kind::lost, ""};
  if (kind != "lost" || !read_number(rest, lost.number) || lost.number < 1) throw unknown;
  return lost;
}

Fault fault_of_environment() {
  return parse_fault(environment_text("RINGTRAIN_TEST_FAULT"));
}

void FaultyDevice::command(const std::string& name) {
  ++commands_;
  if (fits(Fault::Kind::hang, name)) (capturing_ ? capture_hangs_ : hangs_) = true;
  if (fits(Fault::Kind::throws, name)) {
    abandon_capture();
    throw Error(cat("planted fault: ", name, " cannot run"));
  }
  if (fault_.kind == Fault::Kind::lost && commands_ == fault_.number) {
    abandon_capture();
    AddArguments add{};
    add.a = add.b = add.y = reinterpret_cast<void*>(std::uintptr_t{4096});  // nobody has allocated this address
    add.count = 1;
    HostDevice::launch(launch_of(Type::fp32, add), compute_stream());  // throws
  }
}

// The host device releases no memory during a capture, but the destructors that follow an error have to.
void FaultyDevice::abandon_capture() {
  if (std::exchange(capturing_, false)) HostDevice::end_capture(captured_stream_);
}

void FaultyDevice::wait() const {
  while (hangs_) std::this_thread::sleep_for(pause);
}

void FaultyDevice::launch(const KernelLaunch& launch, Stream stream) {
  command(kernel_name(launch.kernel));
  HostDevice::launch(launch, stream);
}

void FaultyDevice::launch(CapturedGraph graph, Stream stream) {
  command("graph");
  if (hanging_graphs_.contains(graph.handle)) hangs_ = true;
  HostDevice::launch(graph, stream);
}

const DnnPlan* FaultyDevice::plan(const DnnOperation& operation, std::string* why) {
  if (!fits(Fault::Kind::plan, operation.key())) return HostDevice::plan(operation, why);
  if (why != nullptr) *why = "planted fault: the plan cannot be loaded";
  return nullptr;
}

void FaultyDevice::run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) {
  command(plan.operation().key());
  HostDevice::run(plan, tensors, workspace, stream);
}

void FaultyDevice::run_forward(const RnnPlan& plan, const RnnForward& arguments, Stream stream) {
  command(plan.operation().key() + " forward");
  HostDevice::run_forward(plan, arguments, stream);
}

void FaultyDevice::run_backward(const RnnPlan& plan, const RnnBackward& arguments, Stream stream) {
  command(plan.operation().key() + " backward");
  HostDevice::run_backward(plan, arguments, stream);
}

void FaultyDevice::begin_capture(Stream stream) {
  HostDevice::begin_capture(stream);
  captured_stream_ = stream;
  capturing_ = true;
  capture_hangs_ = false;
}

CapturedGraph FaultyDevice::end_capture(Stream stream) {
  capturing_ = false;
  const CapturedGraph graph = HostDevice::end_capture(stream);
  if (std::exchange(capture_hangs_, false)) hanging_graphs_.insert(graph.handle);
  return graph;
}

bool FaultyDevice::done(Event event) {
  if (!hangs_) return HostDevice::done(event);
  std::this_thread::sleep_for(pause);
  return false;
}

void FaultyDevice::copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) {
  if (kind == CopyKind::to_host) wait();
  HostDevice::copy(to, from, bytes, kind, stream);
}

void FaultyDevice::release(void* memory) {
  wait();
  HostDevice::release(memory);
}

double FaultyDevice::time(const std::function<void(Stream)>& work, int repetitions) {
  const double seconds = HostDevice::time(work, repetitions);
  wait();
  return seconds;
}

std::string FaultyDevice::why_unusable() {
  wait();
  return HostDevice::why_unusable();
}

void FaultyDevice::finish_all() {
  wait();
  HostDevice::finish_all();
}

}  // namespace ringtrain::cuda
