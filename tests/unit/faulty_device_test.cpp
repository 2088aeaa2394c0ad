// Tests the faults that RINGTRAIN_TEST_FAULT plants in the host device.
#include "tests/emulation/faulty_device.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ringtrain::cuda {
namespace {

// Adds two floats on the device, by the kernel "add".
class Adding {
 public:
  explicit Adding(const std::string& fault) : device(HostDeviceOptions{}, parse_fault(fault)) {}
  void launch() {
    device.launch(launch_of(Type::fp32, AddArguments{memory, memory, memory, 2}), device.compute_stream());
  }
  bool ends() {
    const Event end = device.make_event();
    device.record(end, device.compute_stream());
    return device.done(end);
  }
  FaultyDevice device;

 private:
  void* memory = device.allocate(256, "two floats");  // never released, because that waits for a device that hangs
};

const DnnOperation small_convolution = parse_operation("conv bf16 n1 c8 4x4 k8 r1 s1 p0");

TEST(FaultyDevice, WithoutAFaultIsAHostDevice) {
  Adding adding("");
  adding.launch();
  EXPECT_TRUE(adding.ends());
  EXPECT_NE(adding.device.plan(small_convolution), nullptr);
  EXPECT_EQ(adding.device.why_unusable(), "");
}

TEST(FaultyDevice, AKernelHangsFromItsLaunchOn) {
  Adding adding("hang:add"), another("hang:norm_sums");
  EXPECT_TRUE(adding.ends());
  adding.launch();
  EXPECT_FALSE(adding.ends());
  another.launch();
  EXPECT_TRUE(another.ends());
}

TEST(FaultyDevice, AGraphHangsWhenItIsLaunched) {
  Adding adding("hang:add");
  adding.device.begin_capture(adding.device.compute_stream());
  adding.launch();
  const CapturedGraph graph = adding.device.end_capture(adding.device.compute_stream());
  EXPECT_TRUE(adding.ends());
  adding.device.launch(graph, adding.device.compute_stream());
  EXPECT_FALSE(adding.ends());
}

TEST(FaultyDevice, AKernelThrowsAndTheDeviceStaysUsable) {
  Adding adding("throw:ad");
  EXPECT_THROW(adding.launch(), Error);
  EXPECT_EQ(adding.device.why_unusable(), "");
  EXPECT_TRUE(adding.ends());
}

TEST(FaultyDevice, MemoryIsReleasedAfterAnErrorInACapture) {
  for (const char* fault : {"throw:add", "lost:1"}) {
    Adding adding(fault);
    DeviceMemory memory(adding.device, 256, "memory that is released");
    adding.device.begin_capture(adding.device.compute_stream());
    EXPECT_THROW(adding.launch(), Error);
    memory = {};
  }
}

TEST(FaultyDevice, IsLostWithTheCommandOfThatNumber) {
  Adding adding("lost:2");
  adding.launch();
  EXPECT_TRUE(adding.ends());
  EXPECT_THROW(adding.launch(), Error);
  EXPECT_NE(adding.device.why_unusable(), "");
  EXPECT_THROW(adding.launch(), Error);
}

TEST(FaultyDevice, LoadsNoPlanOfThatName) {
  std::string why;
  EXPECT_EQ(Adding("plan").device.plan(small_convolution, &why), nullptr);
  EXPECT_NE(why.find("planted"), std::string::npos);
  EXPECT_EQ(Adding("plan:conv bf16").device.plan(small_convolution), nullptr);
  EXPECT_NE(Adding("plan:matmul").device.plan(small_convolution), nullptr);
}

TEST(FaultyDevice, RefusesOtherTexts) {
  for (const char* text : {"hang", "throw:", "lost", "lost:0", "lost:2x", "loose:3", "plans"})
    EXPECT_THROW(parse_fault(text), Error) << text;
}

}  // namespace
}  // namespace ringtrain::cuda
