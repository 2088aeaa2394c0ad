// ConvolutionOperation computes a convolution of the graph and the ReLU that follows it directly, if there is one.
// PixelOperation writes the pixels that the first convolution reads.
#pragma once

#include "backend/cpu/convolution.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// Normalises the pixels of the image and writes them in the layout of the first convolution.
template <class T>
class PixelOperation : public CpuOperation {
 public:
  PixelOperation(const ImageContext& context, const ImageInput& node, Feature* y);
  void set_reader(const ConvolutionPrimitives* reader) { reader_ = reader; }
  void forward_steps() override;
  void backward_steps() override {}

 private:
  ImageContext context_;
  Feature* y_;
  std::int64_t channels_;
  std::vector<T> table_;  // [channels][256]
  const ConvolutionPrimitives* reader_ = nullptr;
};

template <class T>
class ConvolutionOperation : public CpuOperation {
 public:
  // `behind_norm`: a norm comes before this convolution. Its backward sums are computed slice by slice after this
  // convolution's data gradient. The weight gradient needs the whole micro-batch, so it then waits for the next cut.
  ConvolutionOperation(const ImageContext& context, const Convolution& node, bool relu, bool pixels, bool behind_norm,
                       Feature* x, Feature* y);
  const ConvolutionPrimitives& primitives() const { return primitives_; }

  void forward_steps() override;
  void backward_steps() override;
  void bind() override;
  void set_weights(const float* flat) override;

 private:
  void rectify(const Slice& slice) const;
  void combine(const Slice& slice, const std::vector<int>& sources) const;

  ImageContext context_;
  Parameter weight_, bias_;
  bool relu_, pixels_, behind_norm_;
  Feature *x_, *y_;
  ConvolutionPrimitives primitives_;
  int weights_ = -1, scratch_ = -1, data_scratch_ = -1, weights_scratch_ = -1;
  std::string name_;
};

}  // namespace ringtrain::cpu
