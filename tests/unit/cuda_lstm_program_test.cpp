// Compares the GPU's LSTM program on a device in host memory with the CPU backend: losses, gradients, logits and
// carried state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/backend.h"
#include "base/error.h"
#include "base/random.h"
#include "models/models.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {
namespace {

using cuda::HostDevice;
using cuda::HostDeviceOptions;

struct LstmSetting {
  std::int64_t hidden, layers, vocabulary, positions, rows;
  double dropout = 0;
  bool carried = false;
  int masked_every = 0;  // every n-th target does not count
  Precision precision = Precision::fp32;
  std::int64_t micro_steps = 1;
};

std::ostream& operator<<(std::ostream& out, const LstmSetting& s) {
  return out << "H" << s.hidden << " L" << s.layers << " V" << s.vocabulary << " T" << s.positions << " rows" << s.rows
             << " dropout" << s.dropout << " carried" << s.carried << " masked" << s.masked_every << " "
             << precision_name(s.precision) << " micro-steps" << s.micro_steps;
}

// A model on a backend. It takes plain gradient steps on made-up symbols, which are the same on every backend.
class LstmTraining {
 public:
  LstmTraining(Backend& backend, const LstmSetting& setting, Precision precision)
      : backend_(backend),
        s_(setting),
        graph_(char_lstm({"char_lstm", s_.hidden, s_.layers, s_.dropout}, {s_.positions, s_.vocabulary})),
        table_(graph_.parameters()),
        key_(random_key(3, RandomPurpose::sampling)) {
    weights_ = backend.make_vector(table_.size());
    gradients_ = backend.make_vector(table_.size());
    momentum_.push_back(backend.make_vector(table_.size()));
    std::vector<float> initial(static_cast<std::size_t>(table_.size()));
    initialize(table_, 7, initial);
    backend.copy_from_host(initial, *weights_, 0);
    program_ = backend.compile(graph_, s_.rows / s_.micro_steps, precision, PassMode::training);
    inference_ = backend.compile(graph_, s_.rows, precision, PassMode::inference);
    for (Program* p : {program_.get(), inference_.get()}) {
      p->allocate();
      p->set_weights(*weights_);
    }
    state_.resize(static_cast<std::size_t>(s_.rows * graph_.state_size()));
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] = static_cast<float>(0.5 * random_normal(key_, i));
  }

  // Returns the input of a step, which is all rows with one micro-batch after the other.
  TestPass pass(std::int64_t step) {
    const std::int64_t positions = s_.rows * s_.positions;
    x_.clear();
    y_.clear();
    for (std::int64_t i = 0; i < positions; ++i) {
      const auto symbol = [&](std::int64_t k) {
        const auto draw = static_cast<std::uint64_t>(2 * (step * positions + i) + k);
        return static_cast<std::uint8_t>(random_uniform(key_, draw) * static_cast<double>(s_.vocabulary));
      };
      x_.push_back(symbol(0));
      y_.push_back(s_.masked_every > 0 && i % s_.masked_every == 1 ? -1 : std::int32_t{symbol(1)});
    }
    const auto counted = std::count_if(y_.begin(), y_.end(), [](std::int32_t t) { return t >= 0; });
    TestPass pass;
    pass.inputs = x_.data();
    pass.targets = y_.data();
    pass.gradient_scale = loss_scale / static_cast<float>(counted);
    pass.dropout_key = random_key(11, RandomPurpose::dropout);
    pass.step = step;
    pass.first_row = 32;
    pass.state = s_.carried ? state_.data() : nullptr;
    return pass;
  }

  LossSums step(std::int64_t number, const BackwardHooks& hooks = {}) {
    TestPass pass = this->pass(number);
    const std::int64_t rows = s_.rows / s_.micro_steps;
    for (std::int64_t micro = 0; micro < s_.micro_steps; ++micro) {
      program_->stage(pass);
      program_->forward(pass);
      program_->backward(*gradients_, micro > 0, micro + 1 == s_.micro_steps ? hooks : BackwardHooks{});
      pass.inputs += rows * s_.positions;
      pass.targets += rows * s_.positions;
      pass.first_row += rows;
      if (pass.state != nullptr) pass.state += rows * graph_.state_size();
    }
    return program_->take_sums();
  }

