#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/rounding.h"
#include "optim/schedule.h"

namespace ringtrain {
namespace {

struct KnownOptimizer {
  std::string_view name;  // value of optimizer.kind
  bool schedule_free;
  OptimizerKind kind;
  std::vector<std::string> state;
};

const KnownOptimizer& known(const OptimizerConfig& config) {
  static const KnownOptimizer all[] = {
      {"sgd", false, OptimizerKind::sgd, {"momentum"}},
      {"lars", false, OptimizerKind::lars, {"momentum"}},
      {"adam", false, OptimizerKind::adam, {"exp_avg", "exp_avg_sq"}},
      {"adamw", false, OptimizerKind::adamw, {"exp_avg", "exp_avg_sq"}},
      {"lamb", false, OptimizerKind::lamb, {"exp_avg", "exp_avg_sq"}},
      {"rmsprop", false, OptimizerKind::rmsprop, {"square_avg"}},
      {"rmsprop_to_sgd", false, OptimizerKind::rmsprop_to_sgd, {"momentum", "square_avg"}},
      {"sgd", true, OptimizerKind::schedule_free_sgd, {"z"}},
      {"adamw", true, OptimizerKind::schedule_free_adamw, {"z", "exp_avg_sq"}},
      {"muon", false, OptimizerKind::muon, {}},
  };
  static_assert(std::size(all) == optimizer_kinds);
  const auto* found = std::ranges::find_if(all, [&](const KnownOptimizer& one) {
    return one.name == config.kind && one.schedule_free == config.schedule_free;
  });
  if (found == std::end(all))
    throw Error(
        cat("optimizer.kind '", config.kind, "' is not known", config.schedule_free ? " as schedule-free" : ""));
  return *found;
}

bool lists(const std::vector<std::string>& kinds, ParameterKind kind) {
  return std::ranges::count(kinds, parameter_kind_name(kind)) > 0;
}

// In MLPerf's LARS, tensors without a trust ratio have no weight decay either.
bool decays(const OptimizerConfig& config, ParameterKind kind) {
  const bool left_alone = config.kind == "lars" && config.lars_form == "mlperf" && lists(config.no_trust, kind);
  return config.weight_decay > 0 && !lists(config.no_decay, kind) && !left_alone;
}

bool has_ratio(const OptimizerConfig& config, ParameterKind kind) {
  if (config.kind == "lars") return !lists(config.no_trust, kind);
  return config.kind == "lamb" && (config.trust_undecayed || decays(config, kind));
}

// Returns the configuration of the optimizer for the tensors that are not matrices of Muon.
OptimizerConfig other_than_muon(OptimizerConfig config) {
  if (config.kind == "muon") config.kind = config.other_kind;
  return config;
}

// Returns the value of beta in the schedule-free paper.
double schedule_free_momentum(const OptimizerConfig& config) {
  return config.kind == "sgd" ? config.momentum : config.beta1;
}

constexpr std::int64_t piece_elements = 1 << 20;  // number of elements of a vector that the host holds at a time

std::vector<ElementRange> parts_within(const std::vector<ElementRange>& own, std::int64_t begin, std::int64_t end) {
  std::vector<ElementRange> parts;
  for (const ElementRange& range : own)
    if (range.begin < end && begin < range.end)
      parts.push_back({std::max(begin, range.begin), std::min(end, range.end)});
  return parts;
}

std::vector<int> owners_of(const std::vector<MatrixRange>& matrices, int ranks) {
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return matrices[i].cost(); });
  std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
  std::vector<int> owners(matrices.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += matrices[i].cost();
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

// Returns the factor of a matrix's learning rate (optimizer.muon_rate).
double muon_rate_factor(const std::string& form, const MatrixRange& m) {
  const auto rows = static_cast<double>(m.rows), columns = static_cast<double>(m.columns);
  return form == "original" ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
}

}  // namespace

bool is_muons(const Parameter& p) {
  return p.kind == ParameterKind::weight && !p.is_outer && p.shape.size() >= 2;
}

std::vector<MatrixRange> MuonLayout::of(int rank) const {
  std::vector<MatrixRange> mine;
  for (std::size_t i = 0; i < matrices.size(); ++i)
    if (owners[i] == rank) mine.push_back(matrices[i]);
  return mine;
}

MuonLayout muon_layout(const ParameterTable& parameters, int ranks) {
  MuonLayout layout;
  for (const Parameter& p : parameters.all())
    if (is_muons(p)) layout.matrices.push_back({0, p.shape[0], p.count / p.shape[0]});
  layout.owners = owners_of(layout.matrices, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = layout.size;
    for (std::size_t i = 0; i < layout.matrices.size(); ++i) {
      if (layout.owners[i] != rank) continue;
      layout.matrices[i].begin = layout.size;
      layout.size += round_up(layout.matrices[i].count(), tensor_alignment);
    }
    layout.shares.push_back({begin, layout.size});
  }
  return layout;
}

double sgd_share(double e, double center, double length) {
  if (e < center) return std::exp(2 * (e - center) / length) / 2;
  return std::min(1.0, 0.5 + (e - center) / length);
}

std::vector<std::string> Optimizer::state_names(const OptimizerConfig& config, const AverageConfig& average) {
  std::vector<std::string> names = known(other_than_muon(config)).state;
  if (average.half_life > 0) names.emplace_back("average");
  return names;
}

std::vector<std::string> Optimizer::state_names(const OptimizerConfig& config, const Parameter& parameter,
                                                const AverageConfig& average) {
  std::vector<std::string> names = state_names(config);
  if (config.kind == "muon" && is_muons(parameter)) {
    std::ranges::fill(names, "");
    names[0] = "momentum";
  }
  if (average.half_life > 0) names.emplace_back("average");
  return names;
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend,
                     UpdateRanks ranks, UpdateShare share, const AverageConfig& average)
    : config_(config),
      mean_(average),
      backend_(backend),
      share_(std::move(share)),
      trained_(parameters.trained()),
      ranks_(std::move(ranks)) {
  make_ranges(parameters);
  const std::int64_t elements = share_.whole_state ? trained_ : state_elements(parameters, share_.own);
  std::vector<ElementRange> parts;
  for (const UpdateRange& part : parts_) parts.push_back({part.begin, part.end});
  if (!parts.empty()) gradient_norms_ = backend.make_range_norms(parts);
  for (std::size_t i = 0; i < state_names(config, average).size(); ++i) state_.push_back(backend.make_vector(elements));
  if (averages(config, average)) average_ = backend.make_vector(parameters.size());
  if (config.kind == "muon") make_muon(parameters);
}

std::int64_t Optimizer::state_elements(const ParameterTable& parameters,
                                       const std::optional<std::vector<ElementRange>>& own) {
  if (!own) return parameters.trained();
  std::int64_t elements = 0;
  for (const Parameter& p : parameters.all())
    if (p.kind != ParameterKind::statistic)
      for (const ElementRange& range : parts_within(*own, p.offset, p.offset + p.count))
        elements += range.end - range.begin;
  return elements;
}

// If a rank has only some of the elements, a tensor's range is cut into the parts of this rank. The states of the parts
// are next to each other.
void Optimizer::make_ranges(const ParameterTable& parameters) {
  std::int64_t state = 0;
  for (const Parameter& p : parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    const std::int64_t end = p.offset + p.count;
    const UpdateRange& tensor = tensors_.emplace_back(
        UpdateRange{.begin = p.offset,
                    .end = end,
                    .weight_decay = decays(config_, p.kind) ? static_cast<float>(config_.weight_decay) : 0.0f,
                    .kind = p.kind,
                    .has_trust_ratio = has_ratio(config_, p.kind)});
    const std::vector<ElementRange> parts =
        share_.own ? parts_within(*share_.own, p.offset, end) : std::vector<ElementRange>{{p.offset, end}};
    for (const ElementRange& part : parts) {
      UpdateRange& own = parts_.emplace_back(tensor);
      own.begin = part.begin;
      own.end = part.end;
      if (share_.own && !share_.whole_state) own.own_state = state;
      state += part.end - part.begin;
      tensor_of_.push_back(tensors_.size() - 1);
    }
  }
}

// Calls `action` for each part of this rank in [begin, end). Its arguments are the first element, the number of
// elements, and the place where their state begins.
template <class Action>
void Optimizer::for_own_parts(std::int64_t begin, std::int64_t end, const Action& action) const {
  auto part = std::ranges::upper_bound(parts_, begin, {}, &UpdateRange::end);
  for (; part != parts_.end() && part->begin < end; ++part) {
    const std::int64_t from = std::max(begin, part->begin), to = std::min(end, part->end);
    action(from, static_cast<std::size_t>(to - from), part->state() + (from - part->begin));
  }
}

void Optimizer::read_state(std::size_t index, std::int64_t begin, std::span<float> values) {
  if (!is_shared()) return backend_.copy_to_host(*state_[index], begin, values);
  for_own_parts(begin, begin + std::ssize(values), [&](std::int64_t at, std::size_t count, std::int64_t state) {
    backend_.copy_to_host(*state_[index], state, values.subspan(static_cast<std::size_t>(at - begin), count));
  });
  share_.gather(values, begin);
}

void Optimizer::write_state(std::size_t index, std::int64_t begin, std::span<const float> values) {
  if (!is_shared()) return backend_.copy_from_host(values, *state_[index], begin);
  for_own_parts(begin, begin + std::ssize(values), [&](std::int64_t at, std::size_t count, std::int64_t state) {
    backend_.copy_from_host(values.subspan(static_cast<std::size_t>(at - begin), count), *state_[index], state);
  });
}

std::vector<double> Optimizer::gradient_norms() {
  if (is_shared()) return tensor_norms_;
  const std::span<const double> norms = gradient_norms_->values();
  return {norms.begin(), norms.end()};
}

// Implements Update::complete_norms for this share.
double Optimizer::complete_norms(std::span<double> norms) {
  if (!share_.own) {  // this rank has whole tensors; other ranks have other tensors
    double sum = std::accumulate(norms.begin(), norms.end(), 0.0);
    share_.sum({&sum, 1});
    return sum;
  }
  std::vector<double> of_tensors(tensors_.size());
  for (std::size_t i = 0; i < norms.size(); ++i) of_tensors[tensor_of_[i]] += norms[i];
  share_.sum(of_tensors);
  for (std::size_t i = 0; i < norms.size(); ++i) norms[i] = of_tensors[tensor_of_[i]];
  if (tensor_norms_.empty()) tensor_norms_ = of_tensors;  // the gradient's norms come first
  return std::accumulate(of_tensors.begin(), of_tensors.end(), 0.0);
}

// The rank that has the first element of a tensor supplies its ratio.
std::vector<float> Optimizer::ratios_of_tensors(const std::vector<float>& of_parts) const {
  std::vector<double> ratios(tensors_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].begin == tensors_[tensor_of_[i]].begin) ratios[tensor_of_[i]] = static_cast<double>(of_parts[i]);
  share_.sum(ratios);
  return {ratios.begin(), ratios.end()};
}

