#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"

namespace ringtrain {

namespace {

struct KnownOptimizer {
  std::string_view name;  // optimizer.kind
  OptimizerKind kind;
  std::vector<std::string> state;
};

const KnownOptimizer& known(const OptimizerConfig& config) {
  static const KnownOptimizer all[] = {
      {"sgd", OptimizerKind::sgd, {"momentum"}},
      {"lars", OptimizerKind::lars, {"momentum"}},
      {"adam", OptimizerKind::adam, {"exp_avg", "exp_avg_sq"}},
      {"adamw", OptimizerKind::adamw, {"exp_avg", "exp_avg_sq"}},
      {"lamb", OptimizerKind::lamb, {"exp_avg", "exp_avg_sq"}},
      {"rmsprop", OptimizerKind::rmsprop, {"square_avg"}},
      {"rmsprop_to_sgd", OptimizerKind::rmsprop_to_sgd, {"momentum", "square_avg"}},
  };
  static_assert(std::size(all) == optimizer_kinds);
  const auto* found = std::ranges::find(all, config.kind, &KnownOptimizer::name);
  if (found == std::end(all)) throw Error(cat("optimizer.kind '", config.kind, "' is not known"));
  return *found;
}

bool lists(const std::vector<std::string>& kinds, ParameterKind kind) {
  return std::ranges::count(kinds, parameter_kind_name(kind)) > 0;
}

// MLPerf's LARS leaves what has no trust ratio without decay, too.
bool decays(const OptimizerConfig& config, ParameterKind kind) {
  const bool left_alone = config.kind == "lars" && config.lars_form == "mlperf" && lists(config.no_trust, kind);
  return config.weight_decay > 0 && !lists(config.no_decay, kind) && !left_alone;
}

bool has_ratio(const OptimizerConfig& config, ParameterKind kind) {
  if (config.kind == "lars") return !lists(config.no_trust, kind);
  return config.kind == "lamb" && (config.trust_undecayed || decays(config, kind));
}

}  // namespace

double sgd_share(double e, double center, double length) {
  if (e < center) return std::exp(2 * (e - center) / length) / 2;
  return std::min(1.0, 0.5 + (e - center) / length);
}

std::vector<std::string> Optimizer::state_names(const OptimizerConfig& config) {
  return known(config).state;
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend)
    : config_(config), backend_(backend), trained_(parameters.trained()) {
  for (const Parameter& p : parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    ranges_.push_back({.begin = p.offset,
                       .end = p.offset + p.count,
                       .weight_decay = decays(config, p.kind) ? static_cast<float>(config.weight_decay) : 0.0f,
                       .kind = p.kind,
                       .has_trust_ratio = has_ratio(config, p.kind)});
  }
  std::vector<ElementRange> elements;
  for (const UpdateRange& range : ranges_) elements.push_back({range.begin, range.end});
  gradient_norms_ = backend.make_range_norms(elements);
  for (std::size_t i = 0; i < state_names(config).size(); ++i)
    state_.push_back(backend.make_vector(parameters.trained()));
}

void Optimizer::start(Vector& weights, const Vector& gradients, const UpdateStep& step, float loss_scale,
                      float norm_momentum, Program* program) {
  started_rate_ = step.rate;
  UpdateRule rule;
  rule.kind = known(config_).kind;
  rule.learning_rate = static_cast<float>(step.rate);
  rule.clip_value = static_cast<float>(config_.clip_value);
  rule.momentum = static_cast<float>(config_.momentum);
  rule.rate_inside = config_.rate_in_momentum || rule.kind == OptimizerKind::lars;
  if (config_.momentum_correction && applied_.rate > 0) rule.correction = static_cast<float>(step.rate / applied_.rate);
  rule.nesterov = config_.nesterov;
  rule.beta1 = static_cast<float>(config_.beta1);
  rule.beta2 = static_cast<float>(config_.beta2);
  rule.epsilon = static_cast<float>(config_.epsilon);
  const auto t = static_cast<double>(applied_.updates + 1);
  rule.bias_correction1 = static_cast<float>(1 - std::pow(config_.beta1, t));
  rule.bias_correction2 = static_cast<float>(std::sqrt(1 - std::pow(config_.beta2, t)));
  rule.trust_coefficient = static_cast<float>(config_.trust_coefficient);
  rule.mlperf = config_.lars_form == "mlperf";
  rule.sgd_share = static_cast<float>(sgd_share(step.epochs, config_.transition_center, config_.transition_length));
  backend_.start_update({.rule = rule,
                         .ranges = ranges_,
                         .gradient_norms = gradient_norms_.get(),
                         .clip_norm = config_.clip_norm,
                         .loss_scale = loss_scale,
                         .trained = trained_,
                         .norm_momentum = norm_momentum,
                         .program = program,
                         .reports_trust = step.reports_trust},
                        weights, gradients, state_);
}

UpdateResult Optimizer::finish() {
  const UpdateResult result = backend_.finish_update();
  if (result.applied) applied_ = {applied_.updates + 1, started_rate_};
  return result;
}

}  // namespace ringtrain
