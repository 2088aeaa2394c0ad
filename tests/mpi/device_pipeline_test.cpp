// A pipeline on (host) devices is the run of one rank on a device: by links between devices through host memory, and by
// NCCL's sends and receives.
#include <gtest/gtest.h>

#include "pipeline_runs.h"

namespace ringtrain {
namespace {

class DevicePipelineTest : public PipelineTest {
 protected:
  // On devices, both ways; `steps` of them after the first gradient.
  static void expect_same_run_on_devices(Experiment e, int steps, double tolerance, double first_tolerance = 1e-5) {
    for (const std::string library : {"mpi", "nccl"}) {
      SCOPED_TRACE(library);
      e.communication.library = library;
      expect_same_run(e, steps, tolerance, first_tolerance, {"gpipe", "1f1b"}, true);
    }
  }
};

constexpr const char* kResNet = "{kind: resnet, depth: 18, width: 16, stem: small}";

TEST_F(DevicePipelineTest, LstmWithDropoutAndClipping) {
  expect_same_run_on_devices(text("names", {"model.hidden=8"}), 20, 1e-4);
}
TEST_F(DevicePipelineTest, CarriedStateStaysWithItsLayers) {
  Settings settings = streams;
  settings.push_back("model.hidden=8");
  expect_same_run_on_devices(text("text", settings), 6, 1e-4);
}
TEST_F(DevicePipelineTest, ResNetWithBatchNormByWorker) {
  expect_same_run_on_devices(images(kResNet, {"learning_rate.base=0.001"}), 3, 2e-3);
}

}  // namespace
}  // namespace ringtrain