  bool update() {
    const std::vector<UpdateRange> ranges = {{0, table_.trained(), 0}};
    Update update;
    update.rule.learning_rate = 0.5f;
    update.ranges = ranges;
    const ElementRange all{0, table_.trained()};
    const std::unique_ptr<RangeNorms> norms = backend_.make_range_norms({&all, 1});
    update.gradient_norms = norms.get();
    update.loss_scale = loss_scale;
    update.trained = table_.trained();
    update.program = program_.get();
    backend_.queue_update(update, *weights_, *gradients_, momentum_);
    const UpdateResult result = backend_.finish_update();
    inference_->set_weights(*weights_);
    return result.applied;
  }

  std::vector<float> gradients() {
    std::vector<float> values(static_cast<std::size_t>(table_.size()));
    backend_.copy_to_host(*gradients_, 0, values);
    for (float& value : values) value /= loss_scale;
    return values;
  }
  std::vector<float> logits(std::int64_t row, std::int64_t position) { return inference_->logits(row, position); }

  Backend& backend_;
  LstmSetting s_;
  Graph graph_;
  ParameterTable table_;
  std::uint64_t key_;
  float loss_scale = 1;
  std::unique_ptr<Vector> weights_, gradients_;
  std::vector<std::unique_ptr<Vector>> momentum_;
  std::unique_ptr<Program> program_, inference_;
  std::vector<float> state_;
  std::vector<std::uint8_t> x_;
  std::vector<std::int32_t> y_;
};

HostDeviceOptions as_late_as_allowed() {
  HostDeviceOptions options;
  options.order = {cuda::RunOrder::Kind::latest};
  return options;
}
HostDeviceOptions refusing(std::function<std::string(const cuda::RnnOperation&)> why) {
  HostDeviceOptions options;
  options.refuse_rnn = std::move(why);
  return options;
}

// A backend with its own device.
struct Gpu {
  explicit Gpu(HostDeviceOptions device_options = {}, cuda::BackendOptions options = {})
      : device(std::move(device_options)), backend(cuda::make_backend(device, std::move(options))) {}
  HostDevice device;
  std::unique_ptr<Backend> backend;
};

double norm(const std::vector<float>& v, std::int64_t begin, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = begin; i < begin + count; ++i)
    sum += static_cast<double>(v[static_cast<std::size_t>(i)]) * v[static_cast<std::size_t>(i)];
  return std::sqrt(sum);
}

// Compares each tensor relative to its norm.
void expect_close(const ParameterTable& table, const std::vector<float>& found, const std::vector<float>& expected,
                  double tolerance) {
  std::vector<float> difference(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) difference[i] = found[i] - expected[i];
  for (const Parameter& p : table.all()) {
    const double size = norm(expected, p.offset, p.count);
    EXPECT_GT(size, 0) << p.name;
    EXPECT_LE(norm(difference, p.offset, p.count), tolerance * size) << p.name;
  }
}

struct Tolerance {
  double loss, gradient, logit;
};
Tolerance tolerance_of(Precision precision) {
  if (precision == Precision::fp32) return {2e-6, 2e-5, 2e-5};
  if (precision == Precision::fp16) return {1e-3, 1e-2, 1e-2};
  return {4e-3, 5e-2, 5e-2};
}

class LstmOnTheGpu : public testing::TestWithParam<LstmSetting> {};

