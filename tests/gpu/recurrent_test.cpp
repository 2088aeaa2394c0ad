// Runs cuDNN's recurrent layers with one algorithm after the other, and compares them with loops on the CPU. cuDNN may
// refuse an algorithm for a GPU, a type or a size. Then the test is skipped with cuDNN's reason.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/gpu/compared_recurrent.h"
#include "tests/gpu/gpu.h"

namespace ringtrain::cuda {
namespace {

class GpuRecurrent : public testing::TestWithParam<RnnAlgorithm> {
 protected:
  void compare(RnnOperation operation) {
    operation.algorithm = GetParam();
    const ComparedRecurrent compared = compare_with_loops(operation);
    if (!compared.found) {
      std::printf("recurrent: %s: refused: %s\n", operation.key().c_str(), compared.why.c_str());
      GTEST_SKIP() << operation.key() << ": " << compared.why;
    }
    std::printf("recurrent: %s: differences: %s\n", operation.key().c_str(), compared.text().c_str());
    EXPECT_LE(compared.largest(), rounding_of(operation)) << operation.key();
  }
};

TEST_P(GpuRecurrent, TwoLayersInBf16EqualLoops) {
  compare({.layers = 2, .input = 64, .hidden = 64, .length = 12, .batch = 16, .type = Type::bf16, .math = Math::half});
}

TEST_P(GpuRecurrent, OneLayerInFp32EqualsLoops) {
  compare({.layers = 1, .input = 96, .hidden = 128, .length = 10, .batch = 8, .type = Type::fp32, .math = Math::fp32});
}

INSTANTIATE_TEST_SUITE_P(Algorithms, GpuRecurrent, testing::ValuesIn(rnn_algorithms),
                         [](const auto& information) { return std::string(rnn_algorithm_name(information.param)); });

}  // namespace
}  // namespace ringtrain::cuda
