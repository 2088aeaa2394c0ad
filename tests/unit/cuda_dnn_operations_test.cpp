// Tests descriptions of cuDNN operations: keys, tensors and FLOPs. These tests need no CUDA.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "backend/cuda/dnn/operations.h"
#include "base/error.h"

namespace ringtrain::cuda {
namespace {

using Dimensions = std::vector<std::int64_t>;

DnnOperation convolution() {
  DnnOperation o;
  o.type = Type::bf16, o.math = Math::half;
  o.n = 32, o.c = 64, o.h = 56, o.w = 40, o.k = 256, o.r = 3, o.stride = 2, o.padding = 1;
  return o;
}

// Returns convolutions and their gradients in every precision, with every prologue and epilogue, and matrix products of
// fp16 with every switch. cuda_hopper_plans_test.cpp tests operations of Engine::hopper.
std::vector<DnnOperation> all_kinds() {
  std::vector<DnnOperation> all;
  for (const auto& [type, math] : {std::pair(Type::fp32, Math::fp32),
                                   {Type::fp32, Math::tf32},
                                   {Type::bf16, Math::half},
                                   {Type::fp16, Math::half}})
    for (const DnnKind kind : {DnnKind::convolution, DnnKind::data_gradient, DnnKind::weight_gradient}) {
      DnnOperation o = convolution();
      o.kind = kind, o.type = type, o.math = math;
      all.push_back(o);
      if (kind != DnnKind::data_gradient) all.push_back(o), all.back().prologue = Prologue::scale_bias_relu;
      for (int e = 1; e < static_cast<int>(Epilogue::bias); ++e) {
        const bool of_forward = static_cast<Epilogue>(e) == Epilogue::sums;
        if (kind != DnnKind::weight_gradient && of_forward == (kind == DnnKind::convolution))
          all.push_back(o), all.back().epilogue = static_cast<Epilogue>(e);
      }
      o.prologue = Prologue::scale_bias_relu;
      if (kind == DnnKind::weight_gradient) all.push_back(o), all.back().engine = Engine::specialised;
    }
  DnnOperation product;
  product.kind = DnnKind::matmul, product.type = Type::fp16, product.math = Math::half;
  product.m = 32, product.n = 1000, product.k = 2048;
  for (const bool a : {false, true})
    for (const bool b : {false, true})
      for (const Type result : {Type::fp32, Type::bf16, Type::fp16})
        for (const Epilogue e : {Epilogue::none, Epilogue::bias}) {
          product.transposed_a = a, product.transposed_b = b, product.result = result, product.epilogue = e;
          all.push_back(product);
        }
  return all;
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
  std::set<std::string> keys;
  const std::vector<DnnOperation> all = all_kinds();
  for (const DnnOperation& each : all) {
    EXPECT_EQ(parse_operation(each.key()), each) << each.key();
    keys.insert(each.key());
  }
  EXPECT_EQ(keys.size(), all.size());
}

TEST(CudaDnnOperations, KeysThatAreNotUnderstoodAreRefusedByName) {
  for (const char* key : {"pool bf16 n1", "conv int8 n1", "conv bf16 q3", "conv bf16 n3x", "conv bf16 n1 +magic", "",
                          "wgrad bf16 n1 c8 7x7 k8 r1 s1 p0 +accumulate",  // older tables use these words
                          "conv bf16 n1 c8 7x7 k8 r1 s1 p0 +scale_bias_add_relu"})
    EXPECT_THROW(parse_operation(key), Error) << key;
  try {
    parse_operation("conv bf16 n1 +magic");
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("+magic"), std::string::npos);
  }
}

TEST(CudaDnnOperations, ActivationsAreNhwcAndWeightsKrsc) {
  DnnOperation o = convolution();
  o.prologue = Prologue::scale_bias_relu;
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
  EXPECT_EQ(tensor(t, DnnRole::scale).elements(), 64);
  EXPECT_EQ(tensor(t, DnnRole::scale).type, Type::fp32);
  EXPECT_EQ(tensor(t, DnnRole::sum, true).elements(), 256);
  EXPECT_EQ(tensor(t, DnnRole::sum, true).type, Type::fp32);
}

TEST(CudaDnnOperations, InputsComeBeforeResults) {
  for (const DnnOperation& o : all_kinds()) {
    bool results = false;
    for (const DnnTensor& t : o.tensors()) {
      EXPECT_TRUE(t.output || !results) << o.key();
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
}

TEST(CudaDnnOperations, AWeightGradientOfSixteenBitsIsWrittenAsItIs) {
  DnnOperation o = convolution();
  o.kind = DnnKind::weight_gradient;
  o.epilogue = Epilogue::none;
  o.result = o.type;
  EXPECT_EQ(tensor(o.tensors(), DnnRole::dw, true).type, o.type);
  EXPECT_THROW(tensor(o.tensors(), DnnRole::alpha), Error);
  EXPECT_NE(o.key().find(cat(" >", type_name(o.type))), std::string::npos) << o.key();
  EXPECT_EQ(parse_operation(o.key()), o);
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
  EXPECT_DOUBLE_EQ(parse_operation("conv bf16 n8 c4 224x224 k64 r7 s2 p3").flops(), 2.0 * 8 * 112 * 112 * 64 * 4 * 49);
  for (const char* kind : {"dgrad", "wgrad"})
    EXPECT_DOUBLE_EQ(parse_operation(std::string(kind) + " fp32 n1 c64 56x56 k256 r3 s2 p1").flops(),
                     parse_operation("conv fp32 n1 c64 56x56 k256 r3 s2 p1").flops());
}

}  // namespace
}  // namespace ringtrain::cuda
