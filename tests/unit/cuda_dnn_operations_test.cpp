// Descriptions of cuDNN operations: keys, tensors, FLOPs. Needs no CUDA.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "tests/unit/cuda_plan_table.h"

namespace ringtrain::cuda {
namespace {

using Dimensions = std::vector<std::int64_t>;

DnnOperation convolution() {
  DnnOperation o;
  o.type = Type::bf16, o.math = Math::half;
  o.n = 32, o.c = 64, o.h = 56, o.w = 40, o.k = 256, o.r = 3, o.stride = 2, o.padding = 1;
  return o;
}

const DnnTensor& tensor(const std::vector<DnnTensor>& all, DnnRole role, bool output = false) {
  for (const DnnTensor& t : all)
    if (t.role == role && t.output == output) return t;
  throw Error("no tensor of this role");
}

TEST(CudaDnnOperations, KeysNameTheOperationAndComeBack) {
  DnnOperation o = convolution();
  o.prologue = Prologue::scale_bias_relu;
  o.epilogue = Epilogue::sums;
  EXPECT_EQ(o.key(), "conv bf16 n32 c64 56x40 k256 r3 s2 p1 +scale_bias_relu +sums");
  const LayerOperations all = model_operations();
  std::set<std::string> keys;
  for (const LayerOperation& l : all.all()) {
    EXPECT_EQ(parse_operation(l.operation.key()), l.operation) << l.operation.key();
    keys.insert(l.operation.key());
  }
  EXPECT_EQ(keys.size(), all.all().size());
  EXPECT_GT(keys.size(), 500u);
}

TEST(CudaDnnOperations, KeysThatAreNotUnderstoodAreRefusedByName) {
  for (const char* key : {"pool bf16 n1", "conv int8 n1", "conv bf16 q3", "conv bf16 n3x", "conv bf16 n1 +magic", ""})
    EXPECT_THROW(parse_operation(key), Error) << key;
  try {
    parse_operation("conv bf16 n1 +magic");
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("+magic"), std::string::npos);
  }
}

TEST(CudaDnnOperations, ActivationsAreNhwcAndWeightsKrsc) {
  DnnOperation o = convolution();
  o.prologue = Prologue::scale_bias_add_relu;
  o.epilogue = Epilogue::sums;
  const std::vector<DnnTensor> t = o.tensors();
  const DnnTensor &x = tensor(t, DnnRole::x), &w = tensor(t, DnnRole::w), &y = tensor(t, DnnRole::y, true);
  EXPECT_EQ(x.dimensions, (Dimensions{32, 64, 56, 40}));
  EXPECT_EQ(x.strides, (Dimensions{64 * 56 * 40, 1, 64 * 40, 64}));
  EXPECT_EQ(w.dimensions, (Dimensions{256, 64, 3, 3}));
  EXPECT_EQ(w.strides, (Dimensions{64 * 9, 1, 64 * 3, 64}));
  EXPECT_EQ(y.dimensions, (Dimensions{32, 256, 28, 20}));
  EXPECT_EQ(y.strides, (Dimensions{256 * 28 * 20, 1, 256 * 20, 256}));
  EXPECT_EQ(y.elements(), 32 * 256 * 28 * 20);
  EXPECT_EQ(tensor(t, DnnRole::shortcut).dimensions, x.dimensions);
  EXPECT_EQ(tensor(t, DnnRole::scale).elements(), 64);
  EXPECT_EQ(tensor(t, DnnRole::scale).type, Type::fp32);
  EXPECT_EQ(tensor(t, DnnRole::sum, true).elements(), 256);
  EXPECT_EQ(tensor(t, DnnRole::sum, true).type, Type::fp32);
}

TEST(CudaDnnOperations, InputsComeBeforeResults) {
  for (const LayerOperation& l : model_operations().all()) {
    bool results = false;
    for (const DnnTensor& t : l.operation.tensors()) {
      EXPECT_TRUE(t.output || !results) << l.operation.key();
      results |= t.output;
    }
    EXPECT_TRUE(results);
  }
}

TEST(CudaDnnOperations, GradientsHaveTheShapesOfWhatTheyAreGradientsOf) {
  DnnOperation o = convolution();
  const std::vector<DnnTensor> forward = o.tensors();
  o.kind = DnnKind::data_gradient;
  o.epilogue = Epilogue::relu_sums_output;
  const std::vector<DnnTensor> data = o.tensors();
  EXPECT_EQ(tensor(data, DnnRole::dx, true).strides, tensor(forward, DnnRole::x).strides);
  EXPECT_EQ(tensor(data, DnnRole::dy).dimensions, tensor(forward, DnnRole::y, true).dimensions);
  EXPECT_EQ(tensor(data, DnnRole::output, true).dimensions, tensor(forward, DnnRole::x).dimensions);
  EXPECT_EQ(tensor(data, DnnRole::scale).type, Type::fp32);
  o.kind = DnnKind::weight_gradient;
  o.epilogue = Epilogue::none;
  EXPECT_EQ(tensor(o.tensors(), DnnRole::dw, true).dimensions, tensor(forward, DnnRole::w).dimensions);
  EXPECT_EQ(tensor(o.tensors(), DnnRole::dw, true).type, Type::fp32);
  EXPECT_NO_THROW(tensor(o.tensors(), DnnRole::alpha));
  o.accumulate = true;
  EXPECT_THROW(tensor(o.tensors(), DnnRole::alpha), Error);
}

TEST(CudaDnnOperations, TransposedMatricesAreReadWithTheirStridesExchanged) {
  const DnnOperation o = parse_operation("matmul fp16 m32 n1000 k2048 tb >fp32 +bias");
  const std::vector<DnnTensor> t = o.tensors();
  EXPECT_EQ(tensor(t, DnnRole::a).strides, (Dimensions{32 * 2048, 2048, 1}));
  EXPECT_EQ(tensor(t, DnnRole::b).dimensions, (Dimensions{1, 2048, 1000}));
  EXPECT_EQ(tensor(t, DnnRole::b).strides, (Dimensions{2048 * 1000, 1, 2048}));
  EXPECT_EQ(tensor(t, DnnRole::y, true).type, Type::fp32);
  EXPECT_EQ(tensor(t, DnnRole::bias).elements(), 1000);
  EXPECT_DOUBLE_EQ(o.flops(), 2.0 * 32 * 1000 * 2048);
}

TEST(CudaDnnOperations, FlopsCountTwoForEachProductAndAreTheGradientsToo) {
  const Graph graph = small_resnet(50, 64, "imagenet", 224, 0, 1000);
  LayerOperations all;
  all.add(graph, 1);
  double stem = 0;
  std::map<std::string, double> flops;
  for (const LayerOperation& l : all.all()) {
    if (l.operation.kind == DnnKind::convolution && l.operation.c == 4) stem = l.operation.flops();
    flops[l.operation.key()] = l.operation.flops();
  }
  EXPECT_DOUBLE_EQ(stem, 2.0 * 112 * 112 * 64 * 4 * 7 * 7);
  for (const char* kind : {"dgrad", "wgrad"})
    EXPECT_DOUBLE_EQ(flops.at("conv fp32 n1 c64 56x56 k256 r1 s1 p0"),
                     flops.at(std::string(kind) + " fp32 n1 c64 56x56 k256 r1 s1 p0"));
}

}  // namespace
}  // namespace ringtrain::cuda
