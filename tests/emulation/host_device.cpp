#include "tests/emulation/host_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/kernels/compiled.h"
#include "base/error.h"
#include "base/pages.h"
#include "tests/emulation/emulated_kernels.h"
#include "tests/emulation/kernel_regions.h"
#include "tests/emulation/reference_dnn.h"
#include "tests/emulation/reference_rnn.h"

namespace ringtrain::cuda {

namespace {

constexpr std::int64_t guard_bytes = 256;  // before and after an allocation
constexpr int unreadable = 0xff;           // NaN in every type

std::uintptr_t number(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

template <class Map>
bool inside(const Map& map, const void* memory, std::int64_t bytes, auto bytes_of_entry) {
  auto at = map.upper_bound(number(memory));
  if (at == map.begin()) return false;
  --at;
  return number(memory) + static_cast<std::uintptr_t>(bytes) <=
         at->first + static_cast<std::uintptr_t>(bytes_of_entry(at->second));
}

// Returns whether any of the bytes lies in one of the ranges of `map`.
bool touches(const std::map<std::uintptr_t, std::int64_t>& map, const void* memory, std::int64_t bytes) {
  auto at = map.lower_bound(number(memory) + static_cast<std::uintptr_t>(bytes));
  if (at == map.begin()) return false;
  --at;
  return at->first + static_cast<std::uintptr_t>(at->second) > number(memory);
}

template <class... Values>
std::vector<std::byte> bytes_of_values(const Values&... values) {
  std::vector<std::byte> result;
  const auto append = [&](const auto& value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    result.insert(result.end(), begin, begin + sizeof value);
  };
  (append(values), ...);
  return result;
}

// The model that HostDeviceOptions::times describes.
double model_seconds(const std::vector<Region>& regions, double operations) {
  double bytes = 0;
  for (const Region& region : regions) bytes += static_cast<double>(region.bytes);
  return 3e-6 + std::max(bytes / 4e12, operations / 5e14);
}

std::int64_t some_workspace(const std::string& key) {
  return static_cast<std::int64_t>(64 * (1 + std::hash<std::string>()(key) % 97));
}

}  // namespace

struct HostDevice::Plan final : DnnPlan {
  DnnOperation described;
  std::int64_t workspace;
  explicit Plan(const DnnOperation& op) : described(op), workspace(some_workspace(op.key())) {}
  const DnnOperation& operation() const override { return described; }
  std::int64_t workspace_bytes() const override { return workspace; }
  std::string engine() const override { return "loops"; }
};

struct HostDevice::RecurrentPlan final : RnnPlan {
  RnnOperation described;
  std::vector<RnnWeight> layout;
  explicit RecurrentPlan(const RnnOperation& op) : described(op), layout(weight_layout(op)) {}
  const RnnOperation& operation() const override { return described; }
  std::int64_t weight_bytes() const override { return weight_elements(described) * bytes_of(described.type); }
  std::int64_t workspace_bytes() const override { return some_workspace(described.key()); }
  std::int64_t reserve_bytes() const override { return reserve_elements(described) * 4; }
  const std::vector<RnnWeight>& weights() const override { return layout; }
};

HostDevice::HostDevice(HostDeviceOptions options) : options_(std::move(options)), queues_(options_.order) {
  facts_ = {"host", "host-0", 90, 4, options_.memory_bytes, options_.memory_bytes, "0", "0"};
  queues_.add_stream();
  clocks_.emplace_back();
}

HostDevice::~HostDevice() {
  for (const auto& [at, allocation] : allocations_) std::free(reinterpret_cast<char*>(at) - guard_bytes);
  for (const auto& [at, bytes] : host_allocations_) std::free(reinterpret_cast<void*>(at));
}

// ---- Memory --------------------------------------------------------------------------------------------------------

void* HostDevice::allocate(std::int64_t bytes, const std::string& what) {
  check_usable();
  forbid_in_capture("an allocation");
  if (bytes <= 0) throw Error(cat(what, ": an allocation of ", bytes, " bytes"));
  if (allocated_ + bytes > options_.memory_bytes)
    throw Error(cat(what, " wants ", bytes, " bytes, ", options_.memory_bytes - allocated_, " are free"));
  const std::int64_t rounded = (bytes + 255) / 256 * 256;
  auto* base = static_cast<char*>(std::aligned_alloc(256, static_cast<std::size_t>(rounded + 2 * guard_bytes)));
  std::memset(base, unreadable, static_cast<std::size_t>(rounded + 2 * guard_bytes));
  char* memory = base + guard_bytes;
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  allocations_[number(memory)] = {what, bytes};
  allocated_ += bytes;
  return memory;
}

void HostDevice::release(void* memory) {
  forbid_in_capture("a release");
  const auto at = allocations_.find(number(memory));
  if (at == allocations_.end()) throw Error("release of memory that is not allocated");
  if (broken_.empty()) {  // a broken device has thrown its error already
    finish_all();         // cudaFree waits in the same way
    check_guards();
  }
  races_.forget(memory, at->second.bytes);
  allocated_ -= at->second.bytes;
  allocations_.erase(at);
  std::free(static_cast<char*>(memory) - guard_bytes);
}

void* HostDevice::allocate_host(std::int64_t bytes) {
  check_usable();
  const std::int64_t rounded = std::max<std::int64_t>((bytes + 255) / 256 * 256, 256);
  void* memory = std::aligned_alloc(256, static_cast<std::size_t>(rounded));
  std::memset(memory, unreadable, static_cast<std::size_t>(rounded));  // cudaHostAlloc promises no values
  host_allocations_[number(memory)] = bytes;
  return memory;
}

void HostDevice::release_host(void* memory) {
  if (broken_.empty()) finish_all();
  if (host_allocations_.erase(number(memory)) == 0) throw Error("release of host memory that is not allocated");
  std::free(memory);
}

std::int64_t HostDevice::host_bytes() const {
  std::int64_t sum = 0;
  for (const auto& [at, bytes] : host_allocations_) sum += bytes;
  return sum;
}

void HostDevice::pin(void* memory, std::int64_t bytes) {
  expect_whole_pages(memory, bytes);
  if (touches(pinned_, memory, bytes) || touches(host_allocations_, memory, bytes))
    throw Error("memory is pinned twice");
  pinned_.emplace(number(memory), bytes);
}

void HostDevice::unpin(void* memory) {
  if (broken_.empty()) finish_all();
  if (pinned_.erase(number(memory)) == 0) throw Error("memory is unpinned that was not pinned");
}

bool HostDevice::pinned(const void* memory, std::int64_t bytes) const {
  const auto whole = [](std::int64_t b) { return b; };
  return inside(host_allocations_, memory, bytes, whole) || inside(pinned_, memory, bytes, whole);
}

bool HostDevice::owned(const Region& region) const {
  return inside(allocations_, region.begin, region.bytes, [](const Allocation& a) { return a.bytes; });
}

void HostDevice::check_addresses(const Call& call) {
  for (const Region& region : call.regions)
    if (!owned(region) && !pinned(region.begin, region.bytes)) {
      broken_ = cat(call.name, ": illegal address, ", region.bytes, " bytes at ", region.begin, " to ",
                    region.write ? "write" : "read", " lie in no allocation");
      throw Error(broken_);
    }
}

void HostDevice::check_usable() const {
  if (!broken_.empty()) throw Error(cat("the device is unusable since an earlier error: ", broken_));
}

void HostDevice::check_guards() const {
  for (const auto& [at, allocation] : allocations_) {
    const auto* memory = reinterpret_cast<const unsigned char*>(at);
    const auto intact = [](unsigned char byte) { return byte == unreadable; };
    if (!std::all_of(memory - guard_bytes, memory, intact) ||
        !std::all_of(memory + allocation.bytes, memory + allocation.bytes + guard_bytes, intact))
      throw Error(cat("something wrote before or after '", allocation.what, "' of ", allocation.bytes, " bytes"));
  }
}

void HostDevice::finish_all() {
  queues_.finish_all();
  for (const Clock& clock : clocks_) host_knows(clock);
}

void HostDevice::poison(const std::vector<Region>& memory, Stream stream) {
  give_work(stream, "poison", memory, [memory] {
    for (const Region& region : memory)
      std::memset(const_cast<void*>(region.begin), unreadable, static_cast<std::size_t>(region.bytes));
  });
}

void HostDevice::poison(void* memory, std::int64_t bytes) {
  finish_all();
  poison({{memory, bytes, true}}, compute_stream());
  finish_all();
}

// ---- Streams and events ---------------------------------------------------------------------------------------------

std::size_t HostDevice::index(Stream stream) const {
  if (stream.handle == 0 || stream.handle > clocks_.size()) throw Error("a stream that this device did not make");
  return stream.handle - 1;
}

HostDevice::EventState& HostDevice::state(Event event) {
  if (event.handle == 0 || event.handle > events_.size()) throw Error("an event that this device did not make");
  return events_[event.handle - 1];
}

void HostDevice::forbid_in_capture(const char* what) const {
  if (capturing_) throw Error(cat(what, " during a capture"));
}

Stream HostDevice::make_stream(bool) {
  check_usable();
  queues_.add_stream();
  clocks_.emplace_back();
  return {clocks_.size()};
}

Event HostDevice::make_event() {
  check_usable();
  events_.emplace_back();
  return {events_.size()};
}

void HostDevice::record(Event event, Stream stream) {
  check_usable();
  const std::size_t s = index(stream);
  if (capturing_ && s == capture_stream_) throw Error("an event is recorded in a stream that is being captured");
  Call call{Call::Kind::record, s, "record", {}, {}, event.handle};
  if (lost(call)) return;
  calls_.push_back(std::move(call));
  join(clocks_[s], host_);
  state(event) = {queues_.record(s), clocks_[s]};
}

void HostDevice::wait(Stream stream, Event event) {
  check_usable();
  const std::size_t s = index(stream);
  if (capturing_ && s == capture_stream_) throw Error("a stream that is being captured waits for an event");
  Call call{Call::Kind::wait, s, "wait", {}, {}, event.handle};
  Clock known = clocks_[s];
  join(known, host_);
  Clock then = known;
  join(then, state(event).clock);
  call.adds_order = then != known;
  if (lost(call)) return;
  calls_.push_back(std::move(call));
  join(clocks_[s], state(event).clock);
  queues_.wait(s, state(event).latest);
}

bool HostDevice::done(Event event) {
  check_usable();
  forbid_in_capture("a query of an event");
  const EventState& e = state(event);
  if (e.latest != nullptr && !e.latest->happened) queues_.advance(*e.latest);
  if (e.latest != nullptr && !e.latest->happened) return false;
  host_knows(e.clock);
  return true;
}

double HostDevice::seconds_between(Event begin, Event end) {
  check_usable();
  const auto &from = state(begin).latest, &to = state(end).latest;
  if (from == nullptr || to == nullptr || !from->happened || !to->happened)
    throw Error("the time between events that have not happened");
  return to->seconds - from->seconds;
}

void HostDevice::synchronize(Event event, const std::function<void()>& poll) {
  forbid_in_capture("a wait of the host");
  if (poll) poll();
  while (!done(event))
    if (poll) poll();
}

// ---- Work -----------------------------------------------------------------------------------------------------------

void HostDevice::enqueue(std::size_t s, const std::vector<Node>& nodes) {
  for (const Node& node : nodes) {
    Clock& clock = clocks_[s];
    if (clock.size() <= s) clock.resize(s + 1, 0);
    join(clock, host_);
    ++clock[s];
    if (options_.check_races) {
      const std::string race = races_.access(s, clock, node.name, node.regions);
      if (!race.empty()) throw Error(cat("race: ", race));
    }
    queues_.give(
        s, [this, node] { run(node); }, node.ready);
  }
}

void HostDevice::run(const Node& node) {
  check_usable();
  try {
    options_.isolate_commands ? run_isolated(node) : node.work();
  } catch (const std::exception& error) {
    if (node.of_device) broken_ = error.what();
    throw;
  }
}

void HostDevice::run_isolated(const Node& node) const {
  // Calls body(region, the region's offset in this allocation, the region's bytes).
  const auto for_each_region = [&](std::uintptr_t at, const Allocation& allocation, auto body) {
    for (const Region& region : node.regions)
      if (number(region.begin) >= at && number(region.begin) < at + static_cast<std::uintptr_t>(allocation.bytes))
        body(region, static_cast<std::size_t>(number(region.begin) - at), static_cast<std::size_t>(region.bytes));
  };
  std::map<std::uintptr_t, std::vector<char>> before;
  for (const auto& [at, allocation] : allocations_) {
    auto* memory = reinterpret_cast<char*>(at);
    std::vector<char>& kept = before[at];
    kept.assign(memory, memory + allocation.bytes);
    std::memset(memory, unreadable, kept.size());
    for_each_region(at, allocation, [&](const Region&, std::size_t offset, std::size_t bytes) {
      std::memcpy(memory + offset, kept.data() + offset, bytes);
    });
  }
  node.work();
  for (const auto& [at, allocation] : allocations_) {
    auto* memory = reinterpret_cast<char*>(at);
    std::vector<char>& kept = before[at];
    std::vector<char> expected(kept.size(), static_cast<char>(unreadable));
    for (const bool written : {false, true})
      for_each_region(at, allocation, [&](const Region& region, std::size_t offset, std::size_t bytes) {
        if (region.write != written) return;
        if (written) std::memcpy(kept.data() + offset, memory + offset, bytes);
        std::memcpy(expected.data() + offset, kept.data() + offset, bytes);
      });
    if (std::memcmp(expected.data(), memory, kept.size()) != 0)
      throw Error(cat(node.name, " writes to '", allocation.what, "' where it should not"));
    std::memcpy(memory, kept.data(), kept.size());
  }
}

void HostDevice::give(Call call, std::function<void()> work, std::function<bool()> ready) {
  check_usable();
  if (lost(call)) return;
  check_addresses(call);
  if (call.seconds == 0) call.seconds = model_seconds(call.regions, 0);
  Node node{call.name, call.regions, std::move(work), call.kind != Call::Kind::other, std::move(ready)};
  if (capturing_ && call.stream == capture_stream_) {
    call.captured = true;
    capture_.calls.push_back(std::move(call));
    capture_.nodes.push_back(std::move(node));
    return;
  }
  const std::size_t stream = call.stream;
  seconds_ += call.seconds;
  calls_.push_back(std::move(call));
  enqueue(stream, {node});
}

void HostDevice::copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, Stream stream) {
  const std::size_t s = index(stream);
  const bool captured = capturing_ && s == capture_stream_;
  const char* name = kind == CopyKind::to_device ? "copy to device"
                     : kind == CopyKind::to_host ? "copy to host"
                                                 : "copy";
  const auto size = static_cast<std::size_t>(bytes);
  Call call{Call::Kind::copy, s, name, bytes_of_values(to, from, bytes), {{from, bytes, false}, {to, bytes, true}}};
  if (kind == CopyKind::on_device) return give(std::move(call), [=] { std::memmove(to, from, size); });
  const bool in = kind == CopyKind::to_device;
  if (pinned(in ? from : to, bytes)) return give(std::move(call), [=] { std::memcpy(to, from, size); });
  const void* host = in ? from : to;
  if (touches(pinned_, host, bytes) || touches(host_allocations_, host, bytes))
    throw Error(cat(name, ": ", bytes, " bytes at ", host, " lie in page-locked memory in part"));
  if (captured) throw Error("a copy from or to pageable memory during a capture");
  // CUDA has read or written pageable memory when the call returns.
  call.regions = {in ? Region{to, bytes, true} : Region{from, bytes, false}};
  if (!in) {
    give(std::move(call), [=] { std::memcpy(to, from, size); });
    queues_.finish(s);
    host_knows(clocks_[s]);
    return;
  }
  std::vector<char> staged(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  give(std::move(call), [to, staged = std::move(staged)] { std::memcpy(to, staged.data(), staged.size()); });
}

void HostDevice::give_work(Stream stream, const std::string& name, std::vector<Region> regions,
                           std::function<void()> work, std::function<bool()> ready) {
  give({Call::Kind::other, index(stream), name, {}, std::move(regions)}, std::move(work), std::move(ready));
}

void HostDevice::zero(void* memory, std::int64_t bytes, Stream stream) {
  give({Call::Kind::zero, index(stream), "zero", bytes_of_values(memory, bytes), {{memory, bytes, true}}},
       [=] { std::memset(memory, 0, static_cast<std::size_t>(bytes)); });
}

void HostDevice::launch(const KernelLaunch& launch, Stream stream) {
  const std::byte* begin = launch.arguments.data();
  Call call{Call::Kind::kernel,
            index(stream),
            kernel_name(launch.kernel),
            {begin, begin + launch.argument_bytes},
            regions_of(launch)};
  KernelLaunch on_this_device = launch;
  on_this_device.shape = fitted(launch, facts_.size());
  give(std::move(call), [on_this_device] { run_emulated(on_this_device); });
}

const DnnPlan* HostDevice::plan(const DnnOperation& operation, std::string* why) {
  std::string refused = options_.refuse_dnn ? options_.refuse_dnn(operation) : "";
  if (!refused.empty()) {
    if (why != nullptr) *why = std::move(refused);
    return nullptr;
  }
  auto& plan = plans_[operation.key()];
  if (plan != nullptr) return plan.get();
  forbid_in_capture("a new plan");
  plan = std::make_unique<Plan>(operation);
  return plan.get();
}

void HostDevice::run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, Stream stream) {
  const DnnOperation& op = plan.operation();
  Call call{Call::Kind::dnn, index(stream), op.key(), {}, regions_of(op, tensors)};
  call.seconds = model_seconds(call.regions, op.flops());
  const std::int64_t bytes = plan.workspace_bytes();
  call.regions.push_back({workspace, bytes, true});
  const std::vector<DnnTensor> described = op.tensors();
  float alpha = 1;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool scalar = described[i].role == DnnRole::alpha;
    if (scalar) alpha = *static_cast<const float*>(tensors[i]);
    const std::vector<std::byte> value = scalar ? bytes_of_values(alpha) : bytes_of_values(tensors[i]);
    call.arguments.insert(call.arguments.end(), value.begin(), value.end());
  }
  const std::vector<std::byte> last = bytes_of_values(workspace);
  call.arguments.insert(call.arguments.end(), last.begin(), last.end());
  give(std::move(call), [op, alpha, workspace, bytes, given = std::vector<void*>(tensors.begin(), tensors.end())] {
    std::memset(workspace, unreadable, static_cast<std::size_t>(bytes));
    compute(op, given, alpha);
  });
}