void Optimizer::make_muon(const ParameterTable& parameters) {
  layout_ = muon_layout(parameters, ranks_.size);
  if (layout_.matrices.empty()) return;
  auto matrix = layout_.matrices.begin();
  auto range = parts_.begin();
  for (const Parameter& p : parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    if (is_muons(p)) {
      range->direction = matrix->begin;
      range->matrix_factor = static_cast<float>(muon_rate_factor(config_.muon_rate, *matrix));
      ++matrix;
    }
    ++range;
  }
  directions_ = backend_.make_vector(layout_.size);
  orthogonalizer_ = backend_.make_orthogonalizer(layout_.of(ranks_.rank));
  orthogonalizer_->allocate();
}

// Broadcasts the directions of every rank.
void Optimizer::gather_directions() {
  for (int rank = 0; rank < ranks_.size; ++rank) {
    const ElementRange share = layout_.shares[static_cast<std::size_t>(rank)];
    if (share.end > share.begin) ranks_.broadcast(part(directions_->all(), share), rank);
  }
}

// Copies the weights to z or to their average in pieces, so that the host needs little memory.
void Optimizer::begin(const Vector& weights) {
  if (!config_.schedule_free && !has_mean()) return;
  std::vector<float> piece;
  for (std::int64_t at = 0; at < trained_; at += std::ssize(piece)) {
    piece.resize(static_cast<std::size_t>(std::min(piece_elements, trained_ - at)));
    backend_.copy_to_host(weights, at, piece);
    write_state(has_mean() ? state_.size() - 1 : 0, at, piece);
  }
}

