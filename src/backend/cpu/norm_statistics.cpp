#include "backend/cpu/norm_statistics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ringtrain::cpu {

namespace {
constexpr auto double_bytes = static_cast<std::int64_t>(sizeof(double));

// Combines the means, and the sums of squared differences from the mean, of `count` parts with equally many values
// (Chan, Golub and LeVeque 1983).
template <class OfPart>
auto combined(std::int64_t begin, std::int64_t end, std::int64_t count, std::int64_t values, const OfPart& of_part) {
  decltype(of_part(begin)) all;
  for (std::int64_t i = begin; i < end; ++i) all.mean += of_part(i).mean;
  all.mean /= static_cast<double>(count);
  for (std::int64_t i = begin; i < end; ++i) {
    const auto [mean, squares] = of_part(i);
    const double d = mean - all.mean;
    all.squares += squares + static_cast<double>(values) * d * d;
  }
  return all;
}

}  // namespace

NormStatistics::NormStatistics(const ImageContext& context, const Norm& node, const Feature& x)
    : context_(context),
      x_(&x),
      by_sample_(node.by_sample()),
      together_(node.channels_together()),
      epsilon_(node.epsilon),
      gamma_(context.parameters->find(node.weight)),
      beta_(context.parameters->find(node.bias)),
      running_mean_(by_sample_ ? Parameter{} : context.parameters->find(node.running_mean)),
      running_var_(by_sample_ ? Parameter{} : context.parameters->find(node.running_var)),
      name_(node.weight.substr(0, node.weight.rfind('.'))) {
  Schedule& s = *context_.schedule;
  const std::int64_t channels = context_.padded_channels(x);
  affine_weights_ = s.lasting(name_ + " gamma and beta", 2 * channels * float_bytes);
  const std::int64_t bytes = groups() * 3 * channels * float_bytes;
  if (!measures()) {
    coefficients_ = s.lasting(name_ + " coefficients", bytes);
    return;
  }
  coefficients_ = s.fixed(name_ + " coefficients", bytes);
  moments_ = s.fixed(name_ + " moments", s.samples() * channels * 2 * double_bytes);
  if (context_.training) slopes_ = s.fixed(name_ + " gradient coefficients", groups() * 2 * channels * float_bytes);
  if (by_sample_) return;
  const std::int64_t statistics = 2 * channels * float_bytes;
  statistics_ =
      context_.training ? s.fixed(name_ + " statistics", statistics) : s.lasting(name_ + " statistics", statistics);
  if (span() > 1) parts_ = s.fixed(name_ + " sums of the group's ranks", span() * 2 * channels * double_bytes);
}

Affine NormStatistics::affine(std::int64_t image, std::int64_t block) const {
  const std::int64_t group = group_of(image), at = block * context_.lanes();
  const float* beta = context_.schedule->at<float>(affine_weights_) + context_.padded_channels(*x_);
  return {coefficient(group, 0) + at, coefficient(group, 1) + at, beta + at};
}

std::vector<std::string> NormStatistics::parameters() const {
  if (by_sample_) return {gamma_.name, beta_.name};
  return {gamma_.name, beta_.name, running_mean_.name, running_var_.name};
}

template <class T>
void NormStatistics::measure(const Slice& slice) const {
  const Schedule& s = *context_.schedule;
  const std::int64_t blocks = context_.blocks(*x_), lanes = context_.lanes(), pixels = x_->pixels();
  for_each_unit(s.threads(), slice, blocks, [&](std::int64_t image, std::int64_t block) {
    context_.norm->moments(pixels, s.at<T>(x_->forward, slice, image) + block * pixels * lanes,
                           s.at<double>(moments_) + (image * blocks + block) * 2 * lanes);
  });
}

void NormStatistics::forward_steps() {
  if (!measures()) return;
  Schedule& s = *context_.schedule;
  s.add({.name = name_ + " moments", .uses = {x_->forward, moments_}, .once = true},
        [this](const Slice& slice) { context_.bf16 ? measure<BFloat16>(slice) : measure<float>(slice); });
  s.add({.name = name_ + " statistics",
         .whole = true,
         .uses = {moments_, coefficients_, statistics_, parts_},
         .once = true,
         .waits = true},
        [this](const Slice&) { finish_forward(); });
}

