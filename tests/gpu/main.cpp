// Tests that need a GPU. Without one, every test is skipped and counted as skipped. If the GPU cannot be used (because
// cuDNN is missing, for example), there is one failure, and all tests are skipped. Under mpirun all ranks run
// the same tests (GpuRanks) and share the GPUs.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/gpu/device_watch.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/cuda_kernels.h"

namespace {

const ringtrain::Session* the_session = nullptr;

// This is a listener, not an environment, because GoogleTest 1.12 counts tests that an environment skips as passed.
class NeedsGpu : public testing::EmptyTestEventListener {
 public:
  bool failed() const { return failed_; }

 private:
  void OnTestProgramStart(const testing::UnitTest&) override {
    if (!missing_.empty()) return;
    try {
      ringtrain::cuda::run_kernel = ringtrain::cuda::run_on_gpu;
      const ringtrain::cuda::DeviceFacts& facts = ringtrain::cuda::gpu().facts();
      std::printf("%s, CUDA %s, cuDNN %s\n", facts.name.c_str(), facts.cuda_version.c_str(),
                  facts.cudnn_version.c_str());
    } catch (const std::exception& error) {
      failed_ = true;
      missing_ = ringtrain::cat("the GPU cannot be taken into use: ", error.what());
      const auto* own = dynamic_cast<const ringtrain::Error*>(&error);
      std::printf("FAILED: %s %s\n", missing_.c_str(), own == nullptr ? "" : own->hint().c_str());
      std::fflush(stdout);
      if (the_session->size() > 1) ringtrain::abort_job(1);  // the other ranks would wait for this one
    }
  }
  void OnTestStart(const testing::TestInfo&) override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
  }
  std::string missing_ = ringtrain::cuda::no_gpu();
  bool failed_ = false;
};

// The library for Hopper is in the folder of bin/ringtrain. In a checkout, this program is in build/tests.
void name_executable() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto executable = here / "../../bin/ringtrain";
  if (std::filesystem::exists(executable)) setenv("RINGTRAIN_EXECUTABLE", executable.lexically_normal().c_str(), 0);
}

}  // namespace

const ringtrain::Session& ringtrain::cuda::session() {
  return *the_session;
}

int main(int argc, char** argv) {
  name_executable();
  testing::InitGoogleTest(&argc, argv);
  auto* const needs_gpu = new NeedsGpu;
  testing::UnitTest::GetInstance()->listeners().Append(needs_gpu);
  const ringtrain::Session session(&argc, &argv);
  the_session = &session;
  if (session.rank() != 0) testing::GTEST_FLAG(output) = "";  // only rank 0 writes the report
  ringtrain::cuda::watch_device();
  const int result = ringtrain::cuda::exit_code_of_tests(RUN_ALL_TESTS());
  ringtrain::cuda::release_gpu();
  return result == 0 && needs_gpu->failed() ? 1 : result;
}
