#include "tests/gpu/gpu.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "backend/cuda/device/libraries.h"
#include "base/clock.h"
#include "base/error.h"
#include "cluster/binding.h"
#include "tests/emulation/faulty_device.h"
#include "tests/emulation/kernel_regions.h"

namespace ringtrain::cuda {
namespace {

std::unique_ptr<Device> the_device;
void* twin = nullptr;  // copy of the memory of the kernels' tests
std::size_t twin_bytes = 0;
double start_seconds = 0;

std::unique_ptr<Device> make_gpu() {
  if (!on_host_device())
    return make_runtime_device(choose_device(session().job(), visible_uuids(), true), variable("RINGTRAIN_PLAN_CACHE"));
  const Fault fault = fault_of_environment();
  // The model of the time lets a search run every way, so that a fault can meet it.
  return std::make_unique<FaultyDevice>(
      HostDeviceOptions{.order = {RunOrder::Kind::latest, 0}, .times = fault.kind != Fault::Kind::none}, fault);
}

}  // namespace

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool on_host_device() {
  return variable("RINGTRAIN_TEST_DEVICE") == "host";
}

std::string no_gpu() {
  return !variable("RINGTRAIN_TEST_DEVICE").empty() || visible_devices() > 0 ? "" : "there is no GPU";
}

Device& gpu() {
  if (the_device) return *the_device;
  const std::string kind = variable("RINGTRAIN_TEST_DEVICE");
  if (!kind.empty() && !on_host_device())
    throw Error(cat("RINGTRAIN_TEST_DEVICE is '", kind, "'; expected 'host', or nothing for a GPU"));
  const double begin = now_seconds();
  the_device = make_gpu();
  start_seconds = now_seconds() - begin;
  return *the_device;
}

void release_gpu() {
  if (twin != nullptr) the_device->release(twin);
  twin = nullptr;
  the_device.reset();
}

double seconds_to_start() {
  return start_seconds;
}

std::string out_file(const std::string& name) {
  const std::string folder = variable("RINGTRAIN_GPU_OUT");
  return folder.empty() ? "" : folder + "/" + name;
}

double setting(const char* name, double otherwise) {
  const std::string text = variable(name);
  return text.empty() ? otherwise : std::strtod(text.c_str(), nullptr);
}

std::string why_gpu_is_unusable() {
  return the_device ? the_device->why_unusable() : "";
}

void run_on_gpu(const KernelLaunch& launch, std::span<std::byte> memory) {
  Device& device = gpu();
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data()), shift = base % 256;
  if (twin_bytes < memory.size() + 256) {
    if (twin != nullptr) device.release(twin);
    twin_bytes = memory.size() + 256;
    twin = device.allocate(static_cast<std::int64_t>(twin_bytes), "memory of the kernels' tests");
  }
  std::byte* const copy = static_cast<std::byte*>(twin) + shift;  // has the alignment of the original
  const auto move = [&](void* address_at) {
    std::uintptr_t address = 0;
    std::memcpy(&address, address_at, sizeof address);
    if (address < base || address >= base + memory.size()) return;
    address = reinterpret_cast<std::uintptr_t>(copy) + (address - base);
    std::memcpy(address_at, &address, sizeof address);
  };
  KernelLaunch moved = launch;
  for (std::size_t i = 0; i + sizeof base <= launch.argument_bytes; i += sizeof base) move(moved.arguments.data() + i);
  std::vector<std::pair<void**, void*>> own_addresses;  // the test's addresses, which are restored at the end
  for (void** at : addresses_in_memory(launch)) {
    own_addresses.emplace_back(at, *at);
    move(at);
  }
  const Stream stream = device.compute_stream();
  const auto bytes = static_cast<std::int64_t>(memory.size());
  const Event end = device.make_event();
  device.copy(copy, memory.data(), bytes, CopyKind::to_device, stream);
  device.record(end, stream);
  device.synchronize(end, [] {});  // the host device reads the places of tensors when it gets the launch
  device.launch(moved, stream);
  device.copy(memory.data(), copy, bytes, CopyKind::to_host, stream);
  device.record(end, stream);
  device.synchronize(end, [] {});
  for (const auto& [at, address] : own_addresses) *at = address;
}

}  // namespace ringtrain::cuda
