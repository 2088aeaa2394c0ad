// Compares operations of cuDNN with loops on the CPU. The tests cover every operation of ResNet-50 and the LSTM, and
// every operation that the recorded tables of plans list for this kind of GPU, in each precision, plain and fused.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "backend/cuda/backend.h"
#include "base/clock.h"
#include "tests/emulation/host_device.h"
#include "tests/gpu/compared_operation.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/recorded_operations.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

// Keeps the operations that programs ask for while they are compiled.
class Asking final : public HostDevice {
 public:
  using HostDevice::plan;
  const DnnPlan* plan(const DnnOperation& operation, std::string* why) override {
    if (keys_.insert(operation.key()).second) operations.push_back(operation);
    return HostDevice::plan(operation, why);
  }
  std::vector<DnnOperation> operations;

 private:
  std::set<std::string> keys_;
};

std::vector<DnnOperation> operations_of_both_models(Precision precision, std::int64_t samples) {
  Asking device;
  const bool small = on_host_device();
  SampleShape text;
  text.sequence = 16;
  text.vocabulary = 96;
  const auto backend = make_backend(device, {});
  backend->compile(small_resnet(50, small ? 8 : 64, "imagenet", small ? 32 : 224, 0, small ? 16 : 1000), samples,
                   precision, PassMode::training, samples);
  backend->compile(char_lstm({}, text), samples, precision, PassMode::training);
  return device.operations;
}

bool of_precision(const DnnOperation& op, Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return op.type == Type::fp32 && op.math == Math::fp32;
    case Precision::tf32:
      return op.math == Math::tf32;
    case Precision::bf16:
      return op.type == Type::bf16;
    case Precision::fp16:
      return op.type == Type::fp16;
  }
  return false;
}

// Makes the operation smaller than recorded, because loops on the CPU are slow. A convolution has fewer samples, and on
// the host device fewer channels and smaller maps. A matrix product is smaller only on the host device. Fusions,
// windows and strides stay.
DnnOperation of_size(DnnOperation op, std::int64_t samples) {
  if (op.kind == DnnKind::matmul) {
    if (on_host_device())
      for (std::int64_t* size : {&op.m, &op.n, &op.k}) *size = (*size + 31) / 32;
    return op;
  }
  op.n = samples;
  if (!on_host_device()) return op;
  op.c = (op.c + 31) / 32, op.k = (op.k + 31) / 32;
  op.h = op.h / 14 + op.r, op.w = op.w / 14 + op.r;
  return op;
}

// The operations that the record lists for this kind of GPU in this precision, fused or plain.
std::vector<DnnOperation> operations_on_record(Precision precision, std::int64_t samples) {
  const std::string device = on_host_device() ? "h200" : recorded_device(gpu().facts());
  std::vector<DnnOperation> operations;
  if (device.empty()) return operations;
  for (const RecordedOperation& recorded : recorded_operations(device))
    if (recorded.answer.found && of_precision(recorded.operation, precision))
      operations.push_back(of_size(recorded.operation, samples));
  return operations;
}

bool is_plain(const DnnOperation& op) {
  return op.prologue == Prologue::none && op.epilogue == Epilogue::none && op.engine == Engine::general;
}

// Lists every operation once, the most important ones first, because the time is limited. The operations that the
// programs need come first, then fused ones, then plain ones of other models.
std::vector<DnnOperation> all_operations(Precision precision, std::int64_t samples) {
  std::vector<DnnOperation> fused, others, operations;
  std::set<std::string> keys;
  const auto add = [&](const std::vector<DnnOperation>& more, std::vector<DnnOperation>& plain) {
    for (const DnnOperation& op : more)
      if (keys.insert(op.key()).second) (is_plain(op) ? plain : fused).push_back(op);
  };
  add(operations_of_both_models(precision, samples), operations);
  add(operations_on_record(precision, samples), others);
  operations.insert(operations.end(), fused.begin(), fused.end());
  operations.insert(operations.end(), others.begin(), others.end());
  return operations;
}

class GpuOperations : public testing::TestWithParam<Precision> {};

TEST_P(GpuOperations, EqualLoopsOnTheCpu) {
  const auto samples = static_cast<std::int64_t>(setting("RINGTRAIN_GPU_SAMPLES", 8));
  const double limit = setting("RINGTRAIN_GPU_SECONDS", 90), begin = now_seconds();
  std::ofstream table;
  if (const std::string file = out_file("operations.csv"); !file.empty()) table.open(file, std::ios::app);
  int checked = 0, refused = 0, left = 0;
  const std::vector<DnnOperation> operations = all_operations(GetParam(), samples);
  for (const DnnOperation& op : operations) {
    if (now_seconds() - begin > limit) {
      ++left;
      continue;
    }
    const ComparedOperation outcome = compare_with_loops(op);
    ++(outcome.found ? checked : refused);
    if (outcome.found) {
      EXPECT_LE(outcome.difference, rounding_of(op)) << op.key() << " by " << outcome.text;
      EXPECT_TRUE(outcome.same_bits) << op.key() << " by " << outcome.text << " gives other bits when it runs again";
    } else {
      EXPECT_FALSE(is_plain(op)) << op.key() << " has no plan: " << outcome.text;
    }
    if (table)
      table << '"' << op.key() << "\"," << (outcome.found ? "compared" : "refused") << ',' << outcome.difference << ','
            << (outcome.same_bits ? "same bits" : "other bits") << ",\"" << outcome.text << "\"\n";
  }
  std::printf("%s: %d operations compared, %d refused, %d not reached in %g s\n", precision_name(GetParam()), checked,
              refused, left, limit);
  RecordProperty("compared", checked);
  RecordProperty("not_reached", left);
  EXPECT_GT(checked, 0);
}

// In bf16 an H200 has data gradients fused with the ReLU and the sums of the norm before them. Some of them also write
// the ReLU's output.
TEST(GpuOperationsOnRecord, HaveTheFusedDataGradientsOfAnH200) {
  std::map<Epilogue, int> gradients;
  int sums = 0;
  for (const RecordedOperation& recorded : recorded_operations("h200")) {
    const DnnOperation& op = recorded.operation;
    if (!recorded.answer.found || op.type != Type::bf16) continue;
    if (op.kind == DnnKind::data_gradient) ++gradients[op.epilogue];
    sums += op.kind == DnnKind::convolution && op.epilogue == Epilogue::sums;
  }
  EXPECT_GE(gradients[Epilogue::relu_sums_output], 8);
  EXPECT_GE(gradients[Epilogue::relu_sums], 8);
  EXPECT_GE(gradients[Epilogue::add_relu_sums], 8);
  EXPECT_GE(sums, 20);
  std::set<std::string> asked;
  for (const DnnOperation& op : all_operations(Precision::bf16, 1)) asked.insert(op.key());
  for (const DnnOperation& op : operations_on_record(Precision::bf16, 1))
    EXPECT_TRUE(asked.contains(op.key())) << op.key();
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuOperations,
                         testing::Values(Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16),
                         [](const auto& information) { return std::string(precision_name(information.param)); });

}  // namespace
}  // namespace ringtrain::cuda
