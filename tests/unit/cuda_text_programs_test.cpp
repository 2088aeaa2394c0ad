// Runs whole GPU programs of LSTM models on a device in host memory and compares them with the CPU backend.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct TextCase {
  const char* name;
  std::int64_t hidden, layers;
  double dropout;
  std::int64_t length, vocabulary, rows, micro_batch;
  bool carried = false;
  std::int64_t blank_every = 0;
};
std::ostream& operator<<(std::ostream& out, const TextCase& c) {
  return out << c.name;
}
Task task_of(const TextCase& c) {
  return text_task({.kind = "char_lstm", .hidden = c.hidden, .layers = c.layers, .dropout = c.dropout}, c.length,
                   c.vocabulary, c.rows, c.micro_batch, c.carried, c.blank_every);
}

std::vector<TextCase> text_cases() {
  return {
      {"OneLayer", 16, 1, 0, 5, 11, 6, 6},
      {"FourLayersNoDropout", 24, 4, 0, 7, 31, 8, 8},
      {"FourLayersDropout", 24, 4, 0.2, 7, 31, 8, 8},
      {"DropoutThreeMicroSteps", 16, 3, 0.4, 6, 13, 12, 4},
      {"CarriedState", 16, 2, 0, 5, 9, 6, 6, true},
      {"CarriedStateDropoutTwoMicroSteps", 16, 3, 0.3, 5, 9, 8, 4, true},
      {"MaskedBlanks", 16, 2, 0.1, 6, 17, 6, 3, false, 3},
      {"OddSizes", 13, 2, 0.25, 3, 7, 5, 5, true, 4},
      {"WideDropout", 136, 2, 0.5, 3, 5, 3, 3},
  };
}

class CudaText : public testing::TestWithParam<TextCase> {};

TEST_P(CudaText, TrainingEqualsTheCpuBackends) {
  const Task task = task_of(GetParam());
  expect_equal_training(task, train_on_cpu(task), train_on_host_device(task),
                        {.loss = 1e-5, .gradients = 5e-5, .weights = 1e-6, .logits = 2e-5});
}

TEST_P(CudaText, SixteenBitTrainingIsWithinRoundingsOfFp32) {
  Task task = task_of(GetParam());
  const Curve expected = train_on_cpu(task);
  for (const Precision precision : {Precision::tf32, Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(precision_name(precision));
    const double unit = precision == Precision::bf16 ? 8 : 1;
    task.precision = precision;
    const Curve actual = train_on_host_device(task);
    EXPECT_NE(actual.sums[0].loss, expected.sums[0].loss);
    expect_equal_training(task, expected, actual,
                          {.loss = 5e-4 * unit,
                           .gradients = 0,
                           .weights = 5e-4 * unit,
                           .logits = 5e-3 * unit,
                           .whole_gradient = 4e-3 * unit});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaText, testing::ValuesIn(text_cases()),
                         [](const auto& information) { return information.param.name; });

TEST(CudaTextPrograms, APassWithoutStateStartsFromZerosBehindOneThatCarriedIt) {
  const Task task = task_of({"", 16, 2, 0, 5, 9, 6, 6, true});
  HostDevice device;
  const auto backend = make_backend(device, {});
  const auto weights = backend->make_vector(task.table.size());
  backend->copy_from_host(task.weights, *weights, 0);
  const auto program = backend->compile(task.graph, 6, Precision::fp32, PassMode::training, 0);
  program->allocate();
  program->set_weights(*weights);
  std::vector<float> state = task.state;
  std::vector<double> losses;
  for (float* carried : {static_cast<float*>(nullptr), state.data(), static_cast<float*>(nullptr)})
    losses.push_back(program->run({task.inputs.data(), task.targets.data()}, {.state = carried}).loss);
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(CudaTextPrograms, RefusedAlgorithmsFallBackToOthersWithTheSameTraining) {
  const Task task = task_of({"", 16, 3, 0.2, 5, 9, 6, 6, true});
  const Curve expected = train_on_host_device(task);
  HostDeviceOptions device;
  device.refuse_rnn = [](const RnnOperation& op) {
    return op.algorithm == RnnAlgorithm::standard ? std::string() : "not this one";
  };
  expect_same_bits(expected, train_on_host_device(task, device));
}

TEST(CudaTextPrograms, EveryOptimizerOnTheDeviceIsTheCpus) {
  Task task = task_of({"", 16, 2, 0.1, 5, 9, 6, 3});
  for (const char* optimizer : {"adam", "adamw", "lars", "lamb", "rmsprop", "rmsprop_to_sgd"}) {
    SCOPED_TRACE(optimizer);
    task.optimizer = optimizer;
    // The first steps of these optimizers divide a gradient by its own size, so any rounding of a gradient near 0 has
    // an effect.
    expect_equal_training(task, train_on_cpu(task), train_on_host_device(task),
                          {.loss = 1e-4, .gradients = 2e-3, .weights = 1e-3, .logits = 1e-3});
  }
}

}  // namespace
}  // namespace ringtrain::cuda