template <class Own>
void NormStatistics::gather_parts(const Own& own) {
  NormTeam* team = context_.pass->context.norm_team;
  if (team == nullptr || team->size() != span())
    throw Error(cat("a pass of ", context_.schedule->samples(), " images needs the ", span(),
                    " ranks of its batch-norm group"));
  const std::int64_t channels = context_.padded_channels(*x_);
#pragma omp parallel for num_threads(context_.schedule->threads()) schedule(static)
  for (std::int64_t c = 0; c < channels; ++c) {
    const auto [first, second] = own(c);
    part(team->rank(), 0)[c] = first;
    part(team->rank(), 1)[c] = second;
  }
  team->gather({part(0, 0), static_cast<std::size_t>(span() * 2 * channels)}, context_.pass->poll);
}

// Combines the images' moments.
NormStatistics::Moments NormStatistics::own_moments(std::int64_t group, std::int64_t channel) const {
  const std::int64_t lanes = context_.lanes(), blocks = context_.blocks(*x_), begin = group * this->group();
  const auto* moments = context_.schedule->at<double>(moments_);
  return combined(begin, begin + this->group(), this->group(), x_->pixels(), [&](std::int64_t image) {
    const double* unit = moments + (image * blocks + channel / lanes) * 2 * lanes + channel % lanes;
    return Moments{unit[0], unit[lanes]};
  });
}

// Combines the moments of all ranks of the group.
NormStatistics::Moments NormStatistics::joined_moments(std::int64_t group, std::int64_t channel) const {
  if (span() == 1) return own_moments(group, channel);
  return combined(0, span(), span(), x_->pixels() * this->group(), [&](std::int64_t rank) {
    return Moments{part(rank, 0)[channel], part(rank, 1)[channel]};
  });
}

// Combines the moments of the channels of a group.
NormStatistics::Moments NormStatistics::moments(std::int64_t group, std::int64_t channel_group) const {
  const std::int64_t begin = channel_group * together_;
  if (together_ == 1) return joined_moments(group, begin);
  return combined(begin, channels_end(channel_group), together_, x_->pixels() * this->group(),
                  [&](std::int64_t channel) { return joined_moments(group, channel); });
}

void NormStatistics::finish_forward() {
  const Schedule& s = *context_.schedule;
  const std::int64_t channels = context_.padded_channels(*x_);
  const double count = values();
  const auto* gamma = s.at<float>(affine_weights_);
  auto* statistics = by_sample_ ? nullptr : s.at<float>(statistics_);
  if (span() > 1) gather_parts([this](std::int64_t c) { return own_moments(0, c); });
#pragma omp parallel for num_threads(s.threads()) schedule(static)
  for (std::int64_t q = 0; q < channel_groups(); ++q) {
    double mean_sum = 0, variance_sum = 0;
    for (std::int64_t g = 0; g < groups(); ++g) {
      const auto [mean, squares] = moments(g, q);
      const double inverse = 1 / std::sqrt(squares / count + epsilon_);
      for (std::int64_t c = q * together_; c < channels_end(q); ++c) {
        coefficient(g, 0)[c] = static_cast<float>(mean);
        coefficient(g, 1)[c] = static_cast<float>(static_cast<double>(gamma[c]) * inverse);
        coefficient(g, 2)[c] = static_cast<float>(inverse);
      }
      mean_sum += mean;
      variance_sum += context_.training ? squares / std::max(count - 1, 1.0) : mean * mean + squares / count;
    }
    if (by_sample_) continue;
    statistics[q] = static_cast<float>(mean_sum);
    statistics[channels + q] = static_cast<float>(variance_sum);
  }
}

NormStatistics::Sums NormStatistics::own_sums(const double* sums, int product, std::int64_t group,
                                              std::int64_t channel) const {
  const std::int64_t lanes = context_.lanes(), blocks = context_.blocks(*x_);
  Sums own;
  for (std::int64_t i = group * this->group(); i < (group + 1) * this->group(); ++i) {
    const double* unit = sums + (i * blocks + channel / lanes) * 3 * lanes + channel % lanes;
    own.d += unit[0];
    own.dx += unit[product * lanes];
  }
  return own;
}

NormStatistics::Sums NormStatistics::joined_sums(const Sums& own, std::int64_t channel) const {
  if (span() == 1) return own;
  Sums all;
  for (std::int64_t r = 0; r < span(); ++r) {
    all.d += part(r, 0)[channel];
    all.dx += part(r, 1)[channel];
  }
  return all;
}

