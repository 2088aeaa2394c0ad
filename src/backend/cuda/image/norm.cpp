// The norms of an image network, alone or with the max pooling after them: NormLayer and NormPool of layers.h.
#include "backend/cuda/image/layers.h"
#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

NormStatistics::NormStatistics(const ImageContext& context, const Norm& node, Value& x)
    : c_(context),
      x_(x),
      name_(node.weight.substr(0, node.weight.rfind('.'))),
      by_sample_(node.by_sample()),
      together_(static_cast<int>(node.channels_together())),
      epsilon_(static_cast<float>(node.epsilon)),
      gamma_(context.parameters->find(node.weight)),
      beta_(context.parameters->find(node.bias)),
      mean_(by_sample_ ? nullptr : &context.parameters->find(node.running_mean)),
      variance_(by_sample_ ? nullptr : &context.parameters->find(node.running_var)) {
  x.statistics = this;
}

Storage NormStatistics::make_sums(Emission& e, int blocks) const {
  return e[*this].sums = e.buffer(name_ + " sums", groups() * blocks * 2 * row_bytes());
}

void NormStatistics::from_running_statistics(Emission& e) const {
  const Storage factors = e[*this].factors = e.schedule().lasting(name_ + " factors", 4 * row_bytes());
  const Tensor gamma = e.vector(gamma_, x_.width), beta = e.vector(beta_, x_.width), mean = e.vector(*mean_, x_.width),
               variance = e.vector(*variance_, x_.width), to_scale = scale(e), to_bias = bias(e);
  const auto launch = [=, this, &e](bool) {
    return launch_of(NormInferenceArguments{.gamma = e.at<float>(gamma),
                                            .beta = e.at<float>(beta),
                                            .running_mean = e.at<float>(mean),
                                            .running_var = e.at<float>(variance),
                                            .scale = e.at<float>(to_scale),
                                            .bias = e.at<float>(to_bias),
                                            .channels = static_cast<int>(x_.width),
                                            .epsilon = epsilon_});
  };
  e.program().add_weight_command(kernel_command(name_ + " factors", {{gamma.storage}, {factors, true}}, launch));
}

void NormStatistics::measure(Emission& e, int blocks) const {
  const Storage x = e[x_].data, sums = make_sums(e, blocks);
  e.kernel(name_ + " sums", {{x}, {sums, true}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormSumsArguments{.x = e.at(x),
                                                .partial = e.at<float>(sums),
                                                .rows_per_group = rows_per_group(),
                                                .groups = groups(),
                                                .channels = static_cast<int>(x_.width),
                                                .blocks = blocks});
  });
}

Storage NormStatistics::join_channels(Emission& e, const std::string& what, Storage partial, int blocks,
                                      int sums_per_block, int which, bool with_gamma) const {
  const Storage joined = e.buffer(what + " of groups of channels", groups() * 2 * row_bytes());
  const Tensor gamma = e.vector(gamma_, x_.width);
  e.kernel(what + " of groups of channels", {{partial}, {gamma.storage}, {joined, true}}, [=, this, &e](bool) {
    return launch_of(NormJoinChannelsArguments{.partial = e.at<float>(partial),
                                               .gamma = with_gamma ? e.at<float>(gamma) : nullptr,
                                               .joined = e.at<float>(joined),
                                               .groups = groups(),
                                               .channels = static_cast<int>(x_.width),
                                               .blocks = blocks,
                                               .sums_per_block = sums_per_block,
                                               .which = which,
                                               .together = together_});
  });
  return joined;
}

