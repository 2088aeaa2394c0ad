#include "backend/cpu/convolution.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cpu {

using dnnl::memory;

namespace {

memory at_nothing(const memory::desc& description) {
  return {description, onednn_engine(), nullptr};
}
std::int64_t aligned(std::size_t bytes) {
  return round_up(static_cast<std::int64_t>(bytes), 64);
}
dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr a;
  a.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return a;
}
// Describes Winograd's algorithm if `winograd` is true and oneDNN has it for this shape, otherwise the direct one.
template <class Describe>
auto first_of(bool winograd, const Describe& describe) {
  if (winograd) try {
      return describe(dnnl::algorithm::convolution_winograd);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  return describe(dnnl::algorithm::convolution_direct);
}
bool is_generated_code(const char* implementation) {
  return std::string(implementation).find("jit") != std::string::npos;
}
// Returns the same convolution for a source with more zeros: pixels with three channels, or maps that already have the
// zeros around them. Without a value, there is no such source.
std::optional<ConvolutionShape> with_larger_source(ConvolutionShape shape) {
  if (shape.pixels ? shape.input >= 3 : shape.padding == 0) return std::nullopt;
  if (shape.pixels) {
    shape.input = 3;
    return shape;
  }
  shape.in_height += 2 * shape.padding;
  shape.in_width += 2 * shape.padding;
  shape.padding = 0;
  return shape;
}

// oneDNN has only slow code for maps with fewer channels than a block. Such a map is taken as a whole block. It has
// these bytes anyway, and the weights of the other channels are zeros.
ConvolutionShape with_whole_block(ConvolutionShape shape) {
  if (!shape.pixels) shape.input = std::max<std::int64_t>(shape.input, shape.lanes);
  return shape;
}

}  // namespace

ConvolutionPrimitives::ConvolutionPrimitives(const ConvolutionShape& shape, bool training, int threads)
    : input_(shape.input),
      shape_(with_whole_block(shape)),
      weights_shape_(shape_),
      training_(training),
      threads_(threads),
      type_(shape.bf16 ? memory::data_type::bf16 : memory::data_type::f32) {}

memory::desc ConvolutionPrimitives::map(const ConvolutionShape& s, std::int64_t images, bool output) const {
  const memory::dims dims = output ? memory::dims{images, s.output, s.out_height, s.out_width}
                                   : memory::dims{images, s.input, s.in_height, s.in_width};
  memory::format_tag tag = s.lanes == 16 ? memory::format_tag::nChw16c : memory::format_tag::nChw8c;
  if (!output && s.pixels) tag = channels_last_ ? memory::format_tag::nhwc : memory::format_tag::nchw;
  return {dims, type_, tag};
}

// Winograd's algorithm F(4 x 4, 3 x 3) (Lavin and Gray 2016) takes 36 products for a tile of 4 x 4 outputs. The direct
// algorithm takes 144. Tiles that reach beyond the map waste products, so Winograd's is used only if it takes at most
// half as many in all. Its error, measured in fp32, is 1e-6 of the norm of the result.
bool ConvolutionPrimitives::suits_winograd() const {
  const ConvolutionShape& s = shape_;
  return !s.bf16 && !s.pixels && s.kernel == 3 && s.stride == 1 && s.padding == 1 && s.input >= 32 && s.output >= 32 &&
         2 * 36 * tiles() <= 9 * s.out_height * s.out_width;
}

std::int64_t ConvolutionPrimitives::least_images() const {
  if (!suits_winograd()) return 1;
  constexpr std::int64_t least_tiles = 256;  // measured: with fewer, reading the weights takes most of the time
  return divide_up(least_tiles, tiles());
}

dnnl::convolution_forward::primitive_desc ConvolutionPrimitives::describe_forward(const ConvolutionShape& s,
                                                                                  std::int64_t images,
                                                                                  dnnl::algorithm algorithm) const {
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, type_, memory::format_tag::any);
  const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
  const memory::desc from = map(s, images, false), to = map(s, images, true);
  const auto purpose = training_ ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  const dnnl::primitive_attr attributes = own_scratch();