TEST_P(LstmOnTheGpu, LossesGradientsStateAndLogitsAreTheCpusOverSeveralSteps) {
  const LstmSetting setting = GetParam();
  const Tolerance tolerance = tolerance_of(setting.precision);
  Gpu gpu(as_late_as_allowed());
  const auto cpu_backend = make_cpu_backend(1);
  LstmTraining gpu_side(*gpu.backend, setting, setting.precision);
  LstmTraining cpu_side(*cpu_backend, setting, Precision::fp32);
  if (setting.precision == Precision::fp16) gpu_side.loss_scale = 1024;

  for (std::int64_t step = 0; step < 3; ++step) {
    const LossSums found = gpu_side.step(step), expected = cpu_side.step(step);
    EXPECT_NEAR(found.loss, expected.loss, tolerance.loss * expected.loss);
    EXPECT_EQ(found.targets, expected.targets);
    if (setting.precision == Precision::fp32) {
      EXPECT_EQ(found.correct, expected.correct);
    }
    expect_close(gpu_side.table_, gpu_side.gradients(), cpu_side.gradients(), tolerance.gradient);
    for (std::size_t i = 0; i < gpu_side.state_.size(); ++i)
      EXPECT_NEAR(gpu_side.state_[i], cpu_side.state_[i], tolerance.logit) << "carried state " << i;
    EXPECT_TRUE(gpu_side.update());
    EXPECT_TRUE(cpu_side.update());
  }
  const std::vector<float> kept = gpu_side.state_;
  const LossSums found = run(*gpu_side.inference_, gpu_side.pass(9));
  const LossSums expected = run(*cpu_side.inference_, cpu_side.pass(9));
  EXPECT_NEAR(found.loss, expected.loss, tolerance.loss * expected.loss);
  for (const auto& [row, position] : {std::pair<std::int64_t, std::int64_t>{0, setting.positions - 1},
                                      {setting.rows - 1, 0},
                                      {setting.rows / 2, setting.positions / 2}}) {
    const std::vector<float> a = gpu_side.logits(row, position), b = cpu_side.logits(row, position);
    ASSERT_EQ(std::ssize(a), setting.vocabulary);
    for (std::size_t k = 0; k < a.size(); ++k)
      EXPECT_NEAR(a[k], b[k], tolerance.logit) << "row " << row << " position " << position << " class " << k;
  }
  EXPECT_EQ(gpu_side.state_ != kept, setting.carried);
  gpu.device.check_guards();
}

INSTANTIATE_TEST_SUITE_P(Settings, LstmOnTheGpu,
                         testing::Values(LstmSetting{16, 1, 5, 3, 4}, LstmSetting{16, 3, 31, 5, 6},
                                         LstmSetting{24, 2, 16, 4, 8}, LstmSetting{16, 3, 31, 5, 6, 0.25},
                                         LstmSetting{136, 2, 9, 3, 4, 0.5}, LstmSetting{16, 2, 31, 5, 6, 0, true},
                                         LstmSetting{16, 2, 31, 5, 6, 0.1, true},
                                         LstmSetting{16, 2, 7, 5, 6, 0, false, 3},
                                         LstmSetting{16, 2, 31, 5, 6, 0.1, true, 4, Precision::fp32, 3},
                                         LstmSetting{16, 2, 31, 5, 6, 0, false, 0, Precision::tf32, 1},
                                         LstmSetting{16, 2, 31, 5, 6, 0.1, true, 4, Precision::bf16, 2},
                                         LstmSetting{16, 3, 31, 5, 6, 0, true, 0, Precision::bf16, 1},
                                         LstmSetting{16, 2, 31, 5, 6, 0.1, true, 4, Precision::fp16, 2},
                                         LstmSetting{16, 3, 31, 5, 6, 0, true, 0, Precision::fp16, 1}));

TEST(LstmOnTheGpu, OneCallForAllLayersAndACallPerLayerGiveTheSame) {
  const LstmSetting setting{16, 3, 31, 5, 6, 0, true};
  const auto refused = [](const cuda::RnnOperation& o) {
    return std::string(o.layers > 1 ? "one layer at a time" : "");
  };
  Gpu joined, single(refusing(refused));
  LstmTraining a(*joined.backend, setting, Precision::fp32), b(*single.backend, setting, Precision::fp32);
  EXPECT_EQ(a.step(0).loss, b.step(0).loss);
  EXPECT_EQ(a.gradients(), b.gradients());
  EXPECT_EQ(a.state_, b.state_);
  const auto calls = [](const HostDevice& device) {
    const std::vector<cuda::Call> all = device.flat_calls();
    return std::count_if(all.begin(), all.end(),
                         [](const cuda::Call& c) { return c.kind == cuda::Call::Kind::rnn_backward; });
  };
  EXPECT_EQ(calls(joined.device), 1);
  EXPECT_EQ(calls(single.device), 3);
}

TEST(LstmOnTheGpu, LayersWithDropoutBetweenThemAreNeverJoined) {
  Gpu gpu;
  LstmTraining training(*gpu.backend, {16, 3, 31, 5, 6, 0.5}, Precision::fp32);
  gpu.device.clear_calls();
  training.step(0);
  for (const cuda::Call& call : gpu.device.flat_calls())
    if (call.kind == cuda::Call::Kind::rnn_forward) {
      EXPECT_NE(call.name.find("layers1 "), std::string::npos) << call.name;
    }
}

