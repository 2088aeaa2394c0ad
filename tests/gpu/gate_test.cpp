// The first tests on an unknown GPU. They say in seconds whether CUDA, cuDNN, graphs and this program's kernels work at
// all. Each step prints a line `gate: STEP: MILLISECONDS ms, VALUE`. The step is printed before it begins, so the last
// line shows where a process hangs.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/plan_store.h"
#include "backend/cuda/dnn/plans.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "tests/emulation/reference_dnn.h"
#include "tests/emulation/typed_memory.h"
#include "tests/gpu/compared_operation.h"
#include "tests/gpu/compared_recurrent.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

class Step {
 public:
  explicit Step(const std::string& name) {
    std::printf("gate: %s: ", name.c_str());
    std::fflush(stdout);
  }
  ~Step() {
    if (!ended_) end("failed");
  }
  double milliseconds() const { return 1e3 * (now_seconds() - begin_); }
  void end(const std::string& value = "works") {
    std::printf("%.1f ms, %s\n", milliseconds(), value.c_str());
    std::fflush(stdout);
    ended_ = true;
  }

 private:
  double begin_ = now_seconds();
  bool ended_ = false;
};

void say(const std::string& what, const std::string& value) {
  std::printf("gate: %s: %s\n", what.c_str(), value.c_str());
  std::fflush(stdout);
}

void wait_for_device() {
  const Event end = gpu().make_event();
  gpu().record(end, gpu().compute_stream());
  gpu().synchronize(end, [] {});
}

// Names the libraries of NVIDIA that this process has opened since the last call, with their paths.
void say_new_libraries() {
  static std::set<std::string> said;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find('/');
    if (at == std::string::npos) continue;
    const std::string path = line.substr(at), file = std::filesystem::path(path).filename().string();
    for (const char* name : {"libcuda", "libcudnn", "libcublas", "libnvrtc", "libnccl", "libnvJitLink", "libnvidia",
                             "libringtrain-hopper"})
      if (file.starts_with(name) && said.insert(path).second) say("library", path);
  }
}

std::string driver_text() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  return std::getline(file, line) ? line : "/proc/driver/nvidia/version cannot be read";
}

TEST(GpuGate, Facts) {
  const DeviceFacts& facts = gpu().facts();
  constexpr double mib = 1048576;
  say("device", facts.name);
  say("uuid", facts.uuid);
  say("compute capability", cat(facts.compute_capability / 10, ".", facts.compute_capability % 10));
  say("multiprocessors", cat(facts.multiprocessors));
  say("memory", cat(static_cast<double>(facts.memory_bytes) / mib, " MiB, ",
                    static_cast<double>(facts.free_bytes) / mib, " MiB free"));
  say("CUDA", facts.cuda_version);
  say("cuDNN", facts.cudnn_version);
  say("start of CUDA and cuDNN", cat(1e3 * seconds_to_start(), " ms"));
  EXPECT_GT(facts.multiprocessors, 0);
  EXPECT_GT(facts.free_bytes, 0);
  if (on_host_device()) return say("driver and libraries", "not asked for, the host device has none");
  say("driver", driver_text());
  Step nccl("NCCL");
  try {
    nccl.end(library_file(nccl_library()));
  } catch (const Error& error) {  // NCCL is for several ranks, so the gate does not need it
    nccl.end(cat("does not open: ", error.what()));
  }
  say_new_libraries();
}

// Machines without this GPU make plans for the recorded description.
TEST(GpuGate, Description) {
  if (on_host_device()) return say("description", "skipped, cuDNN describes no host device");
  Step step("description");
  const auto read = nlohmann::json::parse(describe_gpu(0));
  EXPECT_EQ(read.at("multiProcessorCount").get<int>(), gpu().facts().multiprocessors);
  const std::string file = out_file("device.json");
  if (!file.empty()) {
    std::ofstream out(file);
    out << read.dump(1) << "\n";
    EXPECT_TRUE(out.good()) << file << " cannot be written";
  }
  step.end(file.empty() ? "not written, RINGTRAIN_GPU_OUT is not set" : file);
}