#if DNNL_VERSION_MAJOR >= 3
  auto& engine = onednn_engine();
  if (s.bias) return {engine, purpose, algorithm, from, weights, bias, to, strides, padding, padding, attributes};
  return {engine, purpose, algorithm, from, weights, to, strides, padding, padding, attributes};
#else
  using Description = dnnl::convolution_forward::desc;
  const Description d = s.bias ? Description(purpose, algorithm, from, weights, bias, to, strides, padding, padding)
                               : Description(purpose, algorithm, from, weights, to, strides, padding, padding);
  return {d, attributes, onednn_engine()};
#endif
}

dnnl::convolution_backward_data::primitive_desc ConvolutionPrimitives::describe_data(std::int64_t images,
                                                                                     dnnl::algorithm algorithm) const {
  const ConvolutionShape& s = shape_;
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, type_, memory::format_tag::any);
  const memory::desc from = map(s, images, false), to = map(s, images, true);
  const auto hint = describe_forward(s, images, algorithm);
#if DNNL_VERSION_MAJOR >= 3
  return {onednn_engine(), algorithm, from, weights, to, strides, padding, padding, hint, own_scratch()};
#else
  return {dnnl::convolution_backward_data::desc(algorithm, from, weights, to, strides, padding, padding), own_scratch(),
          onednn_engine(), hint};
#endif
}

dnnl::convolution_backward_weights::primitive_desc ConvolutionPrimitives::describe_weights(
    const ConvolutionShape& s, std::int64_t images, dnnl::algorithm algorithm) const {
  const memory::dims strides{s.stride, s.stride}, padding{s.padding, s.padding};
  const memory::desc weights(memory::dims{s.output, s.input, s.kernel, s.kernel}, memory::data_type::f32,
                             memory::format_tag::any);
  const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
  const memory::desc from = map(s, images, false);
  memory::desc to = map(s, images, true);
  // A dense layer on pixels has one window. The plain form of its output has the same bytes, and oneDNN then takes a
  // matrix product instead of its slow reference.
  if (s.pixels && s.out_height == 1 && s.out_width == 1 && s.output % s.lanes == 0)
    to = {memory::dims{images, s.output, 1, 1}, type_, memory::format_tag::nchw};
  const auto hint = describe_forward(s, images, algorithm);
#if DNNL_VERSION_MAJOR >= 3
  auto& engine = onednn_engine();
  if (s.bias) return {engine, algorithm, from, weights, bias, to, strides, padding, padding, hint, own_scratch()};
  return {engine, algorithm, from, weights, to, strides, padding, padding, hint, own_scratch()};
#else
  using Description = dnnl::convolution_backward_weights::desc;
  const Description d = s.bias ? Description(algorithm, from, weights, bias, to, strides, padding, padding)
                               : Description(algorithm, from, weights, to, strides, padding, padding);
  return {d, own_scratch(), onednn_engine(), hint};
#endif
}

template <class Work>
void ConvolutionPrimitives::make(const Work& work) const {
  const ConvolutionShape& s = shape_;
  const auto name = [&] {
    return cat(s.bf16 ? "bf16" : "fp32", " convolution ", s.input, " -> ", s.output, ", ", s.kernel, " x ", s.kernel);
  };
  make_primitives(threads_, s.bf16, name, work);
}

void ConvolutionPrimitives::make_forward(std::int64_t images) {
  make([&] {
    const auto describe = [&](dnnl::algorithm algorithm) { return describe_forward(shape_, images, algorithm); };
    forward_description_ = first_of(suits_winograd(), describe);
    // For few input channels, oneDNN has a fast kernel for only one of the two plain layouts. That layout is taken.
    if (shape_.pixels && !is_generated_code(forward_description_.impl_info_str())) {
      channels_last_ = true;
      const auto other = first_of(false, describe);
      channels_last_ = is_generated_code(other.impl_info_str());
      if (channels_last_) forward_description_ = other;
    }
    forward_ = dnnl::convolution_forward(forward_description_);
  });
}

void ConvolutionPrimitives::make_backward_data(std::int64_t images) {
  make([&] {
    data_description_ =
        first_of(suits_winograd(), [&](dnnl::algorithm algorithm) { return describe_data(images, algorithm); });
    data_ = dnnl::convolution_backward_data(data_description_);
  });
}