TEST(LstmOnTheGpu, ABiasThatNoEpilogueTakesIsAddedByAKernel) {
  const LstmSetting setting{16, 2, 31, 5, 6};
  const auto refused = [](const cuda::DnnOperation& o) {
    return std::string(o.epilogue == cuda::Epilogue::bias ? "no engine" : "");
  };
  HostDeviceOptions without_epilogue;
  without_epilogue.refuse_dnn = refused;
  Gpu fused, separate(without_epilogue);
  LstmTraining a(*fused.backend, setting, Precision::fp32), b(*separate.backend, setting, Precision::fp32);
  EXPECT_NEAR(a.step(0).loss, b.step(0).loss, 1e-4);
  expect_close(a.table_, a.gradients(), b.gradients(), 1e-6);
}

TEST(LstmOnTheGpu, WithoutARecurrentPlanTheErrorHasTheReason) {
  Gpu gpu(refusing([](const cuda::RnnOperation&) { return std::string("no recurrent engine here"); }));
  try {
    LstmTraining(*gpu.backend, {16, 2, 31, 5, 6}, Precision::fp32);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no recurrent engine here"), std::string::npos) << error.what();
  }
}

// A device whose time() runs the work, but measures nothing. It returns the sum of `seconds` over the work's calls.
class TimingDevice : public HostDevice {
 public:
  explicit TimingDevice(std::function<double(const cuda::Call&)> seconds) : seconds_(std::move(seconds)) {}
  double time(const std::function<void(cuda::Stream)>& work, int) override {
    const std::size_t before = flat_calls().size();
    work(compute_stream());
    finish_all();
    double sum = 0;
    const std::vector<cuda::Call> all = flat_calls();
    for (std::size_t i = before; i < all.size(); ++i) sum += seconds_(all[i]);
    return sum;
  }

 private:
  std::function<double(const cuda::Call&)> seconds_;
};

std::vector<std::string> recurrent_calls(const HostDevice& device) {
  std::vector<std::string> names;
  for (const cuda::Call& call : device.flat_calls())
    if (call.kind == cuda::Call::Kind::rnn_forward) names.push_back(call.name);
  return names;
}

TEST(LstmOnTheGpu, TheRecurrentCallsThatTookTheLeastTimeAreTaken) {
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  struct Choice {
    std::string fast;
    double dropout;
    std::size_t calls;
  };
  for (const Choice& choice :
       {Choice{"layers3 input32 hidden16 length5 batch6 persist_dynamic", 0, 1}, Choice{"layers1 ", 0, 3},
        Choice{"layers1 input32 hidden16 length5 batch6 persist_small_h", 0.5, 3}}) {
    TimingDevice device([&](const cuda::Call& call) { return has(call.name, choice.fast.c_str()) ? 1e-6 : 1e-4; });
    const auto backend = cuda::make_backend(device, {});
    LstmTraining training(*backend, {16, 3, 31, 5, 6, choice.dropout}, Precision::bf16);
    device.clear_calls();
    training.step(0);
    const std::vector<std::string> names = recurrent_calls(device);
    EXPECT_EQ(names.size(), choice.calls) << choice.fast;
    EXPECT_TRUE(std::ranges::any_of(names, [&](const std::string& name) { return has(name, choice.fast.c_str()); }))
        << choice.fast;
    device.check_guards();
  }
}

TEST(LstmOnTheGpu, ARefusedAlgorithmLeavesTheStandardOne) {
  Gpu gpu(refusing([](const cuda::RnnOperation& o) {
    return std::string(o.algorithm == cuda::RnnAlgorithm::standard ? "" : "not at this size");
  }));
  LstmTraining training(*gpu.backend, {16, 3, 31, 5, 6, 0.5}, Precision::bf16);
  gpu.device.clear_calls();
  training.step(0);
  const std::vector<std::string> names = recurrent_calls(gpu.device);
  EXPECT_EQ(names.size(), 3u);
  for (const std::string& name : names) EXPECT_NE(name.find(" standard "), std::string::npos) << name;
}

