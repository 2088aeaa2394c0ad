// Runs whole GPU programs for images on a device in host memory and compares them with the CPU backend, in each
// precision and with every way to fuse. The programs train one to three steps. The device checks their accesses to
// memory.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain::cuda {
namespace {

struct ImageCase {
  const char* name;
  Graph graph;
  std::int64_t rows, micro_batch, group;
  // Limits of the gradient's relative difference with 10-bit fractions (tf32, fp16) and with bf16. The difference comes
  // from rounding, and from ReLUs that rounding opens or closes. The limits are 1.5 times measured values.
  double half_gradient, bf16_gradient;
};
std::ostream& operator<<(std::ostream& out, const ImageCase& c) {
  return out << c.name;
}

std::vector<ImageCase> image_cases() {
  return {
      {"BasicSmallStemTwoGroups", small_resnet(18, 8, "small", 16, 0.1), 4, 4, 2, 0.006, 0.16},
      {"BasicImageNetStemThreeMicroSteps", small_resnet(18, 8, "imagenet", 48), 6, 2, 2, 0.006, 0.1},
      {"BottleneckSmallStem", small_resnet(50, 8, "small", 16), 4, 4, 4, 0.01, 0.42},
      {"BottleneckImageNetStemTwoGroups", small_resnet(50, 8, "imagenet", 48, 0.1), 4, 4, 2, 0.15, 1.1},
      {"BottleneckStrideInTheFirst", small_resnet(50, 8, "small", 16, 0, 11, "1x1"), 4, 4, 4, 0.009, 0.44},
      {"CnnOddSize", cnn({}, image_shape(13, 10), {0.1}), 4, 2, 0, 0.001, 0.05},
      {"DescribedCnn", described_cnn(0.4), 4, 2, 0, 0.025, 0.16},
      {"DescribedMlp", described_mlp(0.3), 4, 2, 0, 0.012, 0.16},
      {"AlexNetLikeWithDropout", small_alexnet(0.5), 6, 2, 0, 0.012, 0.16},
      {"AlexNetLikeWithNorms", small_alexnet(0.5, true), 8, 4, 2, 0.08, 0.09},
      {"BasicGroupNorm", small_resnet(8, 8, "small", 16, 0.1, 11, "3x3", with_norms("group", 4)), 6, 3, 0, 0.01, 0.16},
      {"BasicImageNetStemGroupNorm", small_resnet(18, 8, "imagenet", 48, 0, 11, "3x3", with_norms("group", 2)), 3, 1, 0,
       0.01, 0.16},
      {"BottleneckGroupNorm", small_resnet(50, 6, "small", 16, 0.1, 11, "3x3", with_norms("group", 3)), 4, 4, 0, 0.01,
       0.4},
      {"BasicWithoutNorms", small_resnet(8, 8, "small", 16, 0.1, 11, "3x3", with_norms("none")), 4, 2, 0, 0.01, 0.16},
      {"CnnBatchNorm", described_cnn(0.4, with_norms("batch")), 4, 4, 2, 0.025, 0.16},
      {"CnnGroupNorm", described_cnn(0.4, with_norms("group", 6)), 4, 2, 0, 0.025, 0.16},
      {"MlpBatchNorm", described_mlp(0.3, with_norms("batch")), 32, 32, 16, 0.025, 0.16},
      {"MlpGroupNorm", described_mlp(0.3, with_norms("group", 2)), 32, 16, 0, 0.025, 0.16},
  };
}

class CudaImages : public testing::TestWithParam<ImageCase> {};

TEST_P(CudaImages, TrainingEqualsTheCpuBackends) {
  const ImageCase& c = GetParam();
  const Task task = image_task(c.graph, c.rows, c.micro_batch, c.group);
  expect_equal_training(task, train_on_cpu(task), train_on_host_device(task),
                        {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
}

TEST_P(CudaImages, SixteenBitTrainingIsWithinRoundingsOfFp32) {
  const ImageCase& c = GetParam();
  Task task = image_task(c.graph, c.rows, c.micro_batch, c.group);
  task.steps = 1;
  const Curve expected = train_on_cpu(task);
  for (const Precision precision : {Precision::tf32, Precision::bf16, Precision::fp16}) {
    SCOPED_TRACE(precision_name(precision));
    const double unit = precision == Precision::bf16 ? 8 : 1;
    task.precision = precision;
    const Curve actual = train_on_host_device(task);
    EXPECT_NE(actual.sums[0].loss, expected.sums[0].loss);
    expect_equal_training(task, expected, actual,
                          {.loss = 2e-3 * unit,
                           .gradients = 0,
                           .weights = 1e-3 * unit,
                           .logits = 1e-2 * unit,
                           .whole_gradient = unit > 1 ? c.bf16_gradient : c.half_gradient});
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, CudaImages, testing::ValuesIn(image_cases()),
                         [](const auto& information) { return information.param.name; });

Task small_task(const std::string& stem = "imagenet", std::int64_t micro_batch = 4) {
  return image_task(small_resnet(18, 8, stem, 48), 4, micro_batch, 2);
}

// A compiled training program on a device in host memory. `choices` are the choices of its layers. `bytes` counts what
// all its commands move, except the copies to the flat gradients.
struct Compiled {
  std::vector<FusionChoice> choices;
  double bytes = 0;
};
Compiled compiled(const Task& task, const HostDeviceOptions& options = {}, const std::string& forced = "") {
  FusionTable table;
  table.load(forced);
  HostDevice device(options);
  const auto program = make_backend(device, {.fusions = &table})
                           ->compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
  Compiled result{table.choices()};
  for (const Command& command : dynamic_cast<const ProgramBase&>(*program).schedule().commands())
    if (command.name != "gradients home") result.bytes += command.bytes;
  return result;
}

std::string line_of(const FusionChoice& choice, const std::string& way) {
  return cat(choice.key, "\t", way, "\t0\t", choice.site, "\t\n");
}

// Returns tables that together give every way to some site of each kind. Neighbouring sites of a kind get different
// ways. Sites are of the same kind when they have the same ways.
std::vector<std::string> forced_tables(const std::vector<FusionChoice>& choices) {
  std::map<std::vector<std::string>, std::vector<FusionChoice>> kinds;
  std::set<std::string> seen;  // equal sites share a line
  for (const FusionChoice& choice : choices)
    if (seen.insert(choice.key).second) kinds[choice.ways].push_back(choice);
  std::size_t rounds = 1;
  for (const auto& [ways, sites] : kinds) rounds = std::max(rounds, (ways.size() + sites.size() - 1) / sites.size());
  std::vector<std::string> tables(rounds);
  for (std::size_t round = 0; round < rounds; ++round)
    for (const auto& [ways, sites] : kinds) {
      const std::size_t stride = rounds % ways.size() == 0 ? 1 : rounds;
      for (std::size_t i = 0; i < sites.size(); ++i)
        tables[round] += line_of(sites[i], ways[(i * stride + round) % ways.size()]);
    }
  return tables;
}

// Calls `check` for every table of forced_tables(), with a function that trains a task with this table.
template <class Check>
void train_every_way(const Task& task, const Check& check) {
  const std::vector<FusionChoice> choices = compiled(task).choices;
  std::set<std::string> names, taken;
  for (const FusionChoice& choice : choices) names.insert(choice.ways.begin(), choice.ways.end());
  for (const std::string& forced : forced_tables(choices)) {
    FusionTable table;
    table.load(forced);
    check([&](const Task& t) { return train_on_host_device(t, {}, {.fusions = &table}); });
    for (const FusionChoice& choice : table.choices()) {
      EXPECT_NE(forced.find(cat(choice.key, "\t", choice.way, "\t")), std::string::npos) << choice.way;
      taken.insert(choice.way);
    }
  }
  EXPECT_GT(names.size(), 6u) << "nothing is fused at all";
  for (const std::string& name : names) EXPECT_TRUE(taken.contains(name)) << "nothing takes " << name;
}

// Returns whether an expectation of `action` fails. The failure does not count as one of the test.
template <class Action>
bool fails(const Action& action) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(&results);
    action();
  }
  for (int i = 0; i < results.size(); ++i)
    if (results.GetTestPartResult(i).failed()) return true;
  return false;
}

// In the second step, a ReLU whose argument is close to 0 may be open in one result and closed in the other. With
// another learning rate, its argument is not close to 0. A fault is found with both rates.
TEST(CudaFusions, EveryWayToComputeALayerGivesTheSameTraining) {
  for (const auto& [depth, size] : {std::pair<int, int>{18, 16}, {50, 48}}) {
    Task task = image_task(small_resnet(depth, 8, size == 16 ? "small" : "imagenet", size), 4, 4, 2);
    task.steps = 2;
    Task other_rate = task;
    other_rate.rate *= 1.5;
    const Curve expected = train_on_cpu(task), of_other_rate = train_on_cpu(other_rate);
    SCOPED_TRACE(cat("ResNet-", depth));
    constexpr Tolerance tolerance{.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4};
    train_every_way(task, [&](const auto& train_with_table) {
      if (fails([&] { expect_equal_training(task, expected, train_with_table(task), tolerance); }))
        expect_equal_training(other_rate, of_other_rate, train_with_table(other_rate), tolerance);
    });
  }
}

TEST(CudaFusions, EveryWayIsWithinRoundingsInSixteenBits) {
  Task task = image_task(small_resnet(50, 8, "small", 16), 4, 4, 4);
  task.steps = 1;
  const Curve expected = train_on_cpu(task);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const double unit = precision == Precision::bf16 ? 8 : 1;
    task.precision = precision;
    SCOPED_TRACE(precision_name(precision));
    train_every_way(task, [&](const auto& train_with_table) {
      expect_equal_training(task, expected, train_with_table(task),
                            {.loss = 3e-3 * unit,
                             .gradients = 0,
                             .weights = 1e-3 * unit,
                             .logits = 1e-2 * unit,
                             .whole_gradient = unit > 1 ? 0.42 : 0.012});
    });
  }
}

// No convolution makes the sums of a group norm, or takes its factors. The addition of gradients is still fused.
TEST(CudaFusions, EveryWayAroundGroupNormsGivesTheSameTraining) {
  Task task = image_task(small_resnet(18, 8, "small", 16, 0.1, 11, "3x3", with_norms("group", 4)), 4, 2, 0);
  task.steps = 2;
  const Curve expected = train_on_cpu(task);
  std::set<std::string> names;
  for (const FusionChoice& choice : compiled(task).choices) names.insert(choice.ways.begin(), choice.ways.end());
  EXPECT_TRUE(names.contains("input addition in the data gradient"));
  for (const std::string& name : names)
    for (const char* fused : {"epilogue", "prologue", "sums"}) EXPECT_EQ(name.find(fused), std::string::npos) << name;
  for (const std::string& forced : forced_tables(compiled(task).choices)) {
    FusionTable table;
    table.load(forced);
    expect_equal_training(task, expected, train_on_host_device(task, {}, {.fusions = &table}),
                          {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
  }
}

// With the fused way, the norm's result, which is ResNet's largest map, and its gradient never go through memory.
TEST(CudaFusions, TheStemIsPooledWithoutTheMapInMemory) {
  Task task = small_task();
  task.steps = 1;
  const auto moved_bytes = [&](FusionTable& table, int& own, int& separate) {
    HostDevice device;
    const auto backend = make_backend(device, {.fusions = &table});
    train(*backend, task);
    double bytes = 0;
    for (const Call& call : device.flat_calls()) {
      if (call.kind != Call::Kind::kernel) continue;
      own += call.name.starts_with("norm_pool");
      separate += call.name.starts_with("max_pool");
      for (const Region& region : call.regions) bytes += static_cast<double>(region.bytes);
    }
    return bytes;
  };
  FusionTable table, forced;
  int own = 0, separate = 0;
  const double joined_bytes = moved_bytes(table, own, separate);
  EXPECT_EQ(own, 4) << "training: three, inference: one";
  EXPECT_EQ(separate, 0);
  std::string text = table.text();
  const std::string way = "pooled on the way\t";
  const std::size_t chosen = text.find("\t" + way);
  ASSERT_NE(chosen, std::string::npos) << text;
  forced.load(text.replace(chosen + 1, way.size(), "separate\t"));
  own = separate = 0;
  const double separate_bytes = moved_bytes(forced, own, separate);
  EXPECT_EQ(own, 1) << "in inference";
  EXPECT_EQ(separate, 2);
  // In fp32, with 24 x 24 and 12 x 12 places and 8 channels, the separate way moves five maps and three masks more in
  // training, and the fused way moves the pooled map and its places once more. Partial sums differ a little.
  const double map = 4 * 4 * 24 * 24 * 8, pooled = 4 * 5 * 12 * 12 * 8, mask = map / 32;
  EXPECT_NEAR(separate_bytes - joined_bytes, 5 * map + 3 * mask - pooled, 0.05 * map);
}

// Trials run the program's own commands on scratch memory. Each trial may touch only the memory that its commands name,
// and the memory is released. Every convolution of the program, forward or backward, must be timed.
TEST(CudaFusions, AWholeResNetIsTimedCommandByCommand) {
  for (const Precision precision : {Precision::fp32, Precision::fp16}) {
    SCOPED_TRACE(precision_name(precision));
    Task task = image_task(small_resnet(50, 8, "small", 16), 4, 4, precision == Precision::fp32 ? 2 : 4);
    task.steps = 1;
    const Curve expected = train_on_cpu(task);
    task.precision = precision;
    HostDeviceOptions options;
    options.times = options.isolate_commands = true;
    HostDevice device(options);
    FusionTable table;
    const std::int64_t before = device.allocated_bytes();
    const auto program = make_backend(device, {.fusions = &table})
                             ->compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
    EXPECT_EQ(device.allocated_bytes(), before);
    std::set<std::string> timed;
    for (const Call& call : device.calls()) timed.insert(call.name);
    for (const Command& command : dynamic_cast<const ProgramBase&>(*program).schedule().commands()) {
      const std::string key = command.operation.substr(0, command.operation.rfind(" x"));
      if (!key.empty() && !key.starts_with("matmul")) {
        EXPECT_TRUE(timed.contains(key)) << key;
      }
    }
    EXPECT_GT(table.choices().size(), 50u);
    for (const FusionChoice& choice : table.choices()) EXPECT_GT(choice.seconds, 0) << choice.site;

    FusionTable again;
    HostDevice other(options);
    make_backend(other, {.fusions = &again})
        ->compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
    EXPECT_EQ(again.text(), table.text());
    const bool half = precision == Precision::fp16;
    expect_equal_training(task, expected, train_on_host_device(task, {}, {.fusions = &table}),
                          {.loss = half ? 3e-3 : 1e-5,
                           .gradients = half ? 0 : 1e-4,
                           .weights = half ? 1e-3 : 1e-6,
                           .logits = half ? 1e-2 : 1e-4,
                           .whole_gradient = half ? 0.012 : 0});
  }
}

// cuDNN compiles no data gradient with a stride and sums, and needs seconds to refuse one.
TEST(CudaFusions, NoDataGradientWithAStrideIsAskedForSums) {
  Task task = image_task(small_resnet(50, 8, "imagenet", 48), 4, 4, 4);
  task.precision = Precision::bf16;
  int sums = 0, strided_with_sums = 0;
  HostDeviceOptions device;
  device.refuse_dnn = [&](const DnnOperation& op) {
    const bool brings = op.kind == DnnKind::data_gradient &&
                        (op.epilogue == Epilogue::relu_sums || op.epilogue == Epilogue::relu_sums_output ||
                         op.epilogue == Epilogue::add_relu_sums);
    sums += brings;
    strided_with_sums += brings && op.stride > 1;
    return brings ? "no engine" : "";
  };
  compiled(task, device);
  EXPECT_GT(sums, 0);
  EXPECT_EQ(strided_with_sums, 0);
}

bool makes_sums(const DnnOperation& o) {
  return o.epilogue != Epilogue::none && o.epilogue != Epilogue::add && o.epilogue != Epilogue::bias;
}

// A device may refuse two fusions together although it has a kernel for each alone, as an H200 does in bf16. The choice
// is then made over the whole site: no other way that the device has, at any site, would let the program move fewer
// bytes.
TEST(CudaFusions, WhatADeviceRefusesTogetherFallsToTheNextByBytesOverTheWholeSite) {
  Task task = image_task(small_resnet(18, 8, "small", 16), 4, 4, 4);
  struct Refusal {
    const char* pair;
    bool (*of)(const DnnOperation&);
  };
  const Refusal refusals[] = {
      {"none", [](const DnnOperation&) { return false; }},
      {"prologue and sums; prologue and weight gradient",
       [](const DnnOperation& o) {
         return o.prologue != Prologue::none && (makes_sums(o) || o.kind == DnnKind::weight_gradient);
       }},
      {"data gradient and second output; prologue and weight gradient",
       [](const DnnOperation& o) {
         return o.epilogue == Epilogue::relu_sums_output ||
                (o.prologue != Prologue::none && o.kind == DnnKind::weight_gradient);
       }},
      {"data gradient and sums",
       [](const DnnOperation& o) { return o.kind == DnnKind::data_gradient && makes_sums(o); }}};
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const Refusal& refusal : refusals) {
      if (precision == Precision::fp16 && &refusal != &refusals[1]) continue;  // bf16 covers the others
      SCOPED_TRACE(cat(precision_name(precision), ", refused pair: ", refusal.pair));
      task.precision = precision;
      HostDeviceOptions device;
      device.refuse_dnn = [&](const DnnOperation& o) { return refusal.of(o) ? "no engine" : ""; };
      const Compiled chosen = compiled(task, device);
      int others = 0;
      for (const char* site : {"layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv2", "layer2.1.conv1"}) {
        const auto choice = std::ranges::find(chosen.choices, site, &FusionChoice::site);
        ASSERT_NE(choice, chosen.choices.end()) << site;
        for (const std::string& way : choice->ways) {
          // A weight gradient with a prologue is taken only after a proof, which untimed choices do not have.
          if (way.find("normalised in the prologues") != std::string::npos) continue;
          const Compiled other = compiled(task, device, line_of(*choice, way));
          if (std::ranges::find(other.choices, site, &FusionChoice::site)->way != way) continue;  // this way is refused
          ++others;
          EXPECT_GE(other.bytes, chosen.bytes * (1 - 1e-12)) << site << ": " << choice->way << ", or " << way;
        }
      }
      EXPECT_GT(others, 20);
    }
}

// The choice moves 18 maps instead of 21. bf16 has no kernel with both prologue and sums. After a bottleneck's last
// convolution the sums save more, because its result has four times the channels of its input.
TEST(CudaFusions, ABottlenecksLastConvolutionPrefersSumsToThePrologueWhereItCannotHaveBoth) {
  Task task = image_task(small_resnet(50, 8, "small", 16), 4, 4, 4);
  task.precision = Precision::bf16;
  HostDeviceOptions device;
  device.refuse_dnn = [&](const DnnOperation& o) {
    return o.prologue != Prologue::none && (makes_sums(o) || o.kind == DnnKind::weight_gradient) ? "no engine" : "";
  };
  int seen = 0;
  for (const FusionChoice& choice : compiled(task, device).choices) {
    if (!choice.site.ends_with(".conv3")) continue;
    ++seen;
    EXPECT_EQ(choice.way, "input sums in the data gradient, statistics in the epilogue, weight gradient in bf16")
        << choice.site;
  }
  EXPECT_EQ(seen, 16);
}

TEST(CudaFusions, ARefusedFusionFallsBackAndTheTableSaysSo) {
  const Task task = image_task(small_resnet(18, 8, "imagenet", 48), 4, 4, 4);
  FusionTable table;
  HostDeviceOptions device;
  device.refuse_dnn = [](const DnnOperation& op) {
    return op.prologue != Prologue::none || op.epilogue == Epilogue::sums ? std::string("no engine") : "";
  };
  const Curve plain = train_on_host_device(task, device, {.fusions = &table});
  EXPECT_NE(table.text().find("no engine"), std::string::npos);
  expect_equal_training(task, train_on_host_device(task), plain,
                        {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-6, .logits = 1e-4});
}

TEST(CudaImagePrograms, ScaledFp16GradientsAreTheScaleTimesTheGradients) {
  Task task = small_task();
  task.steps = 2;
  task.precision = Precision::fp16;
  const Curve one = train_on_host_device(task);
  task.overflow_scale = 256;
  Curve scaled = train_on_host_device(task);
  for (std::size_t step = 0; step < scaled.gradients.size(); ++step) {
    for (std::int64_t i = 0; i < task.table.trained(); ++i) scaled.gradients[step][static_cast<std::size_t>(i)] /= 256;
    EXPECT_LE(relative_difference(scaled.gradients[step].data(), one.gradients[step].data(), task.table.size()), 1e-2);
    EXPECT_NEAR(scaled.updates[step].gradient_norm, one.updates[step].gradient_norm,
                1e-2 * one.updates[step].gradient_norm);
  }
}

TEST(CudaImagePrograms, AnOverflowLeavesWeightsStatisticsAndOptimizerUntouched) {
  Task task = small_task();
  task.steps = 2;
  task.precision = Precision::fp16;
  task.overflow_scale = 1e9f;
  const Curve curve = train_on_host_device(task);
  EXPECT_FALSE(curve.updates[0].applied);
  EXPECT_EQ(curve.weights[0], task.weights);
  EXPECT_EQ(curve.weights[1], task.weights);
}

}  // namespace
}  // namespace ringtrain::cuda
