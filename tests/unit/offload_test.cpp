// Tests activations that wait in the host's memory. A run with them must give the same bits as a run without, with less
// of the device's memory, in any order that streams and events allow. Copies that come too late are planted and must be
// found.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct OffloadCase {
  const char* name;
  std::function<Task()> task;  // each test makes its own, because making all takes longer
};

std::ostream& operator<<(std::ostream& out, const OffloadCase& c) {
  return out << c.name;
}

std::vector<OffloadCase> offload_cases() {
  ModelConfig text{.kind = "char_lstm", .hidden = 24, .layers = 3};
  text.dropout = 0.25;
  return {
      {"ResNet18OddSizesOddChannels", [] { return image_task(small_resnet(18, 10, "imagenet", 75, 0.1), 6, 3, 3); }},
      {"ResNet50ImageNetStem", [] { return image_task(small_resnet(50, 16, "imagenet", 64), 6, 6, 3); }},
      {"Cnn", [] { return image_task(cnn({}, image_shape(32, 10), {0.1}), 24, 12, 12); }},
      {"AlexNetLikeWithDropout", [] { return image_task(small_alexnet(0.5), 8, 4, 4); }},
      {"LstmCarriedState", [text] { return text_task(text, 20, 13, 14, 7, true, 3); }},
  };
}

// Offloads small tensors, too.
BackendOptions options() {
  return {.least_offload = 256};
}

Task offloaded(Task task) {
  task.graph.offload(true);
  return task;
}

std::int64_t bytes_of_memory(const Program& program) {
  std::int64_t bytes = 0;
  for (const MemoryItem& item : program.memory()) bytes += item.bytes;
  return bytes;
}

class Offload : public testing::TestWithParam<OffloadCase> {};

TEST_P(Offload, ChangesNoBit) {
  Task task = GetParam().task();
  task.steps = 3;  // as plain launches, then captured, then replayed
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    SCOPED_TRACE(precision_name(precision));
    task.precision = precision;
    const Curve expected = train_on_host_device(task, {}, options());
    expect_same_bits(expected, train_on_host_device(offloaded(task), {.order = {RunOrder::Kind::latest}}, options()));
    Task most = task;
    most.graph.offload(16);
    expect_same_bits(expected, train_on_host_device(most, {.order = {RunOrder::Kind::random, 1}}, options()));
  }
}

TEST_P(Offload, BesideRecomputationChangesNoBit) {
  Task task = GetParam().task();
  task.steps = 2;
  const Curve expected = train_on_host_device(task, {}, options());
  std::vector<std::string> some;
  for (std::size_t i = 1; i < task.graph.blocks().size(); i += 2) some.push_back(task.graph.blocks()[i].name);
  task.graph.recompute(some);
  expect_same_bits(expected, train_on_host_device(offloaded(task), {.order = {RunOrder::Kind::latest}}, options()));
}

