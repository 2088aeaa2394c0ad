// This file has the layers other than convolution and norm: pixel input, the ends of a part of a model, bias and ReLU,
// addition, pooling, flattening, dropout, dense layers and the loss.
#pragma once

#include "backend/cuda/image/emission.h"
#include "backend/cuda/image/norm.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// Converts u8 pixels to normalised values.
class PixelLayer : public ImageLayer {
 public:
  PixelLayer(const ImageContext& context, const ImageInput& node, Value& y) : ImageLayer(context), node_(node), y_(y) {}
  void forward(Emission& e) const override;
  void backward(Emission&) const override {}
  // Makes the windows of the convolution that alone reads the pixels (see ImageWindows). `y` is the layer's value, and
  // `result` the shape that the convolution makes.
  void take_windows(const Convolution& node, Value& y, const FeatureShape& result);

 private:
  ImageInput node_;
  const Value& y_;
  ImageWindows windows_;
};

// These layers are the two ends of a part of a model. A value crosses an end in its memory layout:
// [samples][pixels][width].
class PartInputLayer : public ImageLayer {
 public:
  PartInputLayer(const ImageContext& context, Value& y) : ImageLayer(context), y_(y) {}
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  const Value& y_;
};
class PartOutputLayer : public ImageLayer {
 public:
  PartOutputLayer(const ImageContext& context, Value& x) : ImageLayer(context), x_(x) { read(x); }
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  const Value& x_;
};

// Computes y = x [+ bias per channel] [, ReLU]. The result overwrites x when no other layer reads x.
class ActivationLayer : public ImageLayer {
 public:
  ActivationLayer(const ImageContext& context, const std::string& bias, bool relu, Value& x, Value& y);
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  void add_up_bias_gradient(Emission& e, Storage dx) const;
  const Parameter* parameter_;  // null: no bias
  bool relu_;
  const Value &x_, &y_;
};

class AddLayer : public ImageLayer {
 public:
  AddLayer(const ImageContext& context, Value& a, Value& b, Value& y);
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  const Value &a_, &b_, &y_;
};

class PoolLayer : public ImageLayer {
 public:
  PoolLayer(const ImageContext& context, const MaxPool& node, Value& x, Value& y);
  PoolLayer(const ImageContext& context, const GlobalAveragePool& node, Value& x, Value& y);
  void list_sites(std::vector<LayerSite>& sites) const override;
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  PoolArguments arguments(const Emission& e, Storage x, Storage y, Storage places) const;
  bool average_;
  MaxPool node_;
  const Value &x_, &y_;
  NormPool joined_;  // the fused norm and pooling, when the program chooses them
};

class FlattenLayer : public ImageLayer {
 public:
  FlattenLayer(const ImageContext& context, Value& x, Value& y);
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  KernelLaunch reorder(const Emission& e, Storage from, Storage to, bool inverse) const;
  const Value &x_, &y_;
};

class DropoutLayer : public ImageLayer {
 public:
  DropoutLayer(const ImageContext& context, const Dropout& node, Value& x, Value& y);
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  KernelLaunch drop(const Emission& e, Storage from, Storage to) const;
  Dropout node_;
  const Value &x_, &y_;
};

// Computes y = x W^T; an ActivationLayer adds the bias.
class DenseLayer : public ImageLayer {
 public:
  DenseLayer(const ImageContext& context, const Dense& node, Value& x, Value& y);
  void list_sites(std::vector<LayerSite>& sites) const override;
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

 private:
  TensorLayout layout() const;
  DnnOperation product(std::int64_t m, std::int64_t k, std::int64_t n, Type result) const;
  DnnOperation forward_operation() const;
  DnnOperation data_operation() const;
  DnnOperation weight_operation() const;
  std::string name_;
  const Parameter& parameter_;
  const Dense node_;
  const Value &x_, &y_;
};

// Computes the sums of the loss and, in training, the gradient of the logits.
class LossLayer : public ImageLayer {
 public:
  LossLayer(const ImageContext& context, const CrossEntropy& node, Value& logits);
  void forward(Emission& e) const override;
  void backward(Emission&) const override {}
  LogitsPlace logits(Emission& e) const { return {e[logits_].data, node_.classes, logits_.width}; }

 private:
  CrossEntropy node_;
  const Value& logits_;
};

}  // namespace ringtrain::cuda