// Memory of the device and page-locked memory of the host, each with `count` floats.
struct Floats {
  explicit Floats(std::int64_t count)
      : bytes(4 * count),
        on_device(gpu(), bytes, "memory of the gate"),
        on_host(static_cast<float*>(gpu().allocate_host(bytes)), static_cast<std::size_t>(count)) {}
  ~Floats() { gpu().release_host(on_host.data()); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  void fill(float first) {
    for (std::size_t i = 0; i < on_host.size(); ++i) on_host[i] = first + static_cast<float>(i % 1000);
    gpu().copy(on_device.data(), on_host.data(), bytes, CopyKind::to_device, gpu().compute_stream());
    wait_for_device();
  }
  void fetch() {
    gpu().copy(on_host.data(), on_device.data(), bytes, CopyKind::to_host, gpu().compute_stream());
    wait_for_device();
  }
  // Returns how many elements differ from factor (first + i % 1000), which fp32 holds exactly.
  std::int64_t wrong(float factor, float first) const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < on_host.size(); ++i)
      count += on_host[i] != factor * (first + static_cast<float>(i % 1000));
    return count;
  }
  std::int64_t count() const { return bytes / 4; }

  std::int64_t bytes;
  DeviceMemory on_device;
  std::span<float> on_host;
};

void add(const Floats& a, const Floats& b, const Floats& y) {
  const AddArguments arguments{a.on_device.data(), b.on_device.data(), y.on_device.data(), y.count()};
  gpu().launch(launch_of(Type::fp32, arguments), gpu().compute_stream());
}

TEST(GpuGate, Kernel) {
  Step memory("memory and a copy");
  Floats a(100'003), y(100'003);
  a.fill(1);
  memory.end();
  Step first("own kernel, first launch");
  add(a, a, y);
  wait_for_device();
  first.end();
  Step second("own kernel, second launch");
  add(y, a, y);
  wait_for_device();
  second.end();
  y.fetch();
  EXPECT_EQ(y.wrong(3, 1), 0) << "y = (a + a) + a is wrong in so many elements";
}

TEST(GpuGate, Copies) {
  const std::int64_t bytes = std::int64_t{on_host_device() ? 1 : 64} << 20;
  Step pinned("page-locked memory");
  Floats there(bytes / 4), back(bytes / 4);
  pinned.end(cat("2 x ", bytes >> 20, " MiB"));
  there.fill(1);
  const Stream stream = gpu().compute_stream();
  const Event begin = gpu().make_timed_event(), end = gpu().make_timed_event();
  for (const bool to_device : {true, false}) {
    Step step(to_device ? "copy to the device" : "copy to the host");
    gpu().record(begin, stream);
    if (to_device)
      gpu().copy(there.on_device.data(), there.on_host.data(), bytes, CopyKind::to_device, stream);
    else
      gpu().copy(back.on_host.data(), there.on_device.data(), bytes, CopyKind::to_host, stream);
    gpu().record(end, stream);
    gpu().synchronize(end, [] {});
    step.end(cat(static_cast<double>(bytes) / gpu().seconds_between(begin, end) / 1e9, " GB/s"));
  }
  EXPECT_EQ(back.wrong(1, 1), 0) << "so many floats changed on their way to the device and back";
}

TEST(GpuGate, Graph) {
  Floats a(100'003), y(100'003);
  const Stream stream = gpu().compute_stream();
  a.fill(1);
  Step capture("graph, capture");
  gpu().begin_capture(stream);
  add(a, a, y);  // y = 2 a
  add(y, y, y);  // y = 4 a
  add(y, a, y);  // y = 5 a
  const CapturedGraph graph = gpu().end_capture(stream);
  capture.end();
  for (const float input : {1.0f, 7.0f}) {
    a.fill(input);
    Step replay(input == 1 ? "graph, first replay" : "graph, replay with another input");
    gpu().launch(graph, stream);
    wait_for_device();
    replay.end();
    y.fetch();
    EXPECT_EQ(y.wrong(5, input), 0) << "so many elements are wrong";
  }
}

// ---- A plan that was made before ------------------------------------------------------------------------------------

struct KeptPlan {
  DnnOperation operation;
  std::filesystem::path file;
};

// Finds the plain bf16 convolution with the least work among the kept plans for this GPU and this cuDNN.
std::optional<KeptPlan> smallest_kept_plan() {
  const DeviceFacts& facts = gpu().facts();
  const auto folder = plan_folder(variable("RINGTRAIN_PLAN_CACHE"), facts.name, facts.cudnn_version);
  std::error_code absent;
  std::optional<KeptPlan> best;
  for (const auto& entry : std::filesystem::directory_iterator(folder, absent)) {
    if (entry.path().extension() != ".plan") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    for (const auto& [key, answer] : unpack({std::istreambuf_iterator<char>(file), {}})) {
      const DnnOperation o = parse_operation(key);
      if (!answer.found || o.kind != DnnKind::convolution || o.type != Type::bf16 || o.engine != Engine::general ||
          o.prologue != Prologue::none || o.epilogue != Epilogue::none)
        continue;
      if (!best || o.flops() < best->operation.flops()) best = KeptPlan{o, entry.path()};
    }
  }
  return best;
}

