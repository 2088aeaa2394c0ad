#include "run/noise_summary.h"

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/table.h"

namespace ringtrain {
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
