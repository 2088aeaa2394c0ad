// Tests that recomputed blocks give the same bits as a run without recomputation, in less memory.
#include <gtest/gtest.h>

#include <functional>

#include "backend/cpu/processor.h"
#include "base/error.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain {
namespace {

struct RecomputedCase {
  const char* name;
  std::function<cuda::Task()> task;  // each test makes its own, because making all takes longer
  int threads = 2;
};

std::ostream& operator<<(std::ostream& out, const RecomputedCase& c) {
  return out << c.name;
}

ModelConfig text_model(double dropout) {
  ModelConfig model;
  model.layers = 3;
  model.hidden = 24;
  model.dropout = dropout;
  return model;
}

// Maps have at least 16 channels. For fewer, oneDNN has no generated code with AVX-512, and takes a hundred times as
// long.
std::vector<RecomputedCase> recomputed_cases() {
  return {
      {"ResNet18SmallStem", [] { return cuda::image_task(small_resnet(18, 16, "small", 24), 8, 4, 2); }},
      {"ResNet18ManySlices", [] { return cuda::image_task(small_resnet(18, 16, "small", 16), 64, 64, 16); }},
      {"ResNet18OddSizesOddChannels",
       [] { return cuda::image_task(small_resnet(18, 20, "imagenet", 43, 0.1), 6, 3, 3); }, 1},
      {"ResNet50ImageNetStem", [] { return cuda::image_task(small_resnet(50, 16, "imagenet", 64), 6, 6, 3); }},
      {"Cnn", [] { return cuda::image_task(cnn({}, image_shape(32, 10), {0.1}), 24, 12, 12); }},
      {"AlexNetLikeWithDropout", [] { return cuda::image_task(small_alexnet(0.5), 8, 4, 4); }},
      {"AlexNetLikeWithNorms", [] { return cuda::image_task(small_alexnet(0.5, true), 8, 4, 4); }},
      {"ResNet8GroupNorm",
       [] {
         return cuda::image_task(small_resnet(8, 16, "small", 24, 0, 11, "3x3", with_norms("group", 4)), 8, 4, 0);
       }},
      {"CnnGroupNorm", [] { return cuda::image_task(described_cnn(0.4, with_norms("group", 4)), 24, 12, 0); }},
      {"Lstm", [] { return cuda::text_task(text_model(0.25), 9, 13, 12, 6); }},
      {"LstmWithoutDropout", [] { return cuda::text_task(text_model(0), 20, 13, 200, 200); }},
      {"LstmCarriedState", [] { return cuda::text_task(text_model(0.25), 20, 13, 14, 7, true, 3); }, 3},
  };
}

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> all;
  for (const Block& block : graph.blocks()) all.push_back(block.name);
  return all;
}

std::vector<std::string> every_other(const Graph& graph, std::size_t first) {
  const std::vector<std::string> all = names(graph);
  std::vector<std::string> some;
  for (std::size_t i = first; i < all.size(); i += 2) some.push_back(all[i]);
  return some;
}

cuda::Task recomputed(cuda::Task task, const std::vector<std::string>& blocks) {
  task.graph.recompute(blocks);
  return task;
}

std::int64_t program_bytes(Backend& backend, const cuda::Task& task, PassMode mode = PassMode::training) {
  const auto program = backend.compile(task.graph, task.micro_batch, task.precision, mode, task.group);
  std::int64_t predicted = 0;
  for (const MemoryItem& item : program->memory()) predicted += item.bytes;
  const std::int64_t before = backend.allocated_bytes();
  program->allocate();
  EXPECT_EQ(backend.allocated_bytes() - before, predicted);
  return predicted;
}

class Recomputation : public testing::TestWithParam<RecomputedCase> {};

TEST_P(Recomputation, OfAllBlocksChangesNoBit) {
  const RecomputedCase& c = GetParam();
  const auto backend = make_cpu_backend(c.threads);
  const cuda::Task task = c.task();
  cuda::expect_same_bits(cuda::train(*backend, task), cuda::train(*backend, recomputed(task, names(task.graph))));
}

TEST_P(Recomputation, OfEveryOtherBlockChangesNoBit) {
  const RecomputedCase& c = GetParam();
  const auto backend = make_cpu_backend(c.threads);
  const cuda::Task task = c.task();
  const cuda::Curve expected = cuda::train(*backend, task);
  for (std::size_t first : {0, 1}) {
    SCOPED_TRACE(cat("from block ", first));
    cuda::expect_same_bits(expected, cuda::train(*backend, recomputed(task, every_other(task.graph, first))));
  }
}

