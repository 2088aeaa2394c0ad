// Compares the choices of memory.limit_gib and memory.recompute with those of a search through all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "backend/cuda/backend.h"
#include "base/error.h"
#include "config/reader.h"
#include "run/fitting_passes.h"
#include "run/memory.h"
#include "run/task.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/good_experiment.h"

namespace ringtrain {
namespace {

class MemoryPlan : public testing::Test {
 protected:
  RunPlan plan(std::vector<std::string> overrides, std::int64_t recorded = 0) {
    for (const char* key : {"model.kind=resnet", "model.depth=18", "model.width=16", "model.stem=small",
                            "data.image_size=16", "data.resize=16", "batch.worker=4", "data.classes=10",
                            "data.train_samples=640", "data.mean=[0.5,0.5,0.5]", "data.std=[0.2,0.2,0.2]"})
      overrides.insert(overrides.begin(), key);
    const Experiment e = parse_experiment(good, "x.yaml", overrides);
    return make_run_plan(e, stated_index(e, "images", e.data.train_samples), nullptr, 1, *backend_,
                         micro_batch_of_checkpoint(recorded));
  }
  std::int64_t bytes(const RunPlan& p) { return limited_bytes(rank_memory(p, *backend_), *backend_); }
  std::int64_t bytes_at(std::int64_t micro, const std::string& recompute) {
    return bytes(plan({cat("batch.micro=", micro), "memory.recompute=" + recompute}));
  }
  static std::string limit(std::int64_t bytes) {
    char text[64];
    std::snprintf(text, sizeof text, "memory.limit_gib=%.12f", static_cast<double>(bytes) / (1 << 30) + 1e-11);
    return text;
  }
  static std::int64_t recomputed_flops(const RunPlan& p) {
    std::int64_t flops = 0;
    for (const Block& block : p.graph.blocks())
      if (block.recomputed) flops += block.flops;
    return flops;
  }
  std::string error_of(const std::vector<std::string>& overrides) {
    try {
      plan(overrides);
    } catch (const Error& error) {
      return cat(error.what(), " ", error.hint());
    }
    return "no error";
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

class MemoryPlanOnAGpu : public MemoryPlan {
 protected:
  MemoryPlanOnAGpu() { backend_ = cuda::make_backend(device_, {.least_offload = 256, .fusions = &fusions_}); }
  ~MemoryPlanOnAGpu() override { backend_.reset(); }
  cuda::FusionTable fusions_;
  cuda::HostDevice device_{{.memory_bytes = std::int64_t{1} << 30}};
};

const std::string all = "[conv1, layer1, layer2, layer3, layer4]";

// More rows do not always need more memory, because a processor's kernels for them may need less workspace.
TEST_F(MemoryPlan, AnOpenMicroBatchIsTheLargestThatFits) {
  for (const std::string& recompute : {std::string("none"), all}) {
    std::map<std::int64_t, std::int64_t> needed;
    for (const std::int64_t micro : {4, 8, 16, 32, 64}) needed[micro] = bytes_at(micro, recompute);
    const auto expect_largest = [&](std::int64_t bytes) {
      std::int64_t largest = 0;
      for (const auto& [micro, needs] : needed)
        if (needs <= bytes) largest = micro;
      if (largest == 0) return;
      EXPECT_EQ(plan({limit(bytes), "memory.recompute=" + recompute}).batch.micro_batch, largest) << recompute;
    };
    for (const auto& [micro, needs] : needed) {
      expect_largest(needs);
      expect_largest(needs - 1);
    }
    EXPECT_GT(needed[64], needed[4]);
  }
}

TEST_F(MemoryPlan, RecomputationMakesRoomForLargerMicroBatches) {
  const std::int64_t half = (bytes_at(64, "none") + bytes_at(32, "none")) / 2;
  EXPECT_LT(bytes_at(64, all), half);
}

// Among all 512 sets of blocks, no set that fits costs 10 % less than the chosen one.
TEST_F(MemoryPlan, AutoIsCloseToTheCheapestOfAllSets) {
  const RunPlan whole = plan({"batch.micro=32"});
  const std::vector<Block> blocks = whole.graph.blocks();
  ASSERT_EQ(blocks.size(), 9u);
  std::vector<std::pair<std::int64_t, std::int64_t>> sets;  // flops, bytes
  for (unsigned set = 0; set < 512; ++set) {
    RunPlan p = whole;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if ((set >> i & 1u) != 0) names.push_back(blocks[i].name);
    p.graph.recompute(names);
    sets.emplace_back(recomputed_flops(p), bytes(p));
  }
  const std::int64_t none = sets.front().second,
                     least = std::ranges::min(sets, {}, &std::pair<std::int64_t, std::int64_t>::second).second;
  for (int share = 1; share < 20; ++share) {
    const std::int64_t allowed = least + (none - least) * share / 20;
    std::int64_t cheapest = std::numeric_limits<std::int64_t>::max();
    for (const auto& [flops, needed] : sets)
      if (needed <= allowed) cheapest = std::min(cheapest, flops);
    const std::int64_t chosen = recomputed_flops(plan({"batch.micro=32", "memory.recompute=auto", limit(allowed)}));
    EXPECT_GE(chosen, cheapest) << share;
    EXPECT_LE(chosen, cheapest * 11 / 10) << share;
  }
}

TEST_F(MemoryPlan, AutoRecomputesNoMoreThanItMust) {
  const std::int64_t none = bytes_at(32, "none"), least = bytes_at(32, all);
  const auto automatic = [&](double share) {
    return plan({"batch.micro=32", "memory.recompute=auto",
                 limit(least + static_cast<std::int64_t>(share * static_cast<double>(none - least)))});
  };
  EXPECT_EQ(recomputed_flops(automatic(1)), 0);
  std::int64_t before = recomputed_flops(plan({"batch.micro=32", "memory.recompute=" + all})) + 1;
  for (const double share : {0.0, 0.2, 0.4, 0.6, 0.8}) {
    const RunPlan p = automatic(share);
    const auto allowed = least + static_cast<std::int64_t>(share * static_cast<double>(none - least));
    EXPECT_LE(bytes(p), allowed);
    EXPECT_GT(recomputed_flops(p), 0);
    EXPECT_LE(recomputed_flops(p), before) << share;
    before = recomputed_flops(p);
    EXPECT_EQ(p.batch.micro_batch, 32);
    // If any one of these blocks is not recomputed, the plan does not fit.
    for (const Block& block : p.graph.blocks()) {
      if (!block.recomputed) continue;
      RunPlan less = p;
      std::vector<std::string> names;
      for (const Block& other : p.graph.blocks())
        if (other.recomputed && other.name != block.name) names.push_back(other.name);
      less.graph.recompute(names);
      EXPECT_GT(bytes(less), allowed) << block.name;
    }
  }
  EXPECT_LT(before, recomputed_flops(plan({"batch.micro=32", "memory.recompute=" + all})) / 2);
}

TEST_F(MemoryPlan, AutoPrefersASmallerMicroBatchWhereItIsOpen) {
  const RunPlan p = plan({"memory.recompute=auto", limit(bytes_at(8, "none"))});
  EXPECT_EQ(p.batch.micro_batch, 8);
  EXPECT_EQ(recomputed_flops(p), 0);
  const RunPlan small = plan({"memory.recompute=auto", limit(bytes_at(4, "none") - 1)});
  EXPECT_EQ(small.batch.micro_batch, 4);
  EXPECT_GT(recomputed_flops(small), 0);
}

TEST_F(MemoryPlan, ARecordedMicroBatchIsKept) {
  const RunPlan p = plan({"memory.recompute=auto", limit(bytes_at(32, "none") - 1)}, 32);
  EXPECT_EQ(p.batch.micro_batch, 32);
  EXPECT_GT(recomputed_flops(p), 0);
}

TEST_F(MemoryPlan, SaysWhatWouldFit) {
  const std::string small = limit(bytes_at(16, "none"));
  std::string error = error_of({"batch.micro=64", small});
  EXPECT_NE(error.find("memory.limit_gib"), std::string::npos) << error;
  EXPECT_NE(error.find("micro-batch of 64"), std::string::npos) << error;
  EXPECT_NE(error.find("largest batch.micro that fits is 16"), std::string::npos) << error;
  error = error_of({"memory.limit_gib=0.0001", "memory.recompute=auto"});
  EXPECT_NE(error.find("no batch.micro fits: the smallest, 4, needs"), std::string::npos) << error;
  error = error_of({"memory.recompute=auto"});
  EXPECT_NE(error.find("set memory.limit_gib"), std::string::npos) << error;
  error = error_of({"memory.recompute=[layer7]"});
  EXPECT_NE(error.find("layer7"), std::string::npos) << error;
  EXPECT_NE(error.find("layer4.1"), std::string::npos) << error;
  error = error_of({"memory.offload=true"});
  EXPECT_NE(error.find("memory.offload"), std::string::npos) << error;
}

// On a GPU, part of the memory (the overhead) is an estimate. The limit includes this estimate.
TEST_F(MemoryPlanOnAGpu, AnOpenMicroBatchIsTheLargestThatFits) {
  for (const std::string& recompute : {std::string("none"), all})
    for (const std::int64_t micro : {8, 32}) {
      const std::int64_t needed = bytes_at(micro, recompute);
      EXPECT_EQ(plan({limit(needed), "memory.recompute=" + recompute}).batch.micro_batch, micro) << recompute;
      EXPECT_EQ(plan({limit(needed - 1), "memory.recompute=" + recompute}).batch.micro_batch, micro / 2) << recompute;
    }
  EXPECT_LT(bytes_at(64, all), bytes_at(64, "none"));
}

TEST_F(MemoryPlanOnAGpu, BlocksAreChosenByTheGpusMemoryWhereThereIsNoLimit) {
  const std::int64_t room = backend_->device_bytes();
  const auto of_size = [&](std::int64_t micro, const std::string& recompute) {
    return plan({"data.train_samples=1000000", cat("batch.global=", micro), cat("batch.micro=", micro),
                 "memory.recompute=" + recompute});
  };
  std::int64_t micro = 4;
  while (error_of({"data.train_samples=1000000", cat("batch.global=", micro), cat("batch.micro=", micro)}) ==
         "no error")
    micro *= 2;
  EXPECT_EQ(recomputed_flops(of_size(micro / 2, "auto")), 0);
  const RunPlan p = of_size(micro, "auto");
  EXPECT_GT(recomputed_flops(p), 0);
  EXPECT_LE(bytes(p), room);
  EXPECT_GE(room, std::int64_t{1} << 30);
}

// With memory.limit_gib: 0, the memory of the GPU is the limit.
TEST_F(MemoryPlanOnAGpu, WhatDoesNotFitIntoTheGpuIsRefusedWithoutALimit) {
  const std::int64_t room = backend_->device_bytes();
  const auto keys = [](std::int64_t global, std::int64_t micro, const std::string& more) {
    return std::vector<std::string>{"data.train_samples=1000000", cat("batch.global=", global),
                                    cat("batch.micro=", micro), more};
  };
  const std::string roomy = "memory.limit_gib=100";
  std::int64_t micro = 4;
  while (bytes(plan(keys(micro, micro, roomy))) <= room) micro *= 2;
  const std::string error = error_of(keys(micro, micro, "memory.limit_gib=0"));
  EXPECT_NE(error.find(cat("with a micro-batch of ", micro, "; its GPU has ")), std::string::npos) << error;
  EXPECT_NE(error.find(cat("the largest batch.micro that fits is ", micro / 2)), std::string::npos) << error;
  EXPECT_EQ(plan(keys(micro, micro / 2, "memory.limit_gib=0")).batch.micro_batch, micro / 2);
  const RunPlan open = plan(keys(micro, 0, "memory.limit_gib=0"));
  EXPECT_LT(open.batch.micro_batch, micro);
  EXPECT_LE(bytes(open), room);

  // If a micro-batch is slightly too large, more is offloaded than can be copied during the passes.
  for (std::int64_t fits = micro / 2; micro - fits > 4;) {
    const std::int64_t middle = (micro + fits) / 8 * 4;
    (bytes(plan(keys(middle, middle, roomy))) <= room ? fits : micro) = middle;
  }
  const RunPlan hidden = plan({"data.train_samples=1000000", cat("batch.global=", micro), cat("batch.micro=", micro),
                               "memory.offload=true", roomy});
  const RunPlan offloads = plan(keys(micro, micro, "memory.offload=true"));
  EXPECT_LE(bytes(offloads), room);
  if (bytes(hidden) > room) {
    EXPECT_GT(offloads.graph.offload_stretch(), 1);
  }
}

TEST_F(MemoryPlanOnAGpu, WhatIsOffloadedMakesRoomForLargerMicroBatches) {
  const auto largest = [&](const std::string& offload) {
    return plan({limit(bytes_at(64, "none") - 4096), "batch.global=64", "memory.offload=" + offload});
  };
  EXPECT_EQ(largest("false").batch.micro_batch, 32);
  const RunPlan p = largest("true");
  EXPECT_EQ(p.batch.micro_batch, 64);
  EXPECT_TRUE(p.graph.offloads());
  std::int64_t in_host = 0;
  for (const MemoryItem& item : rank_memory(p, *backend_))
    if (item.what.find("wait in the host's memory") != std::string::npos && !item.on_device) in_host = item.bytes;
  EXPECT_GT(in_host, 0);
  const std::string text = describe_memory_choices(p, *backend_);
  EXPECT_NE(text.find("of activations are moved to host memory in each pass"), std::string::npos) << text;
  EXPECT_NE(text.find("offload nothing"), std::string::npos) << text;

  // If the experiment sets the micro-batch, offloading may cost time.
  const std::int64_t hidden = bytes(plan({"batch.global=64", "batch.micro=64", "memory.offload=true"}));
  const std::string tight = limit(hidden - 100'000);
  EXPECT_NE(error_of({"batch.global=64", "batch.micro=64", tight}), "no error");
  const RunPlan waits = plan({"batch.global=64", "batch.micro=64", "memory.offload=true", tight});
  EXPECT_GT(waits.graph.offload_stretch(), 1);
  EXPECT_LT(bytes(waits), hidden);
}

TEST_F(MemoryPlan, DescribesTheChoices) {
  EXPECT_EQ(describe_memory_choices(plan({}), *backend_), "");
  const RunPlan p = plan({"batch.micro=32", "memory.recompute=[layer1]", limit(bytes_at(32, "none"))});
  const std::string text = describe_memory_choices(p, *backend_);
  EXPECT_NE(text.find("largest micro-batch 32"), std::string::npos) << text;
  EXPECT_NE(text.find("layer1.0, layer1.1"), std::string::npos) << text;
  EXPECT_NE(text.find("of a step's flops"), std::string::npos) << text;
}

}  // namespace
}  // namespace ringtrain
