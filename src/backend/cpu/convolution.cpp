#include "backend/cpu/convolution.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace ringtrain::cpu {

using dnnl::memory;

namespace {

memory at_nothing(const memory::desc& description) {
  return {description, onednn_engine(), nullptr};
}
std::int64_t aligned(std::size_t bytes) {
  return (static_cast<std::int64_t>(bytes) + 63) / 64 * 64;
}
void run(dnnl::primitive& primitive, const std::unordered_map<int, memory>& arguments) {
  primitive.execute(onednn_stream(), arguments);
}

}  // namespace

ConvolutionPrimitives::ConvolutionPrimitives(const ConvolutionShape& shape, bool training, int threads)
    : shape_(shape),
      training_(training),
      threads_(threads),
      type_(shape.bf16 ? memory::data_type::bf16 : memory::data_type::f32) {}

dnnl::primitive_attr ConvolutionPrimitives::attributes() const {
  dnnl::primitive_attr a;
  a.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return a;
}

memory::desc ConvolutionPrimitives::map(std::int64_t images, bool output) const {
  const ConvolutionShape& s = shape_;
  const memory::dims dims = output ? memory::dims{images, s.output, s.out_height, s.out_width}
                                   : memory::dims{images, s.input, s.in_height, s.in_width};
  memory::format_tag tag = s.lanes == 16 ? memory::format_tag::nChw16c : memory::format_tag::nChw8c;
  if (!output && s.pixels) tag = channels_last_ ? memory::format_tag::nhwc : memory::format_tag::nchw;
  return {dims, type_, tag};
}

dnnl::convolution_forward::primitive_desc ConvolutionPrimitives::describe_forward(std::int64_t images) const {
  const ConvolutionShape& s = shape_;
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, type_, memory::format_tag::any);
  const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
  const auto purpose = training_ ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  const auto direct = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr a = attributes();
  if (s.relu) {
    dnnl::post_ops post;
#if DNNL_VERSION_MAJOR >= 3
    post.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
#else
    post.append_eltwise(1, dnnl::algorithm::eltwise_relu, 0, 0);
#endif
    a.set_post_ops(post);
  }
#if DNNL_VERSION_MAJOR >= 3
  if (s.bias)
    return {onednn_engine(), purpose, direct, map(images, false), weights, bias, map(images, true), strides,
            padding,         padding, a};
  return {onednn_engine(), purpose, direct, map(images, false), weights, map(images, true), strides,
          padding,         padding, a};
#else
  using Description = dnnl::convolution_forward::desc;
  const Description d =
      s.bias ? Description(purpose, direct, map(images, false), weights, bias, map(images, true), strides, padding,
                           padding)
             : Description(purpose, direct, map(images, false), weights, map(images, true), strides, padding, padding);
  return {d, a, onednn_engine()};
#endif
}

void ConvolutionPrimitives::make_forward(std::int64_t images) {
  const TeamSize team(threads_);
  try {
    forward_description_ = describe_forward(images);
    // oneDNN's kernels for few input channels read one plain layout or the other: take the one that has a kernel.
    if (shape_.pixels && implementation(0).find("jit") == std::string::npos) {
      channels_last_ = true;
      const auto other = describe_forward(images);
      channels_last_ = std::string(other.impl_info_str()).find("jit") != std::string::npos;
      if (channels_last_) forward_description_ = other;
    }
    forward_ = dnnl::convolution_forward(forward_description_);
  } catch (const dnnl::error& e) {
    throw Error(cat("oneDNN ", onednn_version(), " has no ", shape_.bf16 ? "bf16" : "fp32", " convolution ",
                    shape_.input, " -> ", shape_.output, ", ", shape_.kernel, " x ", shape_.kernel, ": ", e.what()),
                shape_.bf16 ? "use precision: fp32" : "");
  }
}

void ConvolutionPrimitives::make_backward_data(std::int64_t images) {
  const TeamSize team(threads_);
  const ConvolutionShape& s = shape_;
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, type_, memory::format_tag::any);
  const auto hint = describe_forward(images);
  const auto direct = dnnl::algorithm::convolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  data_description_ = {onednn_engine(), direct, map(images, false), weights, map(images, true), strides, padding,
                       padding,         hint,   attributes()};