void NormStatistics::finalize(Emission& e, int blocks) const {
  NormStorages& own = e[*this];
  own.factors = e.buffer(name_ + " factors", 4 * groups() * row_bytes());
  const bool as_type = e.choices().norms[*this].factors_as_type;
  if (as_type)
    own.factors_as_type = e.buffer(name_ + " factors as type", 2 * c_.groups() * x_.width * bytes_of(c_.type));
  const std::string what = name_ + " sums";
  const Storage sums = by_sample_ ? join_channels(e, what, own.sums, blocks, 2, 1, false) : e.of_group(what, own.sums);
  if (by_sample_) blocks = 1;
  const Storage factors = own.factors;
  const auto statistic = [&](const Parameter* p) { return p == nullptr ? Tensor{} : e.statistic(*p, x_.width); };
  const Tensor gamma = e.vector(gamma_, x_.width), beta = e.vector(beta_, x_.width), mean = statistic(mean_),
               variance = statistic(variance_), to_scale = scale(e), to_bias = bias(e), scale_typed = scale_as_type(e),
               bias_typed = bias_as_type(e);
  e.kernel(name_ + " statistics",
           {{sums}, {gamma.storage}, {mean.storage, true}, {factors, true}, {own.factors_as_type, true}},
           [=, this, &e](bool) {
             return launch_of(c_.type, NormFinalizeArguments{.partial = e.at<float>(sums),
                                                             .gamma = e.at<float>(gamma),
                                                             .beta = e.at<float>(beta),
                                                             .mean = e.at<float>(part(factors, 0)),
                                                             .inverse = e.at<float>(part(factors, 1)),
                                                             .scale = e.at<float>(to_scale),
                                                             .bias = e.at<float>(to_bias),
                                                             .scale_as_type = as_type ? e.at(scale_typed) : nullptr,
                                                             .bias_as_type = as_type ? e.at(bias_typed) : nullptr,
                                                             .mean_statistic = e.at<float>(mean),
                                                             .variance_statistic = e.at<float>(variance),
                                                             .state = e.step_state(),
                                                             .rows_per_group = span() * rows_per_group(),
                                                             .groups = groups(),
                                                             .channels = static_cast<int>(x_.width),
                                                             .blocks = static_cast<int>(span()) * blocks,
                                                             .epsilon = epsilon_,
                                                             .accumulate = false,
                                                             .mean_squares = !c_.training});
           });
}

void NormStatistics::forward(Emission& e) const {
  if (!c_.measures && !by_sample_) return from_running_statistics(e);
  const bool sums_come = e.choices().norms[*this].sums_come;
  const int blocks = sums_come ? 1
                               : norm_blocks(c_.device->facts().size(), Kernel::norm_sums, c_.type, rows_per_group(),
                                             groups(), static_cast<int>(x_.width));
  if (!sums_come) measure(e, blocks);
  finalize(e, blocks);
}

// The slopes need the sums of the whole group. The gradients of gamma and beta are this rank's own share, because the
// reduction over ranks adds the other shares, and each channel's own. When ranks share a group, or channels do, a
// second launch over the rank's and the channel's own sums computes these gradients. The unused results of both
// launches go to scratch buffers.
void NormStatistics::backward(Emission& e, Storage partial, int blocks, int sums_per_block, int which) const {
  const Storage slopes = e[*this].slopes = e.buffer(name_ + " gradient's factors", 3 * groups() * row_bytes());
  const std::string what = name_ + " gradient's sums";
  if (by_sample_) {
    const Storage joined = join_channels(e, what, partial, blocks, sums_per_block, which, true);
    finalize_backward(e, {joined, slopes, 1, 2, 1, true}, false);
  } else {
    const auto ranks = static_cast<int>(span());
    const BackwardSums of_group{e.of_group(what, partial), slopes, ranks * blocks, sums_per_block, which};
    if (ranks == 1) return finalize_backward(e, of_group, true);
    finalize_backward(e, of_group, false);
  }
  const Storage unused = e.buffer(name_ + " gradient's factors of one rank", 3 * groups() * row_bytes());
  finalize_backward(e, {partial, unused, blocks, sums_per_block, which}, true);
}