TEST_P(Recomputation, In16BitsChangesNoBit) {
  if (cpu::best_isa() != cpu::Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  cuda::Task task = GetParam().task();
  task.precision = Precision::bf16;
  const auto backend = make_cpu_backend(GetParam().threads);
  cuda::expect_same_bits(cuda::train(*backend, task), cuda::train(*backend, recomputed(task, names(task.graph))));
}

TEST_P(Recomputation, TakesWhatItPredicts) {
  const RecomputedCase& c = GetParam();
  const auto backend = make_cpu_backend(c.threads);
  const cuda::Task task = c.task(), all = recomputed(task, names(task.graph));
  EXPECT_LT(program_bytes(*backend, all), program_bytes(*backend, task));
  EXPECT_EQ(program_bytes(*backend, all, PassMode::inference), program_bytes(*backend, task, PassMode::inference));
}

TEST_P(Recomputation, OnAGpuChangesNoBit) {
  cuda::Task task = GetParam().task();
  task.steps = 2;
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    SCOPED_TRACE(precision_name(precision));
    task.precision = precision;
    const cuda::Curve expected = cuda::train_on_host_device(task);
    cuda::expect_same_bits(expected, cuda::train_on_host_device(recomputed(task, names(task.graph))));
    for (std::size_t first : {0, 1}) {
      SCOPED_TRACE(cat("every other block from ", first));
      cuda::expect_same_bits(expected, cuda::train_on_host_device(recomputed(task, every_other(task.graph, first))));
    }
  }
}

TEST_P(Recomputation, OnAGpuTakesWhatItPredicts) {
  const RecomputedCase& c = GetParam();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    cuda::Task task = c.task();
    task.precision = precision;
    cuda::HostDevice device;
    cuda::FusionTable fusions;
    const auto backend = cuda::make_backend(device, {.fusions = &fusions});
    const cuda::Task all = recomputed(task, names(task.graph));
    const std::int64_t less = program_bytes(*backend, all), plain = program_bytes(*backend, task);
    // A model of few layers needs most memory in its first layer. One call for all layers keeps what all of them need.
    const bool deep = task.graph.has_batch_norm() && task.graph.blocks().size() > 8;
    const bool by_layer = std::string_view(c.name) == "Lstm" || std::string_view(c.name) == "LstmCarriedState";
    EXPECT_LE(less, plain) << precision_name(precision);
    if (deep || by_layer) {
      EXPECT_LT(less, plain) << precision_name(precision);
    }
    EXPECT_EQ(program_bytes(*backend, all, PassMode::inference), program_bytes(*backend, task, PassMode::inference));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Recomputation, testing::ValuesIn(recomputed_cases()),
                         [](const auto& the_case) { return std::string(the_case.param.name); });

// With recomputation, 152 layers need less than half of the memory. Only the blocks' outputs are kept, which are 4 of
// 10 maps.
TEST(RecomputationTest, DeepModelsFit) {
  const auto backend = make_cpu_backend(2);
  cuda::Task task{.graph = small_resnet(152, 16, "small", 32),
                  .rows = 16,
                  .micro_batch = 16,
                  .group = 16,
                  .weights = {},
                  .inputs = {},
                  .targets = {},
                  .state = {}};
  const auto activations = [&](const cuda::Task& t) {
    return backend->compile(t.graph, t.micro_batch, t.precision, PassMode::training, t.group)->memory()[1].bytes;
  };
  EXPECT_LT(2 * activations(recomputed(task, names(task.graph))), activations(task));
}

TEST(RecomputationTest, ANameStandsForTheBlocksBelowIt) {
  Graph graph = small_resnet(18, 16, "small", 24);
  const auto chosen = [&] {
    std::string list;
    for (const Block& b : graph.blocks())
      if (b.recomputed) list += b.name + " ";
    return list;
  };
  graph.recompute({"layer2", "layer4.1"});
  EXPECT_EQ(chosen(), "layer2.0 layer2.1 layer4.1 ");
  graph.recompute({});
  EXPECT_EQ(chosen(), "");
  try {
    graph.recompute({"layer1.0", "layer5"});
    FAIL() << "a block that is not there";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer5"), std::string::npos) << error.what();
  }
}

TEST(RecomputationTest, BlocksHaveTheModelsFlops) {
  for (const Graph& graph : {small_resnet(50, 16, "imagenet", 64), alexnet({}, image_shape(95, 10), {}),
                             char_lstm(text_model(0.25), {.sequence = 9, .vocabulary = 13})}) {
    std::int64_t flops = 0;
    for (const Node& node : graph.nodes()) flops += node.flops;
    EXPECT_EQ(flops, graph.forward_flops_per_sample());
    std::int64_t in_blocks = 0;
    for (const Block& block : graph.blocks()) in_blocks += block.flops;
    const Node& head = graph.nodes()[graph.nodes().size() - 2];
    EXPECT_EQ(in_blocks + head.flops, flops);
  }
}

}  // namespace
}  // namespace ringtrain