TEST_P(Offload, TakesWhatItPredicts) {
  const Task task = GetParam().task();
  HostDevice device;
  FusionTable fusions;
  BackendOptions with = options();
  with.fusions = &fusions;
  const auto backend = make_backend(device, with);
  const auto compile = [&](const Task& t, PassMode mode) {
    return backend->compile(t.graph, t.micro_batch, t.precision, mode, t.group);
  };
  const auto plain = compile(task, PassMode::training), program = compile(offloaded(task), PassMode::training);
  EXPECT_EQ(plain->host_traffic().bytes, 0);
  EXPECT_GT(program->host_traffic().bytes, 0);
  EXPECT_LE(bytes_of_memory(*program), bytes_of_memory(*plain));
  const std::int64_t before = backend->allocated_bytes(), host_before = device.host_bytes();
  program->allocate();
  EXPECT_EQ(backend->allocated_bytes() - before, bytes_of_memory(*program));
  EXPECT_EQ(device.host_bytes() - host_before, program->host_traffic().bytes);
  EXPECT_EQ(compile(offloaded(task), PassMode::inference)->host_traffic().bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Offload, testing::ValuesIn(offload_cases()),
                         [](const auto& the_case) { return std::string(the_case.param.name); });

// The copies fit into the time of the passes that hide them. A deep model needs at least 5 % less memory on the device,
// and at least 30 % less if commands may wait for copies.
TEST(OffloadTest, AsMuchTravelsAsIsHidden) {
  HostDevice device;
  const auto backend = make_backend(device, options());
  Graph graph = small_resnet(50, 16, "imagenet", 64);
  const auto plain = backend->compile(graph, 64, Precision::fp32, PassMode::training, 32);
  graph.offload(true);
  const auto program = backend->compile(graph, 64, Precision::fp32, PassMode::training, 32);
  const HostTraffic traffic = program->host_traffic();
  EXPECT_LE(traffic.out_seconds, traffic.forward_seconds);
  EXPECT_LE(traffic.back_seconds, traffic.backward_seconds);
  EXPECT_GT(traffic.out_seconds, 0.5 * traffic.forward_seconds) << "the link is idle";
  EXPECT_LT(static_cast<double>(bytes_of_memory(*program)), 0.95 * static_cast<double>(bytes_of_memory(*plain)));
  // If commands may wait for copies, more is offloaded.
  graph.offload(8);
  const auto most = backend->compile(graph, 64, Precision::fp32, PassMode::training, 32);
  EXPECT_GT(most->host_traffic().bytes, traffic.bytes);
  EXPECT_LT(static_cast<double>(bytes_of_memory(*most)), 0.7 * static_cast<double>(bytes_of_memory(*plain)));
}

// ---- Planted faults -------------------------------------------------------------------------------------------------

bool found(HostDevice& device, const Task& task, const Curve& expected) {
  try {
    const auto backend = make_backend(device, options());
    Listener listener;
    listener.before_step = [&](Program& program) { poison_activations(device, program); };
    const Curve actual = train(*backend, task, listener);
    device.finish_all();
    return actual.gradients != expected.gradients;
  } catch (const Error&) {
    return true;
  }
}

// Says for each wait of a run what it is for. "written" and "free" delay a copy, and "is out" and "is back" delay the
// commands after a copy. "" means something else, or something that is known already.
std::vector<std::string> kinds_of_waits(const std::vector<Call>& calls) {
  std::vector<std::string> kinds;
  std::map<std::uintptr_t, std::string> recorded;  // by event: the copy before it
  std::map<std::size_t, std::string> last_copy;    // by stream
  std::size_t copies = 0;                          // the stream of offloaded tensors
  for (const Call& call : calls)
    if (call.name == "copy to host" && call.stream > 0) copies = call.stream;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    if (call.kind == Call::Kind::copy) last_copy[call.stream] = call.name;
    if (call.kind == Call::Kind::record) recorded[call.handle] = call.stream == copies ? last_copy[copies] : "";
    if (call.kind != Call::Kind::wait) continue;
    if (!call.adds_order) {
      kinds.push_back("");
    } else if (call.stream == copies) {
      kinds.push_back(calls[i + 1].name == "copy to host" ? "written" : "free");
    } else {
      const std::string& copy = recorded[call.handle];
      kinds.push_back(copy == "copy to host" ? "is out" : copy == "copy to device" ? "is back" : "");
    }
  }
  return kinds;
}

// Some waits for a copy out or for free memory are not needed with today's layout, because nothing else uses the memory
// then.
TEST(OffloadFaults, MissingWaitsAreFound) {
  Task task = offloaded(image_task(small_resnet(18, 8, "small", 8), 4, 2, 2));
  task.steps = 1;
  HostDevice sound;
  const auto backend = make_backend(sound, options());
  const Curve expected = train(*backend, task);
  const std::vector<std::string> kinds = kinds_of_waits(sound.calls());
  std::map<std::string, int> tried, missed;
  for (std::size_t lost = 0; lost < kinds.size(); ++lost) {
    if (kinds[lost].empty() || tried[kinds[lost]] >= 8) continue;
    HostDevice device;
    std::size_t number = 0;
    device.skip = [&](const Call& call) { return call.kind == Call::Kind::wait && number++ == lost; };
    ++tried[kinds[lost]];
    if (!found(device, task, expected)) ++missed[kinds[lost]];
  }
  for (const char* kind : {"written", "is out", "free", "is back"}) EXPECT_EQ(tried[kind], 8) << kind;
  EXPECT_EQ(missed["written"], 0);
  EXPECT_EQ(missed["is back"], 0) << "a copy that comes back too late";
  EXPECT_LT(missed["is out"], 8);
  EXPECT_LT(missed["free"], 8);
}

TEST(OffloadFaults, ACopyThatDoesNotComeBackIsFound) {
  const Task task = offloaded(image_task(small_resnet(18, 8, "small", 8), 4, 2, 2));
  HostDevice sound;
  const auto backend = make_backend(sound, options());
  const Curve expected = train(*backend, task);
  for (const char* direction : {"copy to device", "copy to host"}) {
    HostDevice device;
    bool lost = false;
    // Stream 0 computes, and stream 1 copies input.
    device.skip = [&](const Call& call) {
      return call.name == direction && call.stream > 1 && !std::exchange(lost, true);
    };
    EXPECT_TRUE(found(device, task, expected)) << direction;
    EXPECT_TRUE(lost) << direction;
  }
}

}  // namespace
}  // namespace ringtrain::cuda