const RnnPlan* HostDevice::plan(const RnnOperation& operation, std::string* why) {
  std::string refused = why_excluded(operation.algorithm);
  if (refused.empty() && options_.refuse_rnn) refused = options_.refuse_rnn(operation);
  if (!refused.empty()) {
    if (why != nullptr) *why = std::move(refused);
    return nullptr;
  }
  auto& plan = recurrent_plans_[operation.key()];
  if (plan != nullptr) return plan.get();
  forbid_in_capture("a new plan");
  plan = std::make_unique<RecurrentPlan>(operation);
  return plan.get();
}

void HostDevice::run_forward(const RnnPlan& plan, const RnnForward& a, Stream stream) {
  const RnnOperation& op = plan.operation();
  give({Call::Kind::rnn_forward, index(stream), op.key() + " forward", bytes_of_values(a), regions_of(plan, a)},
       [op, a, bytes = plan.workspace_bytes()] {
         std::memset(a.workspace, unreadable, static_cast<std::size_t>(bytes));
         forward(op, a);
       });
}

void HostDevice::run_backward(const RnnPlan& plan, const RnnBackward& a, Stream stream) {
  const RnnOperation& op = plan.operation();
  give({Call::Kind::rnn_backward, index(stream), op.key() + " backward", bytes_of_values(a), regions_of(plan, a)},
       [op, a, bytes = plan.workspace_bytes()] {
         std::memset(a.workspace, unreadable, static_cast<std::size_t>(bytes));
         backward(op, a);
       });
}