#else
  data_description_ = {dnnl::convolution_backward_data::desc(direct, map(images, false), weights, map(images, true),
                                                             strides, padding, padding),
                       attributes(), onednn_engine(), hint};
#endif
  data_ = dnnl::convolution_backward_data(data_description_);
}

void ConvolutionPrimitives::make_backward_weights(std::int64_t images) {
  const TeamSize team(threads_);
  const ConvolutionShape& s = shape_;
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, memory::data_type::f32,
                             memory::format_tag::any);
  const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
  const auto hint = describe_forward(images);
  const auto direct = dnnl::algorithm::convolution_direct;
  const memory::desc from = map(images, false), to = map(images, true);
#if DNNL_VERSION_MAJOR >= 3
  if (s.bias)
    weights_description_ = {onednn_engine(), direct,  from,    weights, bias,        to,
                            strides,         padding, padding, hint,    attributes()};
  else
    weights_description_ = {onednn_engine(), direct, from, weights, to, strides, padding, padding, hint, attributes()};
#else
  using Description = dnnl::convolution_backward_weights::desc;
  const Description d = s.bias ? Description(direct, from, weights, bias, to, strides, padding, padding)
                               : Description(direct, from, weights, to, strides, padding, padding);
  weights_description_ = {d, attributes(), onednn_engine(), hint};
#endif
  weights_ = dnnl::convolution_backward_weights(weights_description_);
}

std::int64_t ConvolutionPrimitives::weight_bytes() const {
  std::int64_t bytes = aligned(forward_description_.weights_desc().get_size());
  if (data_ && data_description_.weights_desc() != forward_description_.weights_desc())
    bytes += aligned(data_description_.weights_desc().get_size());
  if (shape_.bias) bytes += aligned(static_cast<std::size_t>(shape_.output) * sizeof(float));
  return bytes;
}

std::int64_t ConvolutionPrimitives::weight_gradient_bytes() const {
  if (!weights_) return 0;
  return aligned(weights_description_.diff_weights_desc().get_size()) +
         (shape_.bias ? aligned(static_cast<std::size_t>(shape_.output) * sizeof(float)) : 0);
}

std::int64_t ConvolutionPrimitives::scratch_bytes() const {
  std::int64_t bytes = aligned(forward_description_.scratchpad_desc().get_size());
  if (data_) bytes = std::max(bytes, aligned(data_description_.scratchpad_desc().get_size()));
  if (weights_) bytes = std::max(bytes, aligned(weights_description_.scratchpad_desc().get_size()));
  return bytes;
}