TEST(LstmOnTheGpu, ReplayedGraphsGiveTheBitsOfSingleLaunches) {
  const LstmSetting setting{16, 2, 31, 5, 6, 0.1, true, 4, Precision::bf16, 2};
  cuda::BackendOptions without_graphs;
  without_graphs.graphs = false;
  Gpu replayed, launched({}, without_graphs);
  LstmTraining a(*replayed.backend, setting, setting.precision), b(*launched.backend, setting, setting.precision);
  for (std::int64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(a.step(step).loss, b.step(step).loss);
    EXPECT_EQ(a.gradients(), b.gradients());
    EXPECT_EQ(a.state_, b.state_);
    a.update();
    b.update();
  }
  EXPECT_GT(std::count_if(replayed.device.calls().begin(), replayed.device.calls().end(),
                          [](const cuda::Call& c) { return c.kind == cuda::Call::Kind::graph; }),
            0);
}

// A pass without carried state starts from zeros, also after a pass with carried state, replayed or not.
TEST(LstmOnTheGpu, StateThatIsNotCarriedIsZero) {
  const LstmSetting setting{16, 2, 31, 5, 6};
  Gpu gpu;
  LstmTraining training(*gpu.backend, setting, Precision::fp32);
  const double fresh = training.step(0).loss;
  training.s_.carried = true;
  const double carried = training.step(0).loss;
  EXPECT_NE(carried, fresh);
  for (int again = 0; again < 3; ++again) {
    training.s_.carried = again == 1;
    EXPECT_EQ(training.step(0).loss == fresh, again != 1);
  }
}

// cuDNN gives the gradient of 16-bit weights in 16 bits. The sum over micro-steps is in fp32.
TEST(LstmOnTheGpu, MicroStepsAreAddedUpInFp32InEveryPrecision) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const LstmSetting one{16, 2, 31, 5, 4};
    LstmSetting many = one;
    many.micro_steps = 4;
    Gpu gpu;
    LstmTraining whole(*gpu.backend, many, precision), single(*gpu.backend, {16, 2, 31, 5, 1}, precision);
    whole.step(0);
    const std::vector<float> found = whole.gradients();

    TestPass pass = whole.pass(0);
    std::vector<float> sum(found.size(), 0.0f);
    for (std::int64_t row = 0; row < one.rows; ++row) {
      run(*single.program_, pass);
      single.program_->backward(*single.gradients_, false, {});
      const std::vector<float> part = single.gradients();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      pass.inputs += one.positions;
      pass.targets += one.positions;
      ++pass.first_row;
    }
    EXPECT_EQ(found, sum) << precision_name(precision);
  }
}

TEST(LstmOnTheGpu, GradientsBelowAWatermarkAreFinalWhenItIsReported) {
  for (const double dropout : {0.0, 0.25}) {
    const LstmSetting setting{16, 3, 31, 5, 6, dropout, false, 0, Precision::fp32, 2};
    cuda::BackendOptions options;
    options.segment_elements = 512;
    Gpu gpu(as_late_as_allowed(), options);
    LstmTraining training(*gpu.backend, setting, Precision::fp32);
    for (int step = 0; step < 3; ++step) {  // launched, then captured, then replayed
      std::vector<std::pair<std::int64_t, std::vector<float>>> reported;
      BackwardHooks hooks;
      hooks.ready = [&](std::int64_t watermark) { reported.emplace_back(watermark, training.gradients()); };
      training.step(step, hooks);
      const std::vector<float> final = training.gradients();
      ASSERT_FALSE(reported.empty());
      EXPECT_EQ(reported.back().first, training.table_.size());
      EXPECT_GT(reported.size(), dropout > 0 ? 2u : 0u);
      std::int64_t before = 0;
      for (const auto& [watermark, gradients] : reported) {
        EXPECT_GT(watermark, before);
        before = watermark;
        EXPECT_TRUE(std::equal(final.begin(), final.begin() + watermark, gradients.begin())) << watermark;
      }
    }
  }
}

TEST(LstmOnTheGpu, PredictedMemoryIsWhatIsTaken) {
  Gpu gpu;
  const Graph graph = char_lstm({"char_lstm", 16, 2, 0.1}, {5, 31});
  const auto program = gpu.backend->compile(graph, 6, Precision::bf16, PassMode::training);
  std::int64_t predicted = 0;
  for (const MemoryItem& item : program->memory()) predicted += item.bytes;
  const std::int64_t before = gpu.backend->allocated_bytes();
  program->allocate();
  EXPECT_EQ(gpu.backend->allocated_bytes() - before, predicted);
}

}  // namespace
}  // namespace ringtrain
