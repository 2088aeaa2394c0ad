#include "optim/noise_scale.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
namespace {

// Returns the 97.5 % point of Student's t with `freedom` degrees of freedom. The error is at most 1 % from 2 degrees on
// (Abramowitz and Stegun 26.7.5).
double student_t(double freedom) {
  constexpr double z = 1.959963984540054, z2 = z * z;
  const double n = 1 / freedom;
  const double g1 = (z2 + 1) / 4, g2 = ((5 * z2 + 16) * z2 + 3) / 96;
  const double g3 = (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  const double g4 = ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
  return z * (1 + n * (g1 + n * (g2 + n * (g3 + n * g4))));
}

// Fieller's interval (Fieller 1954) contains the ratios x with (trace - x gradient)^2 <= t^2 Var(trace - x gradient).
// These are the solutions of a x^2 - 2 b x + c <= 0.
void set_interval(NoiseRatio& ratio, double a, double b, double c, bool trace_is_positive) {
  const double root = std::sqrt(std::max(0.0, b * b - a * c));
  if (a > 0) {
    const double q = b + std::copysign(root, b);  // without cancellation
    ratio.low = std::min(c / q, q / a);
    ratio.high = std::max(c / q, q / a);
  } else if (c > 0 && trace_is_positive) {  // the gradient may be 0, but the trace cannot be 0
    ratio.low = c / (b + root);
  }
}

}  // namespace

NoiseEstimate estimate_noise(const NoiseMeasurement& m) {
  const auto big = static_cast<double>(m.batch), small = m.small_batch;
  return {.trace = (m.small_squared_norm - m.squared_norm) / (1 / small - 1 / big),
          .gradient = (big * m.squared_norm - small * m.small_squared_norm) / (big - small)};
}

double mean_small_batch(std::int64_t batch, std::int64_t small_batch) {
  const auto own = static_cast<double>(small_batch), rest = static_cast<double>(batch % small_batch);
  return (static_cast<double>(batch / small_batch) * own * own + rest * rest) / static_cast<double>(batch);
}

void NoiseScale::add(const Step& step) {
  const auto now = static_cast<double>(step.samples), own = static_cast<double>(step.batch);
  const double decay = std::exp2((state_[samples] - now) / half_life_);
  const auto [s, g] = step.estimate;
  const auto count = [&](Place place, double value) { state_[place] = decay * state_[place] + own * value; };
  const bool is_first = empty();
  count(weight, 1);
  state_[squared_weight] = decay * decay * state_[squared_weight] + own * own;
  count(trace, s);
  count(gradient, g);
  count(trace_trace, s * s);
  count(trace_gradient, s * g);
  count(gradient_gradient, g * g);
  count(targets, step.targets_per_sample);
  state_[samples] = now;

  const auto small = static_cast<double>(step.small_batch);
  const bool other_batch = !step.is_rest && (state_[batch] != own || state_[small_batch] != small);
  const bool other_rate =
      std::abs(step.learning_rate - state_[rate]) > 0.1 * std::max(step.learning_rate, state_[rate]);
  change_ = is_first || !(other_batch || other_rate) ? ""
            : !other_rate                            ? "batch"
            : !other_batch                           ? "rate"
                                                     : "batch and rate";
  if (!step.is_rest) {
    state_[batch] = own;
    state_[small_batch] = small;
  }
  state_[rate] = step.learning_rate;
}

// The variance of a weighted mean of n equally precise values is their variance / n, with n = (sum of weights)^2 / (sum
// of squared weights). If the values drift within the half-life, the drift counts as scatter. The interval is then too
// wide, but never too narrow.
NoiseRatio NoiseScale::ratio() const {
  const auto [s, g] = mean();
  NoiseRatio ratio{.value = s / g, .low = std::nullopt, .high = std::nullopt};
  const double freedom = state_[weight] * state_[weight] / state_[squared_weight] - 1;
  if (freedom <= 2) return ratio;
  const double t = student_t(freedom), factor = t * t / freedom;
  const double a = g * g - factor * std::max(0.0, average(gradient_gradient) - g * g);
  const double b = s * g - factor * (average(trace_gradient) - s * g);
  const double c = s * s - factor * std::max(0.0, average(trace_trace) - s * s);
  set_interval(ratio, a, b, c, s > 0);
  return ratio;
}

double gain(double noise_scale, double batch, double times) {
  return times * (noise_scale + batch) / (noise_scale + times * batch);
}

NoiseEstimate of_training_set(const NoiseEstimate& population, std::int64_t samples) {
  return {.trace = population.trace, .gradient = population.gradient + population.trace / static_cast<double>(samples)};
}

bool NoiseFollower::may_double(std::int64_t batch, std::int64_t samples) const {
  return multiple_ > 0 && 2 * batch <= largest_ && small_since_ != not_small && samples - small_since_ >= patience_;
}

std::int64_t NoiseFollower::next(std::int64_t batch, const NoiseRatio& scale, std::int64_t samples) {
  const bool is_small = scale.low && *scale.low * multiple_ > static_cast<double>(batch);
  if (is_small && may_double(batch, samples)) {
    small_since_ = not_small;
    return 2 * batch;
  }
  if (!is_small)
    small_since_ = not_small;
  else if (small_since_ == not_small)
    small_since_ = samples;
  return batch;
}

NoiseGroups::NoiseGroups(const ParameterTable& parameters, const std::string& by, double half_life) {
  for (const Parameter& p : parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    const std::string name = by == "kind" ? parameter_kind_name(p.kind) : p.name;
    const auto found = std::find(names_.begin(), names_.end(), name);
    group_of_.push_back(static_cast<std::size_t>(found - names_.begin()));
    if (found == names_.end()) names_.push_back(name);
  }
  scales_.assign(names_.size(), NoiseScale(half_life));
}

std::vector<double> NoiseGroups::by_group(std::span<const double> by_tensor) const {
  std::vector<double> sums(size(), 0.0);
  for (std::size_t i = 0; i < group_of_.size(); ++i) sums[group_of_[i]] += by_tensor[i];
  return sums;
}

void NoiseGroups::add(const NoiseScale::Step& whole, double small_batch, std::span<const double> squared_norms,
                      std::span<const double> small_squared_norms) {
  for (std::size_t i = 0; i < size(); ++i) {
    NoiseScale::Step own = whole;
    own.estimate = estimate_noise({.batch = whole.batch,
                                   .small_batch = small_batch,
                                   .squared_norm = squared_norms[i],
                                   .small_squared_norm = small_squared_norms[i]});
    scales_[i].add(own);
  }
}

namespace {

std::string number(double value) {
  return printed("%.4g", value);
}

std::string rounded(double samples) {
  return std::abs(samples) < 1e3 || !(std::abs(samples) < 1e15) ? number(samples)
                                                                : with_thousands(std::llround(samples));
}

std::string interval(const NoiseRatio& scale) {
  if (!scale.low && !scale.high) return "; its 95 % interval is unbounded";
  const std::string low = scale.low ? rounded(*scale.low) : "any",
                    high = scale.high ? rounded(*scale.high) : "unbounded";
  return cat("; 95 % from ", low, " to ", high);
}

}  // namespace

double NoiseSummary::scale_of_training_set() const {
  const NoiseEstimate own = of_training_set(mean, training_samples);
  return own.trace / own.gradient;
}

std::vector<PredictedBatch> predicted_batches(const NoiseSummary& s) {
  std::vector<PredictedBatch> all;
  if (!(s.scale.value > 0) || !std::isfinite(s.scale.value)) return all;
  for (int power = -2; power <= 6; ++power) {
    const double times = std::exp2(power), batch = times * static_cast<double>(s.batch);
    if (batch != std::floor(batch)) continue;
    const double steps = gain(s.scale.value, static_cast<double>(s.batch), times);
    all.push_back({std::llround(batch), steps, steps / times});
  }
  return all;
}

std::string describe(const NoiseSummary& s) {
  Table t;
  t.section("gradient noise scale at the end of the run");
  t.row("samples", cat(rounded(s.scale.value), interval(s.scale)));
  if (s.characters_per_sample)
    t.row("characters", cat(rounded(s.scale.value * *s.characters_per_sample), " (", number(*s.characters_per_sample),
                            " count in a sample)"));
  t.row("tr Sigma, |G|^2", cat(number(s.mean.trace), ", ", number(s.mean.gradient)));
  t.row("training set", cat(rounded(s.scale_of_training_set()), " samples, |G|^2 ",
                            number(of_training_set(s.mean, s.training_samples).gradient),
                            " (of the mean gradient of all ", with_thousands(s.training_samples), ")"));
  const std::vector<PredictedBatch> batches = predicted_batches(s);
  if (batches.empty())
    t.row("other batches", "no prediction: the noise is too large to see the gradient; measure more steps");
  for (const PredictedBatch& b : batches)
    t.row(cat("batch ", with_thousands(b.batch)), cat("one step is worth ", number(b.gain), " steps of this run, and ",
                                                      number(100 * b.efficiency), " % as much per sample"));
  if (!s.groups.empty()) t.section("noise scale of groups, in samples");
  for (const NoiseOfGroup& g : s.groups)
    t.row(g.name, cat(rounded(g.scale.value), interval(g.scale), "; tr Sigma ", number(g.mean.trace), ", |G|^2 ",
                      number(g.mean.gradient)));
  return t.str();
}

}  // namespace ringtrain
