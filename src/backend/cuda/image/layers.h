// The layers of an image program: pixel input, the ends of a part of a model, convolutions, norms, bias and ReLU,
// addition, pooling, flattening, dropout, dense layers and the loss. A layer that only program.cpp makes has a function
// here, and its class stands in layers.cpp or convolution.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/image/emission.h"
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

// `x` is the layer's input and `y` its result.
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const PartInput& node, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const PartOutput& node, Value& x);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Add& node, Value& a, Value& b, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const MaxPool& node, Value& x, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const GlobalAveragePool& node, Value& x, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Flatten& node, Value& x, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Dropout& node, Value& x, Value& y);
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Dense& node, Value& x, Value& y);
// Computes y = x [+ bias per channel] [, ReLU]. The result overwrites x when no other layer reads x.
std::unique_ptr<ImageLayer> make_activation(const ImageContext& context, const std::string& bias, bool relu, Value& x,
                                            Value& y);
// A convolution without its bias. It has a forward pass, a data gradient and a weight gradient, with the operations
// fused to them. If the device has no plans for the width of x, x becomes wider.
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Convolution& node, Value& x, Value& y);

// Computes the sums of the loss and, in training, the gradient of the logits x.
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const CrossEntropy& node, Value& x);

// Batch norm over groups of samples (Ioffe and Szegedy 2015) and group norm over groups of channels (Wu and He 2018),
// with the addition, the ReLU and the max pooling that follow them (norm.cpp).

// Holds the parameters of one norm, the statistics of its input x, and the affine form y = scale x + bias that follows
// from both.
class NormStatistics {
 public:
  NormStatistics(const ImageContext& context, const Norm& node, Value& x);

  const std::string& name() const { return name_; }
  const Value& x() const { return x_; }
  std::int64_t row_bytes() const { return x_.width * bytes_of(Type::fp32); }
  // Group norm measures each sample by itself. No convolution makes its sums or takes its factors, because those that
  // do know the groups of samples of batch norm only.
  bool by_sample() const { return by_sample_; }
  std::int64_t rows_per_group() const { return rows() / groups(); }
  // With running statistics all samples are one group.
  int groups() const { return static_cast<int>(by_sample_ ? c_.samples : c_.measures ? c_.groups() : 1); }

  // Creates the storage for the sums of x: [groups][blocks][2][width].
  Storage make_sums(Emission& e, int blocks) const;
  void forward(Emission& e) const;
  // Computes the gradients of gamma and beta, and the coefficients of dx = a dr + b x + c, where dr is the gradient
  // after the ReLU's derivative. `partial` holds the sums over dr: [group][block][sums_per_block][width]. `which` is
  // the index of sum(dr x) among them.
  void backward(Emission& e, Storage partial, int blocks, int sums_per_block, int which) const;

  Tensor scale(Emission& e) const { return part(e[*this].factors, 2); }
  Tensor bias(Emission& e) const { return part(e[*this].factors, 3); }
  Tensor scale_as_type(Emission& e) const { return {e[*this].factors_as_type, 0}; }
  Tensor bias_as_type(Emission& e) const {
    return {e[*this].factors_as_type, c_.groups() * x_.width * bytes_of(c_.type)};
  }
  Tensor slope(Emission& e, int which) const { return part(e[*this].slopes, which); }

 private:
  std::int64_t rows() const { return c_.samples * x_.pixels(); }
  Tensor part(Storage storage, std::int64_t which) const { return {storage, which * groups() * row_bytes()}; }
  std::int64_t span() const { return by_sample_ ? 1 : c_.span; }
  void from_running_statistics(Emission& e) const;
  // Joins the sums of the channels that group norm normalises together. The result is [groups][2][width].
  Storage join_channels(Emission& e, const std::string& what, Storage partial, int blocks, int sums_per_block,
                        int which, bool with_gamma) const;
  void measure(Emission& e, int blocks) const;
  void finalize(Emission& e, int blocks) const;
  struct BackwardSums {
    Storage partial, slopes;  // the input, and the result
    int blocks, sums_per_block, which;
    bool with_gamma = false;
  };
  void finalize_backward(Emission& e, const BackwardSums& of, bool gradients) const;

  const ImageContext& c_;
  const Value& x_;
  std::string name_;
  bool by_sample_;
  int together_;  // channels that are normalised together
  float epsilon_;
  const Parameter &gamma_, &beta_;
  const Parameter *mean_, *variance_;  // the running statistics; null: none
};

// Computes y = norm(x) [+ other, or + other_norm(other)] [, ReLU].
class NormLayer : public ImageLayer {
 public:
  struct Parts {
    const NormStatistics* norm = nullptr;
    Value* x = nullptr;
    Value* other = nullptr;
    const NormStatistics* other_norm = nullptr;
    bool relu = false;
  };
  NormLayer(const ImageContext& context, const Parts& parts, Value& y);
  void forward(Emission& e) const override;
  void backward(Emission& e) const override;

  const NormStatistics& norm() const { return norm_; }
  std::vector<const Value*> inputs() const;
  std::vector<const NormStatistics*> statistics() const;  // one, or two
  bool adds() const { return other_ != nullptr; }
  bool adds_norm() const { return other_norm_ != nullptr; }
  // Adds a command that writes y to a buffer, in the forward pass or again in the backward pass.
  void apply(Emission& e, const std::string& what, Storage to, Storage mask) const;

 private:
  Storage measure_gradient(Emission& e, Storage dy, int blocks) const;

  const NormStatistics &norm_, *other_norm_;
  const Value &x_, *other_, &y_;
  bool relu_;
};

// Computes y = max pooling of x = relu(norm(input)) in one kernel, as in the stem of ResNet. The norm's result is not
// stored in either pass.
class NormPool {
 public:
  NormPool(const ImageContext& context, const MaxPool& node, const Value& x, const Value& y)
      : c_(context), node_(node), x_(x), y_(y) {}

  // Returns whether norm and pooling can be fused. No other layer may read x.
  bool possible() const;
  // Returns the choice between fused and separate; the first way is fused. Bytes of traffic decide, nothing is timed.
  FusionSite site() const;
  // Writes y and, in training, the place of each window's maximum.
  void forward(Emission& e) const;
  // Computes the gradient of the norm's input and the gradients of gamma and beta from the gradient of y.
  void backward(Emission& e) const;

 private:
  PoolWindow window() const;

  const ImageContext& c_;
  MaxPool node_;
  const Value &x_, &y_;
};

}  // namespace ringtrain::cuda