// With AVX2, oneDNN has only a slow weight gradient for maps that are smaller than the kernel, as in the last layers
// of a ResNet on small pictures, and for pixels of one or two channels. Such a source is copied into a larger one,
// for which oneDNN is fast: a map that contains its padding, or pixels with three channels, of which the added ones
// are zeros.
void ConvolutionPrimitives::make_backward_weights(std::int64_t images) {
  make([&] {
    weights_shape_ = shape_;
    weights_description_ = first_of(
        suits_winograd(), [&](dnnl::algorithm algorithm) { return describe_weights(shape_, images, algorithm); });
    const bool is_slow = !is_generated_code(weights_description_.impl_info_str());
    if (const auto larger = with_larger_source(shape_); is_slow && larger && !channels_last_) try {
        const auto other = describe_weights(*larger, images, dnnl::algorithm::convolution_direct);
        if (is_generated_code(other.impl_info_str())) {
          weights_shape_ = *larger;
          weights_description_ = other;
        }
      } catch (const dnnl::error& error) {
        if (error.status != dnnl_unimplemented) throw;
      }
    weights_ = dnnl::convolution_backward_weights(weights_description_);
  });
}

bool ConvolutionPrimitives::has_fast_code() const {
  return is_generated_code(forward_description_.impl_info_str()) &&
         (!data_ || is_generated_code(data_description_.impl_info_str())) &&
         (!weights_ || is_generated_code(weights_description_.impl_info_str()));
}

std::int64_t ConvolutionPrimitives::bias_bytes() const {
  return shape_.bias ? aligned(static_cast<std::size_t>(shape_.output) * sizeof(float)) : 0;
}
std::int64_t ConvolutionPrimitives::weight_bytes() const {
  return aligned(forward_description_.weights_desc().get_size()) + bias_bytes();
}
std::int64_t ConvolutionPrimitives::forward_scratch_bytes() const {
  return aligned(forward_description_.scratchpad_desc().get_size());
}
std::int64_t ConvolutionPrimitives::data_scratch_bytes() const {
  return aligned(data_description_.scratchpad_desc().get_size()) + aligned(data_description_.weights_desc().get_size());
}
std::int64_t ConvolutionPrimitives::plain_gradient_bytes() const {
  const std::int64_t elements = shape_.output * weights_shape_.input * shape_.kernel * shape_.kernel;
  return weights_shape_.input == input_ ? 0 : aligned(static_cast<std::size_t>(elements) * sizeof(float));
}
std::int64_t ConvolutionPrimitives::weights_scratch_bytes() const {
  return aligned(weights_description_.scratchpad_desc().get_size()) +
         aligned(weights_description_.diff_weights_desc().get_size()) +
         (enlarges_source() ? aligned(weights_description_.src_desc().get_size()) : 0) + plain_gradient_bytes() +
         bias_bytes();
}