void NormStatistics::finalize_backward(Emission& e, const BackwardSums& of, bool gradients) const {
  const Storage factors = e[*this].factors;
  const Storage unused = gradients ? -1 : e.buffer(name_ + " gradients of the group", 2 * row_bytes());
  const Tensor gamma = e.vector(gamma_, x_.width);
  const auto slope = [this, &of](std::int64_t index) { return part(of.slopes, index); };
  const Tensor a = slope(0), b = slope(1), c = slope(2);
  e.kernel(
      name_ + " gradient's factors", {{of.partial}, {factors}, {gamma.storage}, {of.slopes, true}, {unused, true}},
      [=, this, &e](bool accumulate) {
        float* const nowhere = e.at<float>(unused);
        return launch_of(
            NormBackwardFinalizeArguments{.partial = e.at<float>(of.partial),
                                          .gamma = e.at<float>(gamma),
                                          .mean = e.at<float>(part(factors, 0)),
                                          .inverse = e.at<float>(part(factors, 1)),
                                          .a = e.at<float>(a),
                                          .b = e.at<float>(b),
                                          .c = e.at<float>(c),
                                          .gamma_gradient = gradients ? e.gradient(gamma_) : nowhere,
                                          .beta_gradient = gradients ? e.gradient(beta_) : nowhere + x_.width,
                                          .rows_per_group = span() * rows_per_group(),
                                          .groups = groups(),
                                          .channels = static_cast<int>(x_.width),
                                          .blocks = of.blocks,
                                          .sums_per_block = of.sums_per_block,
                                          .which = of.which,
                                          .accumulate = gradients && accumulate,
                                          .with_gamma = of.with_gamma});
      },
      gradients ? std::vector<std::string>{gamma_.name, beta_.name} : std::vector<std::string>{});
}

NormLayer::NormLayer(const ImageContext& context, const Parts& parts, Value& y)
    : ImageLayer(context),
      norm_(*parts.norm),
      other_norm_(parts.other_norm),
      x_(*parts.x),
      other_(parts.other),
      y_(y),
      relu_(parts.relu) {
  read(*parts.x);
  if (parts.other != nullptr) read(*parts.other);
  if (relu_) y.norm = this;
}

std::vector<const Value*> NormLayer::inputs() const {
  return adds() ? std::vector{&x_, other_} : std::vector{&x_};
}
std::vector<const NormStatistics*> NormLayer::statistics() const {
  return adds_norm() ? std::vector{&norm_, other_norm_} : std::vector{&norm_};
}

void NormLayer::forward(Emission& e) const {
  norm_.forward(e);
  if (adds_norm()) other_norm_->forward(e);
  const ValueChoice& choice = e.choices().values[y_];
  if (!choice.stored) return;
  ValueStorages& y = e[y_];
  y.data = e.buffer(y_.name, c_.bytes(y_));
  if (c_.training && relu_ && !choice.sums_come) y.kept = e.buffer(y_.name + " mask", c_.samples * y_.elements() / 8);
  apply(e, y_.name, y.data, y.kept);
}

void NormLayer::apply(Emission& e, const std::string& what, Storage to, Storage mask) const {
  const bool second = adds_norm();
  const Storage x = e[x_].data, other = adds() ? e[*other_].data : -1;
  const Tensor scale = norm_.scale(e), bias = norm_.bias(e), other_scale = second ? other_norm_->scale(e) : Tensor{},
               other_bias = second ? other_norm_->bias(e) : Tensor{};
  e.kernel(what, {{x}, {scale.storage}, {to, true}, {mask, true}, {other}, {other_scale.storage}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormApplyArguments{.x = e.at(x),
                                                 .other = e.at(other),
                                                 .scale = e.at<float>(scale),
                                                 .bias = e.at<float>(bias),
                                                 .other_scale = second ? e.at<float>(other_scale) : nullptr,
                                                 .other_bias = second ? e.at<float>(other_bias) : nullptr,
                                                 .y = e.at(to),
                                                 .mask = e.at<std::uint8_t>(mask),
                                                 .rows_per_group = norm_.rows_per_group(),
                                                 .groups = norm_.groups(),
                                                 .channels = static_cast<int>(x_.width),
                                                 .relu = relu_});
  });
}

