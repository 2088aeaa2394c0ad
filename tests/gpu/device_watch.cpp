#include "tests/gpu/device_watch.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/gpu/gpu.h"

namespace ringtrain::cuda {
namespace {

bool lost = false;

class DeviceWatch : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    if (lost) {
      ++left_;
      std::printf("not run: %s\n", name.c_str());
      return;
    }
    const std::string why = why_gpu_is_unusable();
    if (why.empty()) return;
    lost = true;
    ADD_FAILURE() << "after this test the device is unusable: " << why;
    if (session().size() > 1) abort_job(device_lost_exit_code);
    testing::GTEST_FLAG(fail_fast) = true;  // skips later tests without their set-up
  }
  void OnTestProgramEnd(const testing::UnitTest&) override {
    if (lost) std::printf("device lost: %d tests were not run; a new process has to run them\n", left_);
    std::fflush(stdout);
  }
  int left_ = 0;
};

TEST(GpuDeviceWatch, DISABLED_AnIllegalAddressLeavesTheDeviceUnusable) {
  Device& device = gpu();
  const Stream stream = device.compute_stream();
  const Event end = device.make_event();
  void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{4096});
  AddArguments add{};
  add.a = add.b = add.y = nowhere;
  add.count = 1;
  EXPECT_ANY_THROW({
    device.launch(launch_of(Type::fp32, add), stream);
    device.record(end, stream);
    device.synchronize(end, [] {});
  });
}

}  // namespace

void watch_device() {
  testing::UnitTest::GetInstance()->listeners().Append(new DeviceWatch);
}

int exit_code_of_tests(int result) {
  return lost ? device_lost_exit_code : result;
}

}  // namespace ringtrain::cuda
