// One convolution of the graph with oneDNN. It has three primitives, which are made once: forward, data gradient and
// weight gradient. The weights have the layouts that these primitives prefer. Maps are stored in blocks of `lanes`
// channels (nChw16c or nChw8c).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "backend/cpu/kernels.h"
#include "backend/cpu/onednn.h"

namespace ringtrain::cpu {

struct ConvolutionShape {
  std::int64_t input = 0, output = 0;  // channels
  std::int64_t in_height = 0, in_width = 0, out_height = 0, out_width = 0;
  std::int64_t kernel = 0, stride = 1, padding = 0;
  bool bias = false;
  bool pixels = false;  // reads the image in a plain layout, see pixel_stride()
  bool bf16 = false;    // type of maps and weights; weight gradients are always fp32
  int lanes = 16;
};

class ConvolutionPrimitives {
 public:
  ConvolutionPrimitives(const ConvolutionShape& shape, bool training, int threads);

  // Prepares calls for `images` images. oneDNN generates code, which takes milliseconds. Throws Error if oneDNN lacks
  // the convolution, and std::bad_alloc or Error if it lacks memory.
  void make_forward(std::int64_t images);
  void make_backward_data(std::int64_t images);
  void make_backward_weights(std::int64_t images);

  // The layout of the pixels: channel c of pixel p is at p * pixel_stride + c * channel_stride.
  std::int64_t pixel_stride() const { return channels_last_ ? shape_.input : 1; }
  std::int64_t channel_stride() const { return channels_last_ ? 1 : shape_.in_height * shape_.in_width; }

  // Returns the least images per call. With fewer images, reading the weights takes too large a part of the time.
  std::int64_t least_images() const;

  // Valid after make_*(): the bytes of the copy of the weights, and of the scratch memory of each primitive.
  std::int64_t weight_bytes() const;
  std::int64_t forward_scratch_bytes() const;
  std::int64_t data_scratch_bytes() const;
  std::int64_t weights_scratch_bytes() const;
  void bind(char* weights);  // throws as make_*()

  void set_weights(const float* weights, const float* bias);  // in the canonical layout [output, input, kernel, kernel]
  void forward(const void* source, void* destination, char* scratch);
  // Must be called before the first backward_data() after new weights or with new scratch memory.
  void prepare_data(char* scratch);
  void backward_data(const void* gradient, void* source_gradient, char* scratch);
  // Sets the gradients in the canonical layout, or adds to them.
  void backward_weights(const ImageKernels& kernels, const void* source, const void* gradient, char* scratch,
                        float* weights, float* bias, bool accumulate);

  // Returns whether oneDNN has generated code for the primitives that were made. Its other code is a hundred times
  // slower.
  bool has_fast_code() const;
  double flops(std::int64_t images) const;  // floating-point operations of one of the three primitives

 private:
  using Arguments = std::unordered_map<int, dnnl::memory>;
  dnnl::memory::desc map(const ConvolutionShape& shape, std::int64_t images, bool output) const;
  dnnl::convolution_forward::primitive_desc describe_forward(const ConvolutionShape& shape, std::int64_t images,
                                                             dnnl::algorithm algorithm) const;
  dnnl::convolution_backward_data::primitive_desc describe_data(std::int64_t images, dnnl::algorithm algorithm) const;
  dnnl::convolution_backward_weights::primitive_desc describe_weights(const ConvolutionShape& shape,
                                                                      std::int64_t images,
                                                                      dnnl::algorithm algorithm) const;
  std::int64_t tiles() const { return (shape_.out_height + 3) / 4 * ((shape_.out_width + 3) / 4); }
  bool suits_winograd() const;
  template <class Work>
  void make(const Work& work) const;  // calls `work`, which makes primitives
  bool enlarges_source() const {
    return weights_shape_.padding != shape_.padding || weights_shape_.input != shape_.input;
  }
  void enlarge_source(const char* source, char* larger) const;
  std::int64_t bias_bytes() const;
  // Bytes of a weight gradient in the plain layout, with channels that the canonical one lacks. 0: it lacks none.
  std::int64_t plain_gradient_bytes() const;
  void store_gradient(const ImageKernels& kernels, const float* own, float* plain, float* weights, bool accumulate);

  std::int64_t input_;              // channels of the canonical weights
  ConvolutionShape shape_;          // what the primitives compute; it may have more channels
  ConvolutionShape weights_shape_;  // what the weight gradient's primitive computes, see make_backward_weights()
  bool training_, channels_last_ = false;
  int threads_;
  dnnl::memory::data_type type_;
  dnnl::convolution_forward::primitive_desc forward_description_;
  dnnl::convolution_backward_data::primitive_desc data_description_;
  dnnl::convolution_backward_weights::primitive_desc weights_description_;
  dnnl::primitive forward_, data_, weights_;
  Arguments forward_arguments_, data_arguments_, weights_arguments_;
  dnnl::memory flat_, forward_weights_, data_weights_, bias_, own_gradient_, own_bias_gradient_, flat_gradient_;
  dnnl::memory forward_scratch_, data_scratch_, weights_scratch_;
  dnnl::reorder to_forward_, to_data_, store_, add_;
  bool shared_weights_ = false;    // the data gradient reads the weights in the forward layout
  bool blocked_gradient_ = false;  // the layout is OIhw16i16o or OIhw8i8o, which our own kernel reads
};

}  // namespace ringtrain::cpu
