#include "backend/cuda/image/norm_pool.h"

#include "backend/cuda/image/norm.h"
#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

bool NormPool::possible() const {
  return x_.norm != nullptr && x_.readers == 1 && !x_.norm->adds() && node_.kernel <= widest_joined_window;
}

FusionSite NormPool::site() const {
  // A place takes one byte per element of y, and the ReLU's mask one bit per element of x. The sums of the forward pass
  // cost the same in both ways and are left out.
  const auto places = static_cast<double>(c_.samples * y_.elements()),
             mask = static_cast<double>(c_.samples * x_.elements()) / 8;
  const auto map = static_cast<double>(c_.bytes(x_)), pooled = static_cast<double>(c_.bytes(y_)) + places;
  FusionSite site{.name = x_.norm->norm().name() + " pooling", .ways = {}};
  site.ways.push_back({.name = "pooled on the way", .operations = {}, .bytes = 4 * map + 3 * pooled, .trial = {}});
  site.ways.push_back({.name = "separate", .operations = {}, .bytes = 9 * map + 2 * pooled + 3 * mask, .trial = {}});
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