// ---- Graphs ---------------------------------------------------------------------------------------------------------

void HostDevice::begin_capture(Stream stream) {
  check_usable();
  forbid_in_capture("a capture");
  capture_stream_ = index(stream);
  calls_.push_back({Call::Kind::begin_capture, capture_stream_, "begin capture", {}, {}});
  capturing_ = true;
  capture_ = {};
}

CapturedGraph HostDevice::end_capture(Stream stream) {
  check_usable();
  if (!capturing_ || index(stream) != capture_stream_) throw Error("the end of a capture that was not begun");
  capturing_ = false;
  const std::uintptr_t handle = graphs_.size() + 1;
  graphs_[handle] = std::move(capture_);
  calls_.push_back({Call::Kind::end_capture, capture_stream_, "end capture", {}, {}, handle});
  return {handle};
}

void HostDevice::launch(CapturedGraph graph, Stream stream) {
  check_usable();
  const auto found = graphs_.find(graph.handle);
  if (found == graphs_.end()) throw Error("a graph that was not captured");
  const std::size_t s = index(stream);
  if (capturing_ && s == capture_stream_) throw Error("a graph is launched during a capture");
  Call call{Call::Kind::graph, s, "graph", {}, {}, graph.handle};
  if (lost(call)) return;
  calls_.push_back(std::move(call));
  for (const Call& inside_graph : found->second.calls) seconds_ += inside_graph.seconds;
  enqueue(s, found->second.nodes);
}

double HostDevice::time(const std::function<void(Stream)>& work, int) {
  check_usable();
  forbid_in_capture("timing");
  if (!options_.times) return -1;
  finish_all();
  const double before = seconds_;
  work(compute_stream());
  finish_all();
  return seconds_ - before;
}

std::string HostDevice::why_unusable() {
  if (broken_.empty()) try {
      finish_all();
    } catch (const std::exception& error) {
      if (broken_.empty()) return error.what();
    }
  return broken_;
}

std::vector<Call> HostDevice::flat_calls() const {
  std::vector<Call> result;
  for (const Call& call : calls_) {
    if (call.kind == Call::Kind::graph) {
      const std::vector<Call>& inside_graph = graphs_.at(call.handle).calls;
      result.insert(result.end(), inside_graph.begin(), inside_graph.end());
    } else if (call.kind != Call::Kind::begin_capture && call.kind != Call::Kind::end_capture) {
      result.push_back(call);
    }
  }
  return result;
}

}  // namespace ringtrain::cuda