void ConvolutionPrimitives::bind(char* weights) {
  make([&] {
    const ConvolutionShape& s = shape_;
    const memory::dims dims{s.output, s.input, s.kernel, s.kernel};
    const memory::desc plain(dims, memory::data_type::f32, memory::format_tag::oihw);
    const memory::desc bias(memory::dims{s.output}, memory::data_type::f32, memory::format_tag::x);
    flat_ = at_nothing(plain);
    forward_weights_ = memory(forward_description_.weights_desc(), onednn_engine(), weights);
    to_forward_ = dnnl::reorder(flat_, forward_weights_);
    forward_scratch_ = at_nothing(forward_description_.scratchpad_desc());
    forward_arguments_ = {{DNNL_ARG_SRC, at_nothing(forward_description_.src_desc())},
                          {DNNL_ARG_WEIGHTS, forward_weights_},
                          {DNNL_ARG_DST, at_nothing(forward_description_.dst_desc())},
                          {DNNL_ARG_SCRATCHPAD, forward_scratch_}};
    if (s.bias) {
      bias_ = memory(bias, onednn_engine(), weights + aligned(forward_description_.weights_desc().get_size()));
      forward_arguments_.insert({DNNL_ARG_BIAS, bias_});
    }
    if (data_) {
      shared_weights_ = data_description_.weights_desc() == forward_description_.weights_desc();
      data_weights_ = shared_weights_ ? forward_weights_ : at_nothing(data_description_.weights_desc());
      if (!shared_weights_) to_data_ = dnnl::reorder(forward_weights_, data_weights_);
      data_scratch_ = at_nothing(data_description_.scratchpad_desc());
      data_arguments_ = {{DNNL_ARG_DIFF_DST, at_nothing(data_description_.diff_dst_desc())},
                         {DNNL_ARG_WEIGHTS, data_weights_},
                         {DNNL_ARG_DIFF_SRC, at_nothing(data_description_.diff_src_desc())},
                         {DNNL_ARG_SCRATCHPAD, data_scratch_}};
    }
    if (weights_) {
      own_gradient_ = at_nothing(weights_description_.diff_weights_desc());
      flat_gradient_ = at_nothing({memory::dims{s.output, weights_shape_.input, s.kernel, s.kernel},
                                   memory::data_type::f32, memory::format_tag::oihw});
      weights_scratch_ = at_nothing(weights_description_.scratchpad_desc());
      weights_arguments_ = {{DNNL_ARG_SRC, at_nothing(weights_description_.src_desc())},
                            {DNNL_ARG_DIFF_DST, at_nothing(weights_description_.diff_dst_desc())},
                            {DNNL_ARG_DIFF_WEIGHTS, own_gradient_},
                            {DNNL_ARG_SCRATCHPAD, weights_scratch_}};
      if (s.bias) {
        own_bias_gradient_ = at_nothing(bias);
        weights_arguments_.insert({DNNL_ARG_DIFF_BIAS, own_bias_gradient_});
      }
      const auto blocked = s.lanes == 16 ? memory::format_tag::OIhw16i16o : memory::format_tag::OIhw8i8o;
      blocked_gradient_ = input_ % s.lanes == 0 && s.output % s.lanes == 0 &&
                          own_gradient_.get_desc() == memory::desc(dims, memory::data_type::f32, blocked);
      if (blocked_gradient_) return;
      store_ = dnnl::reorder(own_gradient_, flat_gradient_);
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      dnnl::primitive_attr adding;
      adding.set_post_ops(sum);
      add_ = dnnl::reorder(own_gradient_, flat_gradient_, adding);
    }
  });
}

void ConvolutionPrimitives::set_weights(const float* weights, const float* bias) {
  std::vector<float> whole;  // with the zeros of with_whole_block()
  if (shape_.input != input_) {
    const std::int64_t row = input_ * shape_.kernel * shape_.kernel, whole_row = row / input_ * shape_.input;
    whole.resize(static_cast<std::size_t>(shape_.output * whole_row));
    for (std::int64_t o = 0; o < shape_.output; ++o) std::copy_n(weights + o * row, row, whole.data() + o * whole_row);
    weights = whole.data();
  }
  flat_.set_data_handle(const_cast<float*>(weights));  // oneDNN's argument is not const; a reorder only reads
  execute(to_forward_, flat_, forward_weights_);
  if (shape_.bias) std::memcpy(bias_.get_data_handle(), bias, static_cast<std::size_t>(shape_.output) * sizeof(float));
}

// Copies of a memory object share one handle. Setting it here sets it in the arguments too.
void ConvolutionPrimitives::forward(const void* source, void* destination, char* scratch) {
  forward_arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(source));
  forward_arguments_.at(DNNL_ARG_DST).set_data_handle(destination);
  forward_scratch_.set_data_handle(scratch);
  execute(forward_, forward_arguments_);
}

void ConvolutionPrimitives::prepare_data(char* scratch) {
  if (shared_weights_) return;
  data_weights_.set_data_handle(scratch);
  execute(to_data_, forward_weights_, data_weights_);
}

void ConvolutionPrimitives::backward_data(const void* gradient, void* source_gradient, char* scratch) {
  data_arguments_.at(DNNL_ARG_DIFF_DST).set_data_handle(const_cast<void*>(gradient));
  data_arguments_.at(DNNL_ARG_DIFF_SRC).set_data_handle(source_gradient);
  data_scratch_.set_data_handle(scratch + aligned(data_description_.weights_desc().get_size()));
  execute(data_, data_arguments_);
}