void ConvolutionPrimitives::bind(char* weights, char* scratch) {
  const TeamSize team(threads_);
  const ConvolutionShape& s = shape_;
  const memory::desc plain(memory::dims{s.output, s.input, s.kernel, s.kernel}, memory::data_type::f32,
                           memory::format_tag::oihw);
  const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
  flat_ = at_nothing(plain);
  const auto take = [&](const memory::desc& description) {
    memory m(description, onednn_engine(), weights);
    weights += aligned(description.get_size());
    return m;
  };
  forward_weights_ = take(forward_description_.weights_desc());
  to_forward_ = dnnl::reorder(flat_, forward_weights_);
  if (s.bias) bias_ = take(bias);
  forward_arguments_ = {{DNNL_ARG_SRC, at_nothing(forward_description_.src_desc())},
                        {DNNL_ARG_WEIGHTS, forward_weights_},
                        {DNNL_ARG_DST, at_nothing(forward_description_.dst_desc())},
                        {DNNL_ARG_SCRATCHPAD, {forward_description_.scratchpad_desc(), onednn_engine(), scratch}}};
  if (s.bias) forward_arguments_.insert({DNNL_ARG_BIAS, bias_});
  if (data_) {
    shared_weights_ = data_description_.weights_desc() == forward_description_.weights_desc();
    data_weights_ = shared_weights_ ? forward_weights_ : take(data_description_.weights_desc());
    if (!shared_weights_) to_data_ = dnnl::reorder(flat_, data_weights_);
    data_arguments_ = {{DNNL_ARG_DIFF_DST, at_nothing(data_description_.diff_dst_desc())},
                       {DNNL_ARG_WEIGHTS, data_weights_},
                       {DNNL_ARG_DIFF_SRC, at_nothing(data_description_.diff_src_desc())},
                       {DNNL_ARG_SCRATCHPAD, {data_description_.scratchpad_desc(), onednn_engine(), scratch}}};
  }
  if (weights_) {
    own_gradient_ = at_nothing(weights_description_.diff_weights_desc());
    flat_gradient_ = at_nothing(plain);
    weights_arguments_ = {{DNNL_ARG_SRC, at_nothing(weights_description_.src_desc())},
                          {DNNL_ARG_DIFF_DST, at_nothing(weights_description_.diff_dst_desc())},
                          {DNNL_ARG_DIFF_WEIGHTS, own_gradient_},
                          {DNNL_ARG_SCRATCHPAD, {weights_description_.scratchpad_desc(), onednn_engine(), scratch}}};
    if (s.bias) {
      own_bias_gradient_ = at_nothing(bias);
      weights_arguments_.insert({DNNL_ARG_DIFF_BIAS, own_bias_gradient_});
    }
    store_ = dnnl::reorder(own_gradient_, flat_gradient_);
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    dnnl::primitive_attr adding;
    adding.set_post_ops(sum);
    add_ = dnnl::reorder(own_gradient_, flat_gradient_, adding);
  }
}

void ConvolutionPrimitives::set_weights(const float* weights, const float* bias) {
  flat_.set_data_handle(const_cast<float*>(weights));  // oneDNN's argument is not const; a reorder only reads
  to_forward_.execute(onednn_stream(), flat_, forward_weights_);
  if (to_data_) to_data_.execute(onednn_stream(), flat_, data_weights_);
  if (shape_.bias) std::memcpy(bias_.get_data_handle(), bias, static_cast<std::size_t>(shape_.output) * sizeof(float));
}

void ConvolutionPrimitives::forward(const void* source, void* destination) {
  forward_arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(source));
  forward_arguments_.at(DNNL_ARG_DST).set_data_handle(destination);
  run(forward_, forward_arguments_);
}

void ConvolutionPrimitives::backward_data(const void* gradient, void* source_gradient) {
  data_arguments_.at(DNNL_ARG_DIFF_DST).set_data_handle(const_cast<void*>(gradient));
  data_arguments_.at(DNNL_ARG_DIFF_SRC).set_data_handle(source_gradient);
  run(data_, data_arguments_);
}

void ConvolutionPrimitives::backward_weights(const void* source, const void* gradient, char* own, float* weights,
                                             float* bias, bool accumulate) {
  weights_arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(source));
  weights_arguments_.at(DNNL_ARG_DIFF_DST).set_data_handle(const_cast<void*>(gradient));
  own_gradient_.set_data_handle(own);  // copies of a memory object share its handle
  const auto* d_bias = reinterpret_cast<const float*>(own + aligned(own_gradient_.get_desc().get_size()));
  if (shape_.bias) own_bias_gradient_.set_data_handle(const_cast<float*>(d_bias));
  run(weights_, weights_arguments_);
  flat_gradient_.set_data_handle(weights);
  (accumulate ? add_ : store_).execute(onednn_stream(), own_gradient_, flat_gradient_);
  if (shape_.bias)
    for (std::int64_t i = 0; i < shape_.output; ++i) bias[i] = (accumulate ? bias[i] : 0.0f) + d_bias[i];
}

std::string ConvolutionPrimitives::implementation(int which) const {
  if (which == 0) return forward_description_.impl_info_str();
  if (which == 1) return data_ ? data_description_.impl_info_str() : "-";
  return weights_ ? weights_description_.impl_info_str() : "-";
}

double ConvolutionPrimitives::flops(std::int64_t images) const {
  const ConvolutionShape& s = shape_;
  return 2.0 * static_cast<double>(images * s.output * s.out_height * s.out_width * s.input * s.kernel * s.kernel);
}

}  // namespace ringtrain::cpu
