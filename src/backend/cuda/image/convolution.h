// ConvolutionLayer is a convolution without its bias. It has a forward pass, a data gradient and a weight gradient,
// with the operations fused to them.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/image/emission.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

class ConvolutionLayer : public ImageLayer {
 public:
  ConvolutionLayer(const ImageContext& context, const Convolution& node, Value& x, Value& y);
  void list_sites(std::vector<LayerSite>& sites) const override;
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

  const std::string& name() const { return name_; }
  const Value& x() const { return x_; }
  const Value& y() const { return y_; }
  std::int64_t stride() const { return node_.stride; }
  // Returns whether the device has plans for the operations without fusion.
  bool plain_plans_exist() const;

  // These return the operations of a plan. They cover all samples of the micro-batch or those of one group of batch
  // norm.
  DnnOperation forward_operation(const ConvolutionPlan& plan) const;
  DnnOperation data_operation(const ConvolutionPlan& plan) const;
  DnnOperation weight_operation(const ConvolutionPlan& plan) const;
  std::vector<DnnOperation> operations(const ConvolutionPlan& plan) const;  // those of the three that the layer needs
  // Records the plan, and what it means for the values and norms around the layer.
  void take(const ConvolutionPlan& plan, Choices& choices) const;

 private:
  DnnOperation operation(DnnKind kind, bool by_group) const;
  void take_all_groups(DnnOperation& o) const;
  std::int64_t launches(const DnnOperation& o) const { return c_.samples / o.n; }
  TensorLayout layout() const;
  Operand of_values(DnnRole role, Storage storage, const Value& shape, const DnnOperation& o, bool write = false) const;
  bool wants_factors_as_type(const DnnOperation& o) const;
  void add_factors(Emission& e, std::vector<Operand>& operands, const DnnOperation& o) const;
  void data_gradient(Emission& e, Storage dy, Storage again) const;
  void weight_gradient(Emission& e, Storage dy, Storage input) const;

  Convolution node_;
  std::string name_;
  const Parameter& parameter_;
  const Value &x_, &y_;
};

// Returns all ways to compute the layer that the graph allows, as a site for the table of fusions, whether or not the
// device has kernels for them. The last way uses plain operations only. fusions.cpp has the ways.
LayerSite site_of(const ImageContext& context, const ConvolutionLayer& layer);

}  // namespace ringtrain::cuda
