// Writes how cuDNN describes the GPU. Machines without this GPU make plans for the recorded description.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/cuda/dnn/plans.h"
#include "tests/gpu/gpu.h"

namespace ringtrain::cuda {
namespace {

TEST(GpuDescription, IsWrittenAsCudnnGivesIt) {
  if (on_host_device()) GTEST_SKIP() << "cuDNN describes no host device";
  gpu();
  const std::string json = describe_gpu(0);
  const auto read = nlohmann::json::parse(json);
  EXPECT_EQ(read.at("multiProcessorCount").get<int>(), gpu().facts().multiprocessors);
  if (const std::string file = out_file("device.json"); !file.empty()) std::ofstream(file) << read.dump(1) << "\n";
}

}  // namespace
}  // namespace ringtrain::cuda