// Evaluations are rare, so the host computes the average, for every backend.
Vector& Optimizer::evaluated(Vector& weights) {
  if (!average_) return weights;
  const auto momentum = static_cast<float>(schedule_free_momentum(config_));
  std::vector<float> piece, z;
  for (std::int64_t at = 0; at < weights.size(); at += std::ssize(piece)) {
    const std::int64_t end = at < trained_ ? trained_ : weights.size();  // statistics have no average
    piece.resize(static_cast<std::size_t>(std::min(piece_elements, end - at)));
    backend_.copy_to_host(weights, at, piece);
    if (at < trained_ && has_mean()) {
      read_state(state_.size() - 1, at, piece);
    } else if (at < trained_) {
      z.resize(piece.size());
      read_state(0, at, z);
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = schedule_free_average(momentum, piece[i], z[i]);
    }
    backend_.copy_from_host(piece, *average_, at);
  }
  return *average_;
}

// During the warm-up, a later z has a larger weight in the average. The weight is the square of the largest rate so
// far.
void Optimizer::set_schedule_free(UpdateRule& rule, double rate) {
  started_.largest_rate = std::max(applied_.largest_rate, rate);
  const double weight = started_.largest_rate * started_.largest_rate;
  started_.average_weight = applied_.average_weight + weight;
  rule.momentum = static_cast<float>(schedule_free_momentum(config_));
  rule.average_share = weight > 0 ? static_cast<float>(weight / started_.average_weight) : 0.0f;
}

