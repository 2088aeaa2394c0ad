#include "optim/batch_rules.h"

#include <cmath>
#include <numbers>

#include "config/rate_scaling.h"

namespace ringtrain {

double step_factor(double plain, double half_life, double samples) {
  return half_life > 0 ? std::exp2(-samples / half_life) : plain;
}

double step_share(double plain, double half_life, double samples) {
  return half_life > 0 ? -std::expm1(-std::numbers::ln2 * samples / half_life) : 1 - plain;
}

double half_life_of(double factor, double samples) {
  return -samples / std::log2(factor);
}

OptimizerConfig optimizer_of(const Experiment& e, const ScheduleContext& context) {
  OptimizerConfig optimizer = e.optimizer;
  if (e.learning_rate.scaling != "adam_sde") return optimizer;
  const double k = batch_ratio(e.learning_rate, context.global_batch);
  optimizer.beta1 = 1 - k * (1 - optimizer.beta1);
  optimizer.beta2 = 1 - k * (1 - optimizer.beta2);
  optimizer.epsilon /= std::sqrt(k);
  return optimizer;
}

double decay_factor(const Experiment& e, const ScheduleContext& context, double samples, double rate_factor) {
  if (e.optimizer.weight_decay_by != "sample") return 1;
  const std::int64_t base_batch = e.learning_rate.base_batch;
  const auto reference = static_cast<double>(base_batch > 0 ? base_batch : context.global_batch);
  return samples / reference * e.learning_rate.base / (peak_rate(e.learning_rate, context.global_batch) * rate_factor);
}

bool decouples_decay(const OptimizerConfig& optimizer) {
  return optimizer.kind == "adamw" || (optimizer.kind == "muon" && optimizer.other_kind == "adamw");
}

}  // namespace ringtrain
