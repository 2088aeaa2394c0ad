// What only a GPU can say. Without one every test is skipped, and counted as that. Under mpirun all ranks run the same
// tests (GpuRanks) and share what GPUs there are.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/gpu/device_watch.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/cuda_kernels.h"

namespace {

const ringtrain::Session* the_session = nullptr;

// A listener, not an environment: GoogleTest 1.12 counts what an environment skips as passed.
class NeedsGpu : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest&) override {
    if (!missing_.empty()) return;
    ringtrain::cuda::run_kernel = ringtrain::cuda::run_on_gpu;
    const ringtrain::cuda::DeviceFacts& facts = ringtrain::cuda::gpu().facts();
    std::printf("%s, CUDA %s, cuDNN %s\n", facts.name.c_str(), facts.cuda_version.c_str(), facts.cudnn_version.c_str());
  }
  void OnTestStart(const testing::TestInfo&) override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
  }
  std::string missing_ = ringtrain::cuda::no_gpu();
};

}  // namespace

const ringtrain::Session& ringtrain::cuda::session() {
  return *the_session;
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new NeedsGpu);
  const ringtrain::Session session(&argc, &argv);
  the_session = &session;
  if (session.rank() != 0) testing::GTEST_FLAG(output) = "";  // a report is written once
  ringtrain::cuda::watch_device();
  const int result = ringtrain::cuda::exit_code_of_tests(RUN_ALL_TESTS());
  ringtrain::cuda::release_gpu();
  return result;
}
