// A convolution without its bias: forward, data gradient, weight gradient, and what is fused to them.
#pragma once

#include <string>

#include "backend/cuda/image/layer.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// How a convolution takes its input in and hands its gradient on; what remains is done by kernels of their own.
struct ConvolutionWay {
  std::string name = "separate";
  Prologue prologue = Prologue::none;         // forward: the input is a norm's input, normalised on the way
  Prologue weight_prologue = Prologue::none;  // the same for the weight gradient
  Epilogue data_epilogue = Epilogue::none;

  bool brings_sums() const {
    return data_epilogue == Epilogue::relu_sums || data_epilogue == Epilogue::relu_sums_output ||
           data_epilogue == Epilogue::add_relu_sums;
  }
  bool adds() const { return data_epilogue == Epilogue::add || data_epilogue == Epilogue::add_relu_sums; }
  // The weight gradient's input is made by a kernel in the backward pass.
  bool makes_input_again() const {
    return prologue != Prologue::none && weight_prologue == Prologue::none &&
           data_epilogue != Epilogue::relu_sums_output;
  }
};

// Where the sums of a convolution's result, which the norm behind it wants, are made.
enum class SumsWay { separate, epilogue, specialised };

class ConvolutionLayer : public ImageLayer {
 public:
  ConvolutionLayer(const ImageContext& context, const Convolution& node, Value& x, Value& y);
  void choose() override;
  void forward() override;
  void backward() override;

  std::int64_t stride() const { return node_.stride; }
  // Whether the device has plans for the plain operations.
  bool plain_plans_exist() const;

  // The operations of a way, over all samples of the micro-batch or over those of a group.
  DnnOperation forward_operation(const ConvolutionWay& way, SumsWay sums) const;
  DnnOperation data_operation(const ConvolutionWay& way) const;
  DnnOperation weight_operation(const ConvolutionWay& way) const;
  DnnOperation weight_operation(Type result) const;  // without a prologue

 private:
  DnnOperation operation(DnnKind kind, bool by_group) const;
  std::int64_t launches(const DnnOperation& o) const { return c_.samples / o.n; }
  Operand of_values(DnnRole role, Storage storage, const Value& shape, const DnnOperation& o, bool write = false) const;
  bool wants_factors_as_type(const DnnOperation& o) const;
  void add_factors(std::vector<Operand>& operands, const DnnOperation& o) const;
  void data_gradient(Storage dy, Storage again);
  void weight_gradient(Storage dy, Storage input);

  Convolution node_;
  std::string name_;
  const Parameter& parameter_;
  TensorLayout layout_;
  Value &x_, &y_;
  Tensor weight_;
  ConvolutionWay way_;
  SumsWay sums_ = SumsWay::separate;
  Type weight_gradient_type_ = Type::fp32;
};

}  // namespace ringtrain::cuda
