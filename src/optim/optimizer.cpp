#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

namespace ringtrain {

std::vector<std::string> Optimizer::state_names(const OptimizerConfig& config) {
  if (config.kind == "sgd") return {"momentum"};
  return {"exp_avg", "exp_avg_sq"};
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend)
    : config_(config), backend_(backend), trained_(parameters.trained()) {
  for (const Parameter& p : parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    const bool decays = std::ranges::count(config.no_decay, parameter_kind_name(p.kind)) == 0;
    ranges_.push_back({.begin = p.offset,
                       .end = p.offset + p.count,
                       .weight_decay = decays ? static_cast<float>(config.weight_decay) : 0.0f,
                       .kind = p.kind});
  }
  std::vector<ElementRange> elements;
  for (const UpdateRange& range : ranges_) elements.push_back({range.begin, range.end});
  gradient_norms_ = backend.make_range_norms(elements);
  for (std::size_t i = 0; i < state_names(config).size(); ++i)
    state_.push_back(backend.make_vector(parameters.trained()));
}

void Optimizer::start(Vector& weights, const Vector& gradients, double rate, float loss_scale, float norm_momentum,
                      Program* program) {
  started_rate_ = rate;
  UpdateRule rule;
  rule.kind = config_.kind == "sgd"    ? OptimizerKind::sgd
              : config_.kind == "adam" ? OptimizerKind::adam
                                       : OptimizerKind::adamw;
  rule.learning_rate = static_cast<float>(rate);
  rule.momentum = static_cast<float>(config_.momentum);
  rule.rate_inside = config_.rate_in_momentum;
  if (config_.momentum_correction && applied_.rate > 0) rule.correction = static_cast<float>(rate / applied_.rate);
  rule.nesterov = config_.nesterov;
  rule.beta1 = static_cast<float>(config_.beta1);
  rule.beta2 = static_cast<float>(config_.beta2);
  rule.epsilon = static_cast<float>(config_.epsilon);
  const auto t = static_cast<double>(applied_.updates + 1);
  rule.bias_correction1 = static_cast<float>(1 - std::pow(config_.beta1, t));
  rule.bias_correction2 = static_cast<float>(std::sqrt(1 - std::pow(config_.beta2, t)));
  backend_.start_update({.rule = rule,
                         .ranges = ranges_,
                         .gradient_norms = gradient_norms_.get(),
                         .clip_norm = config_.clip_norm,
                         .loss_scale = loss_scale,
                         .trained = trained_,
                         .norm_momentum = norm_momentum,
                         .program = program},
                        weights, gradients, state_);
}

UpdateResult Optimizer::finish() {
  const UpdateResult result = backend_.finish_update();
  if (result.applied) applied_ = {applied_.updates + 1, started_rate_};
  return result;
}

}  // namespace ringtrain