// Computes sum(dr), sum(dr x) and, with a norm on the shortcut, sum(dr other).
Storage NormLayer::measure_gradient(Emission& e, Storage dy, int blocks) const {
  const std::string name = norm_.name() + " gradient's sums";
  const std::int64_t sums = adds_norm() ? 3 : 2;
  const Storage x = e[x_].data, other = adds_norm() ? e[*other_].data : -1, mask = e[y_].kept,
                partial = e.buffer(name, norm_.groups() * blocks * sums * norm_.row_bytes());
  e.kernel(name, {{dy}, {x}, {other}, {mask}, {partial, true}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormBackwardSumsArguments{.dy = e.at(dy),
                                                        .x = e.at(x),
                                                        .other = e.at(other),
                                                        .mask = e.at<std::uint8_t>(mask),
                                                        .partial = e.at<float>(partial),
                                                        .rows_per_group = norm_.rows_per_group(),
                                                        .groups = norm_.groups(),
                                                        .channels = static_cast<int>(x_.width),
                                                        .blocks = blocks});
  });
  return partial;
}

void NormLayer::backward(Emission& e) const {
  if (const NormPool* pooling = e.choices().values[y_].pooling) return pooling->backward(e);
  const ValueStorages& y = e[y_];
  const Storage dy = y.gradient, mask = y.kept;
  // When a data gradient has computed the sums, dy already includes the ReLU's derivative.
  const bool measured = y.sums >= 0;
  const int blocks = measured ? 1
                              : norm_blocks(c_.device->facts().size(), Kernel::norm_backward_sums, c_.type,
                                            norm_.rows_per_group(), norm_.groups(), static_cast<int>(x_.width));
  const Storage partial = measured ? y.sums : measure_gradient(e, dy, blocks);
  const int sums_per_block = adds_norm() ? 3 : 2;
  norm_.backward(e, partial, blocks, sums_per_block, 1);
  if (adds_norm()) other_norm_->backward(e, partial, blocks, sums_per_block, 2);

  const Storage x = e[x_].data, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
  const Storage second = adds_norm() ? e[*other_].data : -1;
  const Storage d_second = adds_norm() ? e.buffer(other_->name + " gradient", c_.bytes(x_)) : -1;
  // The shortcut's gradient is dr. Without a mask dr is dy.
  const Storage dr =
      adds() && !adds_norm() ? (mask >= 0 ? e.buffer(other_->name + " gradient", c_.bytes(x_)) : dy) : -1;
  const Storage dr_output = dr != dy ? dr : -1;
  const Tensor slopes[] = {norm_.slope(e, 0), norm_.slope(e, 1), norm_.slope(e, 2)};
  const auto other_slope = [&](int which) { return adds_norm() ? other_norm_->slope(e, which) : Tensor{}; };
  const Tensor other_slopes[] = {other_slope(0), other_slope(1), other_slope(2)};
  e.kernel(norm_.name() + " gradient",
           {{dy},
            {x},
            {second},
            {mask},
            {slopes[0].storage},
            {dx, true},
            {d_second, true},
            {dr_output, true},
            {other_slopes[0].storage}},
           [=, this, &e](bool) {
             const auto factor = [&](const Tensor& of) { return of.storage >= 0 ? e.at<float>(of) : nullptr; };
             return launch_of(c_.type, NormBackwardApplyArguments{.dy = e.at(dy),
                                                                  .x = e.at(x),
                                                                  .other = e.at(second),
                                                                  .mask = e.at<std::uint8_t>(mask),
                                                                  .a = factor(slopes[0]),
                                                                  .b = factor(slopes[1]),
                                                                  .c = factor(slopes[2]),
                                                                  .other_a = factor(other_slopes[0]),
                                                                  .other_b = factor(other_slopes[1]),
                                                                  .other_c = factor(other_slopes[2]),
                                                                  .dx = e.at(dx),
                                                                  .dr_output = e.at(dr_output),
                                                                  .d_other = e.at(d_second),
                                                                  .rows_per_group = norm_.rows_per_group(),
                                                                  .groups = norm_.groups(),
                                                                  .channels = static_cast<int>(x_.width)});
           });
  e.send_gradient(x_, dx);
  if (adds()) e.send_gradient(*other_, adds_norm() ? d_second : dr);
}

bool NormPool::possible() const {
  return x_.norm != nullptr && x_.readers == 1 && !x_.norm->adds() && node_.kernel <= widest_joined_window;
}