// For the blocked layout, our own kernel replaces oneDNN's reorder. The reorder runs at a tenth of the memory's speed
// if the rows lie a power of two apart. Gradients of channels of zeros are left out.
void ConvolutionPrimitives::store_gradient(const ImageKernels& kernels, const float* own, float* plain, float* weights,
                                           bool accumulate) {
  const std::int64_t places = shape_.kernel * shape_.kernel, lanes = shape_.lanes;
  if (blocked_gradient_) {
    const std::int64_t blocks = input_ / lanes, all = shape_.output / lanes * blocks;
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::int64_t b = 0; b < all; ++b)
      kernels.store_weights(input_, places, own + b * places * lanes * lanes,
                            weights + (b / blocks * lanes * input_ + b % blocks * lanes) * places, accumulate);
    return;
  }
  if (weights_shape_.input == input_) {
    flat_gradient_.set_data_handle(weights);
    execute(accumulate ? add_ : store_, own_gradient_, flat_gradient_);
    return;
  }
  flat_gradient_.set_data_handle(plain);
  execute(store_, own_gradient_, flat_gradient_);
  for (std::int64_t o = 0; o < shape_.output; ++o)
    for (std::int64_t i = 0; i < input_ * places; ++i) {
      float& to = weights[o * input_ * places + i];
      to = (accumulate ? to : 0.0f) + plain[o * weights_shape_.input * places + i];
    }
}

// Copies the source map into the middle of a map with zeros around it, both in blocks of channels. Of pixels, copies
// the channels of an image before channels of zeros.
void ConvolutionPrimitives::enlarge_source(const char* source, char* larger) const {
  const ConvolutionShape &from = shape_, &to = weights_shape_;
  const std::int64_t element = from.bf16 ? 2 : 4, pixel = (from.pixels ? 1 : from.lanes) * element;
  const std::int64_t row = from.in_width * pixel, larger_row = to.in_width * pixel;
  const std::int64_t before = from.pixels ? 0 : from.padding * (larger_row + pixel);
  // A map of pixels has its channels one below the other.
  const std::int64_t rows = from.in_height * (from.pixels ? from.input : 1);
  const std::int64_t larger_bytes = to.in_height * (from.pixels ? to.input : 1) * larger_row;
  const std::int64_t maps = static_cast<std::int64_t>(weights_description_.src_desc().get_size()) / larger_bytes;
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (std::int64_t map = 0; map < maps; ++map) {
    char* begin = larger + map * larger_bytes;
    std::memset(begin, 0, static_cast<std::size_t>(larger_bytes));
    for (std::int64_t y = 0; y < rows; ++y)
      std::memcpy(begin + before + y * larger_row, source + (map * rows + y) * row, static_cast<std::size_t>(row));
  }
}

void ConvolutionPrimitives::backward_weights(const ImageKernels& kernels, const void* source, const void* gradient,
                                             char* scratch, float* weights, float* bias, bool accumulate) {
  weights_arguments_.at(DNNL_ARG_DIFF_DST).set_data_handle(const_cast<void*>(gradient));
  own_gradient_.set_data_handle(scratch);
  const auto* own = reinterpret_cast<const float*>(scratch);
  scratch += aligned(weights_description_.diff_weights_desc().get_size());
  auto* d_bias = reinterpret_cast<float*>(scratch);
  if (shape_.bias) own_bias_gradient_.set_data_handle(scratch);
  scratch += bias_bytes();
  if (enlarges_source()) {
    enlarge_source(static_cast<const char*>(source), scratch);
    source = scratch;
    scratch += aligned(weights_description_.src_desc().get_size());
  }
  auto* plain = reinterpret_cast<float*>(scratch);
  scratch += plain_gradient_bytes();
  weights_arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(source));
  weights_scratch_.set_data_handle(scratch);
  execute(weights_, weights_arguments_);
  store_gradient(kernels, own, plain, weights, accumulate);
  if (shape_.bias)
    for (std::int64_t i = 0; i < shape_.output; ++i) bias[i] = (accumulate ? bias[i] : 0.0f) + d_bias[i];
}

double ConvolutionPrimitives::flops(std::int64_t images) const {
  const ConvolutionShape& s = shape_;
  return 2.0 * static_cast<double>(images * s.output * s.out_height * s.out_width * input_ * s.kernel * s.kernel);
}

}  // namespace ringtrain::cpu