// With xhat = (x - mean) / deviation and n values in the group:
//   dx = 1 / deviation (gamma dz - sum(gamma dz) / n - xhat sum(gamma dz xhat) / n)
// The sums are over the whole group. In batch norm all values of a group have the same gamma, so it stays outside of
// the sums. The gradients of gamma and beta are sums over this rank's samples only. The all-reduce of the gradients
// adds the sums of the other ranks.
void NormStatistics::finish_backward(const double* sums, int product) {
  const Schedule& s = *context_.schedule;
  const Pass& pass = *context_.pass;
  const std::int64_t channels = context_.padded_channels(*x_);
  const double count = values();
  const auto* gamma = s.at<float>(affine_weights_);
  const auto* statistics = by_sample_ ? nullptr : s.at<float>(statistics_);
  auto* slopes = s.at<float>(slopes_);
  if (span() > 1) gather_parts([&](std::int64_t c) { return own_sums(sums, product, 0, c); });
#pragma omp parallel for num_threads(s.threads()) schedule(static)
  for (std::int64_t q = 0; q < channel_groups(); ++q) {
    const std::int64_t begin = q * together_, end = channels_end(q);
    std::vector<Sums> gradients(static_cast<std::size_t>(together_));  // d: of beta; dx: of gamma
    for (std::int64_t g = 0; g < groups(); ++g) {
      const auto inverse = static_cast<double>(coefficient(g, 2)[begin]);
      Sums all;
      for (std::int64_t c = begin; c < end; ++c) {
        const Sums own = own_sums(sums, product, g, c), joined = joined_sums(own, c);
        const double weight = by_sample_ ? static_cast<double>(gamma[c]) : 1;
        all.d += weight * joined.d;
        all.dx += weight * joined.dx;
        Sums& gradient = gradients[static_cast<std::size_t>(c - begin)];
        gradient.d += own.d;
        gradient.dx += own.dx * inverse;
      }
      const double scale = by_sample_ ? inverse : static_cast<double>(coefficient(g, 1)[begin]);
      const auto slope = static_cast<float>(-scale * inverse * inverse * all.dx / count);
      const auto constant = static_cast<float>(-scale * all.d / count);
      std::fill(slopes + g * 2 * channels + begin, slopes + g * 2 * channels + end, slope);
      std::fill(slopes + (g * 2 + 1) * channels + begin, slopes + (g * 2 + 1) * channels + end, constant);
    }
    for (std::int64_t c = begin; c < std::min(end, gamma_.count); ++c) {
      const auto store = [&](const Parameter& p, double value) {
        float& to = pass.gradients[p.offset + c];
        to = (pass.accumulate ? to : 0.0f) + static_cast<float>(value);
      };
      store(gamma_, gradients[static_cast<std::size_t>(c - begin)].dx);
      store(beta_, gradients[static_cast<std::size_t>(c - begin)].d);
      if (by_sample_) continue;
      const auto share = static_cast<double>(pass.context.statistic_scale);
      store(running_mean_, share * static_cast<double>(statistics[c]));
      store(running_var_, share * static_cast<double>(statistics[channels + c]));
    }
  }
}

void NormStatistics::copy_statistics(std::span<float> to, std::int64_t begin) const {
  if (by_sample_) return;
  const auto* from = context_.schedule->at<float>(statistics_);
  std::copy_n(from, running_mean_.count, to.begin() + running_mean_.offset - begin);
  std::copy_n(from + context_.padded_channels(*x_), running_var_.count, to.begin() + running_var_.offset - begin);
}

void NormStatistics::set_weights(const float* flat) {
  const std::int64_t channels = context_.padded_channels(*x_);
  auto* own = context_.schedule->at<float>(affine_weights_);
  std::fill(own, own + 2 * channels, 0.0f);
  std::copy_n(flat + gamma_.offset, gamma_.count, own);
  std::copy_n(flat + beta_.offset, beta_.count, own + channels);
  if (measures()) return;
  float *mean = coefficient(0, 0), *scale = coefficient(0, 1);
  std::fill(mean, mean + 3 * channels, 0.0f);
  for (std::int64_t c = 0; c < gamma_.count; ++c) {
    const auto variance = static_cast<double>(flat[running_var_.offset + c]);
    mean[c] = flat[running_mean_.offset + c];
    scale[c] = static_cast<float>(static_cast<double>(own[c]) / std::sqrt(variance + epsilon_));
  }
}

}  // namespace ringtrain::cpu
