// Tests the order of commands in GPU programs: streams that run as late as events allow, graphs, buckets at the
// watermark, frozen arguments, and the predicted memory. The tests CudaFaults plant faults, which must be found:
// missing waits and kernels, a wrong order, a frozen argument, and a late write to a gradient.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/emulation/emulated_kernels.h"
#include "tests/unit/cuda_training.h"
#include "tests/unit/one_update.h"

namespace ringtrain::cuda {
namespace {

Task images(std::int64_t micro_batch = 2) {
  return image_task(small_resnet(18, 8, "imagenet", 40), 4, micro_batch, 2);
}
Task text(std::int64_t rows = 6, bool carried = true) {
  return text_task({.kind = "char_lstm", .hidden = 16, .layers = 3, .dropout = 0.2}, 5, 9, rows, 3, carried, 4);
}
std::vector<Task> tasks() {
  return {images(), text()};
}

// Trains with a reducer like the trainer's. A second stream reads the buckets below the watermark while the compute
// stream goes on.
struct Reduced {
  Curve curve;
  std::vector<std::vector<float>> reduced;       // the values that the second stream read, by step
  std::vector<std::vector<std::int64_t>> marks;  // by step
};

Reduced train_reduced(HostDevice& device, const Task& task, BackendOptions options = {}) {
  options.segment_elements = options.segment_elements == 0 ? 1024 : options.segment_elements;
  Reduced result;
  const auto backend = make_backend(device, options);
  const Stream stream = device.make_stream(true);
  const Event final = device.make_event(), reduced = device.make_event();
  const std::int64_t size = task.table.size();
  auto* seen = static_cast<float*>(device.allocate_host(size * 4));
  std::int64_t done = 0;
  const auto keep_reduced = [&] {
    device.synchronize(reduced, {});
    result.reduced.emplace_back(seen, seen + size);
  };
  Listener listener;
  listener.before_step = [&](Program& program) {
    poison_activations(device, program);
    if (!result.marks.empty()) keep_reduced();
    result.marks.emplace_back();
    done = 0;
  };
  listener.ready = [&](const Vector& gradients, std::int64_t watermark) {
    result.marks.back().push_back(watermark);
    device.record(final, device.compute_stream());
    device.wait(stream, final);
    device.copy(seen + done, gradients.data() + done, (watermark - done) * 4, CopyKind::to_host, stream);
    done = watermark;
  };
  listener.before_update = [&](const Vector&) { device.record(reduced, stream); };
  result.curve = train(*backend, task, listener);
  keep_reduced();
  device.finish_all();
  device.check_guards();
  device.release_host(seen);
  return result;
}

// The copies of the weights that the training program multiplies with, as bytes.
std::vector<std::vector<std::byte>> copies_of(const ProgramBase& program) {
  std::vector<std::vector<std::byte>> result;
  for (const WeightCopy& copy : *program.weight_copies()) {
    const std::int64_t each = copy.own_is_fp32 ? 4 : bytes_of(program.type());
    const TensorPlace& p = copy.place;
    const auto* from = static_cast<const std::byte*>(copy.own) + p.own_offset * each;
    result.emplace_back(from, from + p.outer * p.taps * p.padded * each);
  }
  return result;
}

TEST(CudaOrder, TheUpdateLeavesTheCopiesThatSetWeightsWouldMake) {
  for (Task task : {images(), text()})
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
      for (const bool overflows : {false, true}) {
        task.precision = precision;
        SCOPED_TRACE(testing::Message() << precision_name(precision) << overflows);
        HostDevice device;
        const auto backend = make_backend(device, {});
        const std::int64_t size = task.table.size();
        const auto weights = backend->make_vector(size), gradients = backend->make_vector(size, true);
        backend->copy_from_host(task.weights, *weights, 0);
        Optimizer optimizer({.kind = "adam", .weight_decay = 1e-3}, task.table, *backend);
        const auto program =
            backend->compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
        program->allocate();
        program->set_weights(*weights);
        const auto& base = dynamic_cast<const ProgramBase&>(*program);
        device.finish_all();
        const auto before = copies_of(base);
        std::vector<float> gradient(static_cast<std::size_t>(size), overflows ? INFINITY : 0.5f);
        backend->copy_from_host(gradient, *gradients, 0);
        for (int step = 0; step < 2; ++step)
          EXPECT_EQ(one_update(optimizer, *weights, *gradients, {0.1}, 1, 0.1f, program.get()).applied, !overflows);
        device.finish_all();
        const auto updated = copies_of(base);
        EXPECT_EQ(updated == before, overflows);
        program->set_weights(*weights);
        device.finish_all();
        EXPECT_EQ(updated, copies_of(base));
      }
}

TEST(CudaOrder, StepsCopyNoWeights) {
  for (Task task : tasks()) {
    task.precision = Precision::bf16;
    task.steps = 3;
    HostDevice device;
    train_reduced(device, task, {.graphs = false});
    std::int64_t copies = 0, updates = 0, at_first_update = -1;
    for (const Call& call : device.calls()) {
      if (call.name == "copy_tensors_in") ++copies;
      if (call.name == "update" && ++updates == 1) at_first_update = copies;
      if (call.name == "update" && updates == 3) {
        EXPECT_EQ(copies, at_first_update);
      }
    }
    EXPECT_EQ(updates, 3);
    EXPECT_GT(at_first_update, 0);
  }
}

TEST(CudaOrder, StreamsThatAreDelayedAsLongAsEventsAllowGiveTheSameBits) {
  for (Task task : tasks()) {
    task.steps = 2;
    HostDevice at_once;
    const Reduced expected = train_reduced(at_once, task);
    std::vector<RunOrder> orders = {{RunOrder::Kind::latest}};
    for (std::uint64_t seed = 0; seed < 3; ++seed) orders.push_back({RunOrder::Kind::random, seed});
    for (const RunOrder order : orders) {
      HostDevice device({.order = order});
      const Reduced actual = train_reduced(device, task);
      expect_same_bits(expected.curve, actual.curve);
      EXPECT_EQ(expected.reduced, actual.reduced);
    }
  }
}

TEST(CudaOrder, ReplayedGraphsGiveTheBitsOfPlainLaunches) {
  for (const Task& task : tasks()) {
    HostDevice plain, replaying;
    const Reduced expected = train_reduced(plain, task, {.graphs = false});
    const Reduced actual = train_reduced(replaying, task, {.graphs = true});
    expect_same_bits(expected.curve, actual.curve);
    const auto graphs = [](const HostDevice& device) {
      return std::count_if(device.calls().begin(), device.calls().end(),
                           [](const Call& call) { return call.kind == Call::Kind::graph; });
    };
    EXPECT_EQ(graphs(plain), 0);
    EXPECT_GT(graphs(replaying), 4);
  }
}

TEST(CudaOrder, GradientsBelowTheWatermarkAreFinal) {
  for (const Task& task : tasks()) {
    HostDevice device;
    const Reduced r = train_reduced(device, task);
    for (std::size_t step = 0; step < r.reduced.size(); ++step) {
      EXPECT_EQ(r.reduced[step], r.curve.gradients[step]) << "step " << step;
      EXPECT_GT(r.marks[step].size(), 2u) << "the backward pass is not cut at buckets";
      EXPECT_TRUE(std::is_sorted(r.marks[step].begin(), r.marks[step].end()));
      EXPECT_EQ(r.marks[step].back(), task.table.size());
      EXPECT_EQ(r.marks[step], r.marks[0]);
    }
  }
}

TEST(CudaOrder, CommandsReadAndWriteNothingButTheirRegions) {
  for (Task task : tasks())
    for (const bool fused : {true, false}) {
      task.precision = fused ? Precision::fp32 : Precision::fp16;
      task.steps = 2;
      HostDeviceOptions options;
      if (!fused)
        options.refuse_dnn = [](const DnnOperation& op) {
          return op.prologue != Prologue::none || op.epilogue != Epilogue::none ? std::string("no engine") : "";
        };
      HostDevice plain(options);
      options.isolate_commands = true;
      HostDevice isolating(options);
      expect_same_bits(train_reduced(plain, task).curve, train_reduced(isolating, task).curve);
    }
}

TEST(CudaOrder, ThreadsThatRunBackwardsGiveTheSameBits) {
  for (Task task : tasks()) {
    task.steps = 1;
    HostDevice forwards, backwards;
    const Reduced expected = train_reduced(forwards, task);
    emulate_backwards(true);
    const Reduced actual = train_reduced(backwards, task);
    emulate_backwards(false);
    expect_same_bits(expected.curve, actual.curve);
  }
}

// Returns those of the calls that compute: kernels and plans.
std::vector<Call> work_of(const std::vector<Call>& calls) {
  std::vector<Call> result;
  for (const Call& call : calls)
    if (call.kind == Call::Kind::kernel || call.kind == Call::Kind::dnn || call.kind == Call::Kind::rnn_forward ||
        call.kind == Call::Kind::rnn_backward)
      result.push_back(call);
  return result;
}

TEST(CudaOrder, EveryStepLaunchesTheSameKernelsWithTheSameArguments) {
#if !__has_builtin(__builtin_clear_padding)
  GTEST_SKIP() << "this compiler cannot clear the padding of launches";
#endif
  for (Task task : tasks()) {
    task.steps = 5;
    HostDevice device;
    const auto backend = make_backend(device, {.graphs = false});
    std::vector<std::vector<Call>> steps;
    Listener listener;
    listener.before_step = [&](Program&) {
      steps.push_back(work_of(device.calls()));
      device.clear_calls();
    };
    train(*backend, task, listener);
    // The calls of step 1 are in steps[2]. The inputs of two passes go to the same two places in turn.
    ASSERT_EQ(steps[2].size(), steps[4].size());
    ASSERT_GT(steps[2].size(), 20u);
    for (std::size_t i = 0; i < steps[2].size(); ++i)
      ASSERT_TRUE(steps[2][i].same_work(steps[4][i])) << "call " << i << ": " << steps[2][i].name;
  }
}

TEST(CudaOrder, ADeviceTakesTheMemoryThatThePlanSays) {
  for (const Task& task : tasks())
    for (const PassMode mode : {PassMode::training, PassMode::inference}) {
      HostDevice device;
      const auto backend = make_backend(device, {});
      const auto program = backend->compile(task.graph, task.micro_batch, Precision::bf16, mode, task.group);
      const std::int64_t before = device.allocated_bytes();
      std::int64_t predicted = 0;
      for (const MemoryItem& item : program->memory()) predicted += item.bytes;
      program->allocate();
      EXPECT_EQ(device.allocated_bytes() - before, predicted);
      const std::int64_t taken = backend->allocated_bytes();
      const auto vector = backend->make_vector(1000);
      EXPECT_EQ(backend->allocated_bytes() - taken, 4000);
    }
}

// ---- Planted faults -------------------------------------------------------------------------------------------------

// Returns whether a fault is found, which means that the device throws or that results change.
bool found(HostDevice& device, const Task& task, const Reduced& expected, BackendOptions options = {}) {
  try {
    const Reduced actual = train_reduced(device, task, std::move(options));
    const Curve &a = actual.curve, &b = expected.curve;
    for (std::size_t step = 0; step < expected.reduced.size(); ++step)
      if (actual.reduced[step] != expected.reduced[step] || a.gradients[step] != b.gradients[step] ||
          a.weights[step] != b.weights[step] || a.states[step] != b.states[step] ||
          a.updates[step].gradient_norm != b.updates[step].gradient_norm || a.sums[step].loss != b.sums[step].loss)
        return true;
    return a.evaluated.loss != b.evaluated.loss || a.logits != b.logits;
  } catch (const Error&) {
    return true;
  }
}

TEST(CudaFaults, EveryMissingWaitIsFound) {
  // A step has four passes, because the copy of an input waits for the pass two passes earlier, which used the same
  // place.
  for (Task task : {image_task(small_resnet(18, 8, "small", 8), 8, 2, 2), text(12, false)}) {
    task.steps = 2;
    HostDevice sound;
    const Reduced expected = train_reduced(sound, task);
    std::vector<Call> waits;
    for (const Call& call : sound.calls())
      if (call.kind == Call::Kind::wait) waits.push_back(call);
    std::map<std::size_t, int> of_stream;
    for (std::size_t lost = 0; lost < waits.size(); ++lost) {
      // A wait for something that the host has waited for is not needed. Only every third wait of each stream is
      // tested, to save time.
      if (!waits[lost].adds_order || of_stream[waits[lost].stream]++ % 3 != 0) continue;
      HostDevice device;
      std::size_t number = 0;
      device.skip = [&](const Call& call) { return call.kind == Call::Kind::wait && number++ == lost; };
      EXPECT_TRUE(found(device, task, expected))
          << "without wait " << lost << " of " << waits.size() << ", of stream " << waits[lost].stream;
    }
    EXPECT_EQ(of_stream.size(), 3u) << "compute, copies, reducer";
  }
}

// Returns a kernel's name. For a plan, returns its kind and its fusions without its sizes.
std::string kind_of(const Call& call) {
  std::string result = call.name.substr(0, call.name.find(' '));
  for (std::size_t plus = call.name.find(" +"); plus != std::string::npos; plus = call.name.find(" +", plus + 1))
    result += call.name.substr(plus, call.name.find(' ', plus + 1) - plus);
  return result;
}

TEST(CudaFaults, EveryMissingKernelIsFound) {
  for (Task task : tasks()) {
    task.steps = 1;
    HostDevice sound;
    const Reduced expected = train_reduced(sound, task, {.graphs = false});
    const std::vector<Call> calls = work_of(sound.calls());
    std::set<std::string> kinds;
    for (const Call& call : calls) kinds.insert(kind_of(call));
    for (const std::string& kind : kinds) {
      HostDevice device;
      bool lost = false;
      device.skip = [&](const Call& call) { return kind_of(call) == kind && !std::exchange(lost, true); };
      EXPECT_TRUE(found(device, task, expected, {.graphs = false})) << "without the first " << kind;
    }
  }
}

// Behaves as if the kernel cross_entropy got the StepState by value and its graph kept that value: every launch reads a
// copy of the StepState of the first launch.
class FreezingDevice : public HostDevice {
 public:
  void launch(const KernelLaunch& given, Stream stream) override {
    KernelLaunch launch = given;
    if (launch.kernel == Kernel::cross_entropy) {
      CrossEntropyArguments arguments;
      std::memcpy(&arguments, launch.arguments.data(), sizeof arguments);
      if (frozen_ == nullptr) {
        frozen_ = allocate(sizeof(StepState), "a frozen step state");
        copy(frozen_, arguments.state, sizeof(StepState), CopyKind::on_device, stream);
      }
      arguments.state = static_cast<const StepState*>(frozen_);
      std::memcpy(launch.arguments.data(), &arguments, sizeof arguments);
    }
    HostDevice::launch(launch, stream);
  }
  using HostDevice::launch;