FusionSite NormPool::site() const {
  // A place takes one byte per element of y, and the ReLU's mask one bit per element of x. The sums of the forward pass
  // cost the same in both ways and are left out.
  const auto places = static_cast<double>(c_.samples * y_.elements()),
             mask = static_cast<double>(c_.samples * x_.elements()) / 8;
  const auto map = static_cast<double>(c_.bytes(x_)), pooled = static_cast<double>(c_.bytes(y_)) + places;
  FusionSite site{.name = x_.norm->norm().name() + " pooling"};
  site.ways.push_back({.name = "pooled on the way", .bytes = 4 * map + 3 * pooled});
  site.ways.push_back({.name = "separate", .bytes = 9 * map + 2 * pooled + 3 * mask});
  return site;
}

PoolWindow NormPool::window() const {
  return {.height = static_cast<int>(x_.shape.height),
          .width = static_cast<int>(x_.shape.width),
          .out_height = static_cast<int>(y_.shape.height),
          .out_width = static_cast<int>(y_.shape.width),
          .kernel = static_cast<int>(node_.kernel),
          .stride = static_cast<int>(node_.stride),
          .padding = static_cast<int>(node_.padding)};
}

void NormPool::forward(Emission& e) const {
  const NormStatistics& norm = x_.norm->norm();
  const Storage x = e[norm.x()].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
  if (c_.training) e[y_].kept = e.buffer(y_.name + " places", c_.samples * y_.elements());
  const Storage places = e[y_].kept;
  const Tensor scale = norm.scale(e), bias = norm.bias(e);
  const std::int64_t samples_per_group = c_.samples / norm.groups();
  e.kernel(y_.name, {{x}, {scale.storage}, {y, true}, {places, true}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormPoolArguments{.x = e.at(x),
                                                .scale = e.at<float>(scale),
                                                .bias = e.at<float>(bias),
                                                .y = e.at(y),
                                                .places = e.at<std::uint8_t>(places),
                                                .samples = c_.samples,
                                                .samples_per_group = samples_per_group,
                                                .channels = static_cast<int>(x_.width),
                                                .window = window()});
  });
}

void NormPool::backward(Emission& e) const {
  const NormStatistics& norm = x_.norm->norm();
  const auto channels = static_cast<int>(x_.width);
  const std::int64_t rows = norm.rows_per_group();
  const int groups = norm.groups();
  const int blocks = norm_blocks(c_.device->facts().size(), Kernel::norm_pool_backward_sums, c_.type,
                                 norm_pool_places(c_.type, window(), rows), groups, channels);
  const std::string sums_name = norm.name() + " gradient's sums";
  const Storage dy = e[y_].gradient, places = e[y_].kept, x = e[norm.x()].data,
                partial = e.buffer(sums_name, groups * blocks * 2 * norm.row_bytes());
  e.kernel(sums_name, {{dy}, {x}, {places}, {partial, true}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormPoolBackwardSumsArguments{.dy = e.at(dy),
                                                            .x = e.at(x),
                                                            .places = e.at<std::uint8_t>(places),
                                                            .partial = e.at<float>(partial),
                                                            .rows_per_group = rows,
                                                            .groups = groups,
                                                            .channels = channels,
                                                            .blocks = blocks,
                                                            .window = window()});
  });
  norm.backward(e, partial, blocks, 2, 1);
  const Tensor a = norm.slope(e, 0), b = norm.slope(e, 1), c = norm.slope(e, 2);
  const Storage dx = e.buffer(norm.x().name + " gradient", c_.bytes(norm.x()));
  e.kernel(norm.name() + " gradient", {{dy}, {x}, {places}, {a.storage}, {dx, true}}, [=, this, &e](bool) {
    return launch_of(c_.type, NormPoolBackwardApplyArguments{.dy = e.at(dy),
                                                             .x = e.at(x),
                                                             .places = e.at<std::uint8_t>(places),
                                                             .a = e.at<float>(a),
                                                             .b = e.at<float>(b),
                                                             .c = e.at<float>(c),
                                                             .dx = e.at(dx),
                                                             .rows_per_group = rows,
                                                             .groups = groups,
                                                             .channels = channels,
                                                             .window = window()});
  });
  e.send_gradient(norm.x(), dx);
}

}  // namespace ringtrain::cuda