// Returns `count` normally distributed values in bf16, which repeat after 8191 elements, a prime number.
std::vector<std::uint16_t> some_bf16(std::int64_t count, std::uint64_t key, double size) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  constexpr std::size_t period = 8191;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < period ? to_bf16(static_cast<float>(size * random_normal(key, i))) : values[i - period];
  return values;
}

// Runs the plan of a plain convolution, and returns the difference from loops on the CPU. The loops compute the first
// two and the last two samples, because a kept plan is for a large batch.
double difference_of(const DnnPlan& plan) {
  const DnnOperation& o = plan.operation();
  DnnOperation few = o;
  few.n = std::min<std::int64_t>(o.n, 2);
  const std::int64_t in = o.h * o.w * o.c, out = o.out_h() * o.out_w() * o.k;  // elements of a sample
  std::vector<std::uint16_t> x = some_bf16(o.n * in, 1, 1), y(static_cast<std::size_t>(o.n * out), 0xffff);
  const std::int64_t terms = o.r * o.r * o.c;
  std::vector<std::uint16_t> w = some_bf16(o.k * terms, 2, 1 / std::sqrt(static_cast<double>(terms)));
  const DeviceMemory on_gpu[] = {{gpu(), 2 * std::ssize(x), "x"},
                                 {gpu(), 2 * std::ssize(w), "w"},
                                 {gpu(), 2 * std::ssize(y), "y"},
                                 {gpu(), std::max<std::int64_t>(plan.workspace_bytes(), 1), "workspace"}};
  const Stream stream = gpu().compute_stream();
  gpu().copy(on_gpu[0].data(), x.data(), 2 * std::ssize(x), CopyKind::to_device, stream);
  gpu().copy(on_gpu[1].data(), w.data(), 2 * std::ssize(w), CopyKind::to_device, stream);
  void* const tensors[] = {on_gpu[0].data(), on_gpu[1].data(), on_gpu[2].data()};
  Step run("plan, run and compare");
  gpu().run(plan, tensors, on_gpu[3].data(), stream);
  gpu().copy(y.data(), on_gpu[2].data(), 2 * std::ssize(y), CopyKind::to_host, stream);
  wait_for_device();
  double difference = 0;
  for (const std::int64_t first : {std::int64_t{0}, o.n - few.n}) {
    std::vector<std::uint16_t> expected(static_cast<std::size_t>(few.n * out));
    void* const on_cpu[] = {x.data() + first * in, w.data(), expected.data()};
    compute(few, on_cpu, 1);
    const std::vector<float> a = load(Type::bf16, y.data() + first * out, few.n * out),
                             b = load(Type::bf16, expected.data(), few.n * out);
    difference = worse(difference, relative_difference(a.data(), b.data(), std::ssize(b)));
  }
  run.end(cat("difference ", difference));
  return difference;
}

TEST(GpuGate, Plan) {
  const std::optional<KeptPlan> kept = smallest_kept_plan();
  DnnOperation operation = parse_operation("conv bf16 n4 c64 14x14 k64 r3 s1 p1");
  std::filesystem::file_time_type before;
  if (kept) {
    operation = kept->operation;
    before = std::filesystem::last_write_time(kept->file);
  }
  Step load(kept ? "plan, load" : "plan, build because none is kept for this GPU and this cuDNN");
  std::string why;
  const DnnPlan* plan = gpu().plan(operation, &why);
  ASSERT_NE(plan, nullptr) << operation.key() << " has no plan: " << why;
  load.end(cat(operation.key(), " by ", plan->engine(), ", ", plan->workspace_bytes(), " bytes of workspace"));
  if (kept && std::filesystem::last_write_time(kept->file) != before)  // a plan that is built replaces the file
    ADD_FAILURE() << "cuDNN did not take the plan of " << kept->file << ", and another was built";
  EXPECT_LE(difference_of(*plan), rounding_of(operation)) << operation.key() << " by " << plan->engine();
  say_new_libraries();
}

TEST(GpuGate, Recurrent) {
  Step step("recurrent layer, forward and backward");
  const RnnOperation operation{
      .layers = 1, .input = 64, .hidden = 64, .length = 12, .batch = 16, .type = Type::bf16, .math = Math::half};
  const ComparedRecurrent compared = compare_with_loops(operation);
  ASSERT_TRUE(compared.found) << operation.key() << " has no plan: " << compared.why;
  step.end(compared.text());
  EXPECT_LE(compared.largest(), rounding_of(operation)) << compared.text();
  say_new_libraries();
}

}  // namespace
}  // namespace ringtrain::cuda