// Sets the memory of momentum and moments. With a constant beta, the product of the betas so far is a power.
void Optimizer::set_factors(UpdateRule& rule, double samples) {
  const HalfLifeConfig& half = config_.half_life;
  const auto t = static_cast<double>(started_.updates);
  const auto share = [&](double plain, double half_life, double& product, double& all) {
    if (half_life > 0) product *= step_factor(plain, half_life, samples);
    all = half_life > 0 ? product : std::pow(plain, t);
    return static_cast<float>(step_share(plain, half_life, samples));
  };
  double all1 = 1, all2 = 1;
  rule.momentum = static_cast<float>(step_factor(config_.momentum, half.momentum, samples));
  rule.momentum_share = static_cast<float>(step_share(config_.momentum, half.momentum, samples));
  rule.beta1_share = share(config_.beta1, half.beta1, started_.beta1_product, all1);
  rule.beta2_share = share(config_.beta2, half.beta2, started_.beta2_product, all2);
  rule.bias_correction1 = static_cast<float>(1 - all1);
  rule.bias_correction2 = static_cast<float>(std::sqrt(1 - all2));
}

// Counts the update in started_, and returns its rule.
UpdateRule Optimizer::rule_of(const UpdateStep& step) {
  started_ = applied_;
  started_.updates += 1;
  started_.rate = step.rate;
  UpdateRule rule;
  rule.kind = known(other_than_muon(config_)).kind;
  rule.learning_rate = static_cast<float>(step.rate * (config_.kind == "muon" ? config_.other_rate : 1));
  rule.matrix_rate = static_cast<float>(step.rate);
  rule.clip_value = static_cast<float>(config_.clip_value);
  rule.rate_inside = config_.rate_in_momentum || rule.kind == OptimizerKind::lars;
  if (config_.momentum_correction && applied_.rate > 0) rule.correction = static_cast<float>(step.rate / applied_.rate);
  rule.nesterov = config_.nesterov;
  set_factors(rule, step.samples);
  rule.epsilon = static_cast<float>(config_.epsilon);
  rule.decay_factor = static_cast<float>(step.decay_factor);
  rule.trust_coefficient = static_cast<float>(config_.trust_coefficient);
  rule.mlperf = config_.lars_form == "mlperf";
  const double sgd = sgd_share(step.epochs, config_.transition_center, config_.transition_length);
  rule.sgd_share = static_cast<float>(sgd);
  rule.rmsprop_share = step.rate > 0 ? static_cast<float>((1 - sgd) * config_.transition_rate / step.rate) : 0;
  if (config_.schedule_free) set_schedule_free(rule, step.rate);
  if (has_mean())  // before from_epoch, the average is the weights
    rule.new_share =
        step.epochs < mean_.from_epoch ? 1.0f : static_cast<float>(step_share(0, mean_.half_life, step.samples));
  return rule;
}

void Optimizer::queue_update(Vector& weights, const Vector& gradients, const UpdateStep& step, float loss_scale,
                             float norm_momentum, Program* program) {
  tensor_norms_.clear();
  reports_trust_ = step.reports_trust;
  const UpdateRule rule = rule_of(step);
  const std::span<const std::unique_ptr<Vector>> own_state(state_.data(), state_.size() - (has_mean() ? 1 : 0));
  std::function<double(std::span<double>)> completes;
  if (share_.sum) completes = [this](std::span<double> norms) { return complete_norms(norms); };
  backend_.queue_update({.rule = rule,
                         .ranges = parts_,
                         .gradient_norms = gradient_norms_.get(),
                         .clip_norm = config_.clip_norm,
                         .loss_scale = loss_scale,
                         .trained = trained_,
                         .norm_momentum = norm_momentum,
                         .program = program,
                         .reports_trust = step.reports_trust,
                         .adascale = step.adascale,
                         .average = has_mean() ? state_.back().get() : nullptr,
                         .directions = directions_.get(),
                         .orthogonalizer = orthogonalizer_.get(),
                         .gather = ranks_.size > 1 ? std::function<void()>([this] { gather_directions(); }) : nullptr,
                         .complete_norms = completes},
                        weights, gradients, own_state);
}

UpdateResult Optimizer::finish_update() {
  UpdateResult result = backend_.finish_update();
  const bool has_ratios = result.applied && reports_trust_ && has_trust_ratio(known(other_than_muon(config_)).kind);
  if (is_shared() && has_ratios) result.trust_ratios = ratios_of_tensors(result.trust_ratios);
  if (result.applied) {
    applied_ = started_;
    applied_.rate *= result.gain;
  }
  return result;
}

}  // namespace ringtrain