 private:
  void* frozen_ = nullptr;
};

TEST(CudaFaults, AFrozenLossScaleIsFound) {
  Task task = images(4);
  task.precision = Precision::fp16;
  HostDevice sound;
  FreezingDevice freezing;
  for (HostDevice* device : {&sound, static_cast<HostDevice*>(&freezing)}) {
    const auto backend = make_backend(*device, {});
    const auto program = backend->compile(task.graph, 4, Precision::fp16, PassMode::training, 2);
    const auto weights = backend->make_vector(task.table.size()), gradients = backend->make_vector(task.table.size());
    backend->copy_from_host(task.weights, *weights, 0);
    program->allocate();
    program->set_weights(*weights);
    const std::int64_t logits_bias = task.table.find("fc.bias").offset;
    std::vector<float> first(1), third(1);
    for (int step = 0; step < 3; ++step) {
      program->run({task.inputs.data(), task.targets.data()},
                   {.gradient_scale = step < 2 ? 1.0f : 8.0f, .statistic_scale = 1});
      program->backward(*gradients, false, {});
      backend->copy_to_host(*gradients, logits_bias, step == 0 ? first : third);
    }
    if (device == &sound)
      EXPECT_NEAR(third[0], 8 * first[0], 0.05 * std::abs(8 * first[0]));
    else
      EXPECT_NEAR(third[0], first[0], 0.05 * std::abs(first[0])) << "the fault was not planted";
  }
}

// Swaps the first launch of the kernel `held` with the launch that follows it.
class SwappingDevice : public HostDevice {
 public:
  explicit SwappingDevice(Kernel held) : held_(held) {}
  void launch(const KernelLaunch& given, Stream stream) override {
    if (given.kernel == held_ && !kept_ && !done_) {
      kept_ = std::make_unique<KernelLaunch>(given);
      return;
    }
    HostDevice::launch(given, stream);
    if (!kept_) return;
    HostDevice::launch(*kept_, stream);
    kept_.reset();
    done_ = true;
  }
  using HostDevice::launch;

