// Runs every kernel of the library for Hopper (libringtrain-hopper.so) for three shapes, and compares its results with
// loops on the CPU. cuDNN has no part in this. On the host device loops stand for the kernels. If the library is built,
// it still says which kernel it would take.
#include <gtest/gtest.h>

#include <string>

#include "backend/cuda/hopper/plans.h"
#include "tests/gpu/compared_operation.h"
#include "tests/gpu/gpu.h"

namespace ringtrain::cuda {
namespace {

// The names say the work, the type and the tile, as in hopper::Description.
constexpr const char* instances[] = {
    "forward_bf16_128x128",      "forward_bf16_128x64",          "gradient_bf16_128x128", "gradient_bf16_128x64",
    "gradient_add_bf16_128x128", "weight_gradient_bf16_128x128", "forward_fp16_128x128",  "forward_fp16_128x64",
    "gradient_fp16_128x128",     "gradient_fp16_128x64",         "gradient_add_fp16_128x128",
    "weight_gradient_fp16_128x128"};

class GpuHopper : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (on_host_device()) return;
    std::string why;
    const hopper::Library* library = hopper::Library::find(&why);
    if (library == nullptr) GTEST_SKIP() << why;
    if (!hopper::runs_on(gpu().facts().compute_capability)) GTEST_SKIP() << "the GPU is no Hopper";
    EXPECT_EQ(library->instances().size(), std::size(instances)) << "this test does not know all kernels";
  }

  bool is(const char* part) const { return name_.find(part) != std::string::npos; }

  // Returns an operation that this instance computes, with 8 x 8 pixels, so that two samples fill a tile of rows.
  // `result` channels are in the result, and `depth` channels are added up.
  DnnOperation operation(std::int64_t samples, std::int64_t result, std::int64_t depth, std::int64_t kernel) const {
    DnnOperation o;
    o.type = is("bf16") ? Type::bf16 : Type::fp16;
    o.math = Math::half;
    o.engine = Engine::hopper;
    o.n = samples;
    o.h = o.w = 8;
    o.r = kernel;
    o.padding = (kernel - 1) / 2;
    if (is("weight_gradient")) {
      o.kind = DnnKind::weight_gradient;
    } else if (is("gradient")) {
      o.kind = DnnKind::data_gradient;
      o.epilogue = is("gradient_add") ? Epilogue::add_relu_sums : Epilogue::relu_sums;
    } else {
      o.kind = DnnKind::convolution;
      o.epilogue = Epilogue::sums;
    }
    const bool of_inputs = o.kind == DnnKind::data_gradient;  // its result has the channels of x
    o.c = of_inputs ? result : depth;
    o.k = of_inputs ? depth : result;
    return o;
  }
  std::int64_t tile_columns() const { return is("128x64") ? 64 : 128; }

  void compare(const DnnOperation& o) const {
    const ComparedOperation compared = compare_with_loops(o);
    ASSERT_TRUE(compared.found) << o.key() << " has no plan: " << compared.text;
    EXPECT_LE(compared.difference, rounding_of(o)) << o.key() << " by " << compared.text;
    EXPECT_TRUE(compared.same_bits) << o.key() << " gives other bits when it runs again";
    std::string why;
    if (const hopper::Library* library = hopper::Library::find(&why)) {
      const auto choice = library->choose(hopper::problem_of(o, &why).value(), &why);
      ASSERT_TRUE(choice) << o.key() << ": " << why;
      EXPECT_EQ(library->instances()[static_cast<std::size_t>(choice->instance)].name, name_) << o.key();
    }
  }

 private:
  std::string name_ = GetParam();
};

TEST_P(GpuHopper, FullTiles) {
  compare(operation(8, tile_columns(), 128, 3));
}

// With three groups of one tile, a cluster of two blocks has a block without rows. The weight gradient has no groups.
// It has so many pixels here that several blocks add up parts of them.
TEST_P(GpuHopper, SeveralGroupsAndUnfinishedColumns) {
  DnnOperation o = operation(6, tile_columns() == 64 ? 136 : 232, 72, 1);
  if (o.kind == DnnKind::weight_gradient)
    o.n = 34;
  else
    o.groups = 3;
  compare(o);
}

TEST_P(GpuHopper, UnfinishedRows) {
  DnnOperation o = operation(3, tile_columns(), 64, 3);
  o.h = 9;
  o.w = 7;
  if (o.kind == DnnKind::convolution) o.stride = 2;
  o.result = o.type;  // of a weight gradient
  compare(o);
}

INSTANTIATE_TEST_SUITE_P(Instances, GpuHopper, testing::ValuesIn(instances),
                         [](const auto& information) { return std::string(information.param); });

}  // namespace
}  // namespace ringtrain::cuda