 private:
  Kernel held_;
  std::unique_ptr<KernelLaunch> kept_;
  bool done_ = false;
};

TEST(CudaFaults, CommandsInTheWrongOrderAreFound) {
  Task task = images();
  task.steps = 1;
  HostDevice sound;
  const Reduced expected = train_reduced(sound, task, {.graphs = false});
  for (const Kernel kernel : {Kernel::norm_finalize, Kernel::norm_backward_finalize, Kernel::cross_entropy,
                              Kernel::norm_apply, Kernel::squared_norms}) {
    SwappingDevice device(kernel);
    EXPECT_TRUE(found(device, task, expected, {.graphs = false})) << kernel_name(kernel);
  }
}

// The test writes the first gradient again after the backward pass. Another stream may still be copying this gradient.
TEST(CudaFaults, AGradientThatIsWrittenBehindItsWatermarkIsFound) {
  const Task task = images();
  HostDevice device;
  const auto backend = make_backend(device, {.segment_elements = 1024});
  const Stream stream = device.make_stream(true);
  const Event final = device.make_event();
  auto* seen = static_cast<float*>(device.allocate_host(task.table.size() * 4));
  Listener listener;
  std::int64_t done = 0;
  listener.ready = [&](const Vector& gradients, std::int64_t watermark) {
    device.record(final, device.compute_stream());
    device.wait(stream, final);
    device.copy(seen + done, gradients.data() + done, (watermark - done) * 4, CopyKind::to_host, stream);
    done = watermark;
  };
  listener.before_update = [&](const Vector& gradients) {
    device.zero(const_cast<float*>(gradients.data()), 4, device.compute_stream());
  };
  EXPECT_THROW(train(*backend, task, listener), Error);
}

}  // namespace
}  // namespace ringtrain::cuda
