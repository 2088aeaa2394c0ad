#include "bench/forecast.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/rounding.h"
#include "base/text.h"
#include "base/utf8.h"
#include "bench/preflight.h"
#include "run/machine.h"
#include "run/plan.h"
#include "run/split.h"

namespace ringtrain {

namespace {

constexpr const char* measure_advice = "bin/ringtrain bench comm input step EXPERIMENT.yaml --json preflight.json";

std::pair<int, int> on_ranks(const StepMeasurement& s) {
  return {s.ranks_per_node, s.ranks};
}

// The two measured steps between which a step on other ranks lies, `x` of the way from the first to the second one.
// Both are the same step outside of the measured ranks per node, and at a measured number of them.
struct Neighbours {
  std::size_t first = 0, second = 0;  // their places in `steps`
  double x = 0;
};

// Returns the neighbours of `ranks_on_node` ranks on a node. Of several steps with the same ranks per node, that with
// the most ranks up to `ranks` is taken. `steps` ascend in the ranks per node, and then in the ranks.
Neighbours neighbours_of(const std::vector<StepMeasurement>& steps, int ranks, int ranks_on_node) {
  std::size_t first = 0;
  while (first < steps.size() && steps[first].ranks_per_node < ranks_on_node) ++first;
  if (first == steps.size()) return {first - 1, first - 1};
  std::size_t after = first;
  for (std::size_t i = first; i < steps.size(); ++i)
    if (steps[i].ranks_per_node == steps[first].ranks_per_node && steps[i].ranks <= ranks) after = i;
  if (first == 0 || steps[after].ranks_per_node == ranks_on_node) return {after, after};
  const int below = steps[first - 1].ranks_per_node, above = steps[after].ranks_per_node;
  return {first - 1, after, static_cast<double>(ranks_on_node - below) / (above - below)};
}

double between(double a, double b, double x) {
  return a + x * (b - a);
}

double own_crowding(const StepMeasurement& s) {
  return s.on_device ? 1 : crowding(s.ranks_per_node, s.threads, s.cores_per_node);
}

double measured_seconds(const StepMeasurement& s) {
  return s.input_seconds > 0 ? s.input_seconds : s.seconds;
}

}  // namespace

const char* scaling_name(Scaling scaling) {
  return scaling == Scaling::strong ? "strong" : "weak";
}
const char* topology_name(Topology topology) {
  return topology == Topology::flat ? "flat" : "hierarchical";
}

Forecast::Forecast(const Experiment& experiment, const std::vector<Preflight>& measured, const ForecastOptions& options)
    : experiment_(experiment) {
  take_steps(measured);
  for (const Preflight& p : measured) take_speeds(p);
  if (!has_network_ && options.network.beta > 0) network_ = options.network, has_network_ = true;
  if (!has_network_ && has_node_) network_ = node_, network_is_assumed_ = true;
  if (!has_node_) node_ = network_;
  if (options.ranks_per_node > 0) ranks_per_node_ = static_cast<int>(options.ranks_per_node);
  cores_per_node_ = options.cores_per_node > 0 ? static_cast<int>(options.cores_per_node) : base().cores_per_node;
  rows_per_rank_ = options.rows_per_rank > 0 ? options.rows_per_rank : base().rows_per_rank;
  fit();
}

// Of several steps on the same ranks, the last one counts.
void Forecast::take_steps(const std::vector<Preflight>& measured) {
  const std::string keys = model_keys(experiment_);
  for (const Preflight& p : measured) {
    if (!p.has_step) continue;
    if (p.step.model != keys)
      throw Error(cat("the measured step is of another model: ", p.step.model, "; the experiment has ", keys),
                  measure_advice);
    std::erase_if(steps_, [&](const StepMeasurement& s) { return on_ranks(s) == on_ranks(p.step); });
    steps_.push_back(p.step);
  }
  if (steps_.empty()) throw Error("no step was measured", measure_advice);
  std::ranges::sort(steps_, {}, on_ranks);
  input_cost_.assign(steps_.size(), 0);
}

void Forecast::take_speeds(const Preflight& p) {
  // If ranks shared cores, the measured links are slower than those of ranks with a core each.
  const StepMeasurement& s = p.has_step ? p.step : steps_.back();
  const double own = s.on_device ? 1 : crowding(p.ranks_per_node, s.threads, s.cores_per_node);
  if (p.fit.contains("node")) node_ = scaled(p.fit.at("node"), 1 / own), has_node_ = true;
  if (p.fit.contains("network")) network_ = p.fit.at("network"), has_network_ = true;
  ranks_per_node_ = std::max(ranks_per_node_, p.ranks_per_node);
  for (const InputRate& rate : p.input) {
    const double of_rank = rate.samples_per_second / p.ranks_per_node;
    if (loader_rate_ == 0 || of_rank < loader_rate_) loader_rate_ = of_rank;
  }
}

double Forecast::crowding_of(int ranks_on_node) const {
  return base().on_device ? 1 : crowding(ranks_on_node, base().threads, cores_per_node_);
}

bool Forecast::has_spare_core(int ranks_on_node, int cores) const {
  return base().on_device || ranks_on_node * base().threads < cores;
}

void Forecast::fit() {
  for (const StepMeasurement& s : steps_)
    if (s.ranks == 1 && s.seconds > 0) computing_excess_ = s.seconds / model_time(s, false).total() - 1;
  fit_busy_share();
  for (const StepMeasurement& s : steps_) fit_core_sharing(s);

  for (const StepMeasurement& s : steps_) uncertainty_.jitter = std::max(uncertainty_.jitter, s.jitter);
  uncertainty_.compute = uncertainty_.jitter;
  uncertainty_.sums = std::max(node_.error, network_.error);
  fit_unexplained();
  fit_input_cost();
}

// On a GPU, sums hardly disturb computation. On a CPU, the computing core does all the work of a sum, unless a measured
// step shows that it does less.
void Forecast::fit_busy_share() {
  busy_ = base().on_device ? 0 : 1;
  double fitted = 0;
  int count = 0;
  for (const StepMeasurement& s : steps_) {
    if (s.ranks == 1 || s.seconds <= 0 || own_crowding(s) > 1 || !has_links()) continue;
    const Setting setting = {{}, 1};
    const StepWork w = work(share_of(s, false), s.ranks, s.ranks_per_node, setting);
    fitted += fit_busy(w, cluster(s.ranks, s.ranks_per_node, setting), s.seconds);
    ++count;
  }
  busy_is_fitted_ = count > 0;
  if (count > 0) busy_ = fitted / count;
}

double Forecast::unexplained(int ranks, int ranks_on_node) const {
  if (ranks == 1) return 0;
  const bool shares_cores = crowding_of(ranks_on_node) > 1;
  return (shares_cores ? unexplained_shared_ : unexplained_).at(ranks, ranks_on_node);
}

StepTime Forecast::model_time(const StepMeasurement& s, bool with_input) const {
  return predicted(share_of(s, with_input), s.ranks, s.ranks_per_node);
}

// The model does not predict measured steps exactly, because its few parameters serve all of them. Predictions add the
// differences, so that a fitted step is predicted as it was measured:
// - Computing: a step on one rank takes longer than its passes and its update. All computing is predicted to take
//   longer by the same share (computing_excess_, which fit() has computed).
// - Steps of several ranks: the difference in seconds. Unexplained estimates it for other numbers of ranks. For ranks
//   that share cores, it is added only if such ranks were measured. Otherwise the fitted wait of a message contains it.
// - The data set: the seconds per sample that it adds to a step (fit_input_cost()).
// The relative error of the model is the root mean square of the first two kinds of differences.
void Forecast::fit_unexplained() {
  std::vector<double> left(steps_.size());
  double squares = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const StepMeasurement& s = steps_[i];
    if (s.seconds <= 0 || !can_model(s)) continue;
    left[i] = s.seconds - model_time(s, false).total();
    const double all = s.ranks == 1 ? s.seconds * computing_excess_ / (1 + computing_excess_) : left[i];
    const double off = s.seconds / (s.seconds - all) - 1;
    squares += off * off / static_cast<double>(steps_.size());
  }
  uncertainty_.model = std::sqrt(squares);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const int on_node = std::min(steps_[i].ranks, steps_[i].ranks_per_node);
    if (steps_[i].ranks > 1 && steps_[i].seconds > 0 && can_model(steps_[i]))
      (crowding_of(on_node) > 1 ? unexplained_shared_ : unexplained_).add(steps_[i].ranks, on_node, left[i]);
  }
}

void Forecast::fit_input_cost() {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const StepMeasurement& s = steps_[i];
    if (s.input_seconds <= 0 || !can_model(s)) continue;
    const auto rows = static_cast<double>(s.rows_per_rank);
    if (loader_rate_ > 0) loader_rate_ = std::max(loader_rate_, rows / s.input_seconds);  // the step shows that much
    const StepTime without = model_time(s, false);
    input_cost_[i] = (s.input_seconds - s.input_wait - without.total()) / rows;
  }
}

// Fits the cost of sharing cores to a step that was measured while two ranks took turns on a core. If the ranks of the
// measured step share cores anyway, only the times with turns are known.
void Forecast::fit_core_sharing(const StepMeasurement& s) {
  const bool is_crowded = own_crowding(s) > 1;
  const double seconds = is_crowded ? s.seconds : s.shared_step;
  if (s.on_device || s.ranks == 1 || seconds == 0 || !has_links()) return;
  Setting setting = {core_sharing_, is_crowded ? own_crowding(s) : 2};
  if (!is_crowded && s.shared_pass > 0)
    setting.core_sharing.slowdown = std::max(0.0, s.shared_pass / (2 * (s.forward + s.backward)) - 1);
  core_sharing_ = setting.core_sharing;
  const StepWork w = work(share_of(s, false), s.ranks, s.ranks_per_node, setting);
  const Cluster unshared = cluster(s.ranks, s.ranks_per_node, {{}, 1});
  core_sharing_.message_wait = fit_message_wait(w, unshared, setting.crowding, seconds);
  core_sharing_is_measured_ = true;
}

Forecast::Costs Forecast::costs_of(std::size_t step, double micro_batch) const {
  const StepMeasurement& s = steps_[step];
  const double turns = core_sharing_.slower(own_crowding(s));
  const PassTime pass = pass_at(s.passes, micro_batch);
  const double wait = s.input_seconds > 0 ? s.input_wait / static_cast<double>(s.rows_per_rank) : 0;
  return {pass.forward / turns, pass.backward / turns, s.update / turns, input_cost_[step] / turns, wait / turns};
}

Forecast::Costs Forecast::costs_on(int ranks, int ranks_on_node, double micro_batch) const {
  const Neighbours at = neighbours_of(steps_, ranks, ranks_on_node);
  const Costs a = costs_of(at.first, micro_batch);
  if (at.first == at.second) return a;
  const Costs b = costs_of(at.second, micro_batch);
  return {between(a.forward, b.forward, at.x), between(a.backward, b.backward, at.x), between(a.update, b.update, at.x),
          between(a.input, b.input, at.x), between(a.input_wait, b.input_wait, at.x)};
}

double Forecast::computing_factor(int ranks_on_node, const Setting& setting) const {
  const StepMeasurement& last = base();
  double factor = (1 + computing_excess_) * setting.core_sharing.slower(setting.crowding);
  if (last.full_node_pass > 0)
    factor *= full_node_slowdown(last.full_node_pass / (last.forward + last.backward), ranks_on_node,
                                 last.ranks_per_node, last.cores_per_node / last.threads);
  return factor;
}

double Forecast::loader_seconds(double rows, int ranks_on_node, double crowding) const {
  const StepMeasurement& last = base();
  const bool takes_turns = loader_rate_ > 0 && has_spare_core(last.ranks_per_node, last.cores_per_node) &&
                           !has_spare_core(ranks_on_node, cores_per_node_);
  if (!takes_turns) return 0;
  return crowding * static_cast<double>(experiment_.data.loader_threads) * rows / loader_rate_ / last.threads;
}

StepWork Forecast::work(const BatchShare& share, int ranks, int ranks_on_node, const Setting& setting) const {
  const Costs costs = costs_on(ranks, ranks_on_node, static_cast<double>(share.micro_batch));
  const double factor = computing_factor(ranks_on_node, setting);
  StepWork w;
  w.forward = factor * costs.forward;
  w.backward = factor * costs.backward;
  w.update = factor * costs.update;
  w.accumulation = share.accumulation;
  w.elements = base().elements;
  w.bucket_elements = bucket_elements(experiment_.communication, base().on_device, ranks);
  w.element_bytes = base().element_bytes;
  w.busy = busy_;
  w.unexplained = unexplained(ranks, ranks_on_node);
  w.watermark = base().watermark;
  if (!share.with_input) return w;

  // The data set adds more than waiting to a step, because loader threads take time from computing threads. A negative
  // cost takes away at most half of the computation, as in step_time().
  const auto rows = static_cast<double>(share.rows);
  const double computation = static_cast<double>(share.accumulation) * (w.forward + w.backward) + w.update;
  w.update += std::max(-computation / 2, rows * (factor * costs.input) / (1 + computing_excess_));
  w.update += loader_seconds(rows, ranks_on_node, setting.crowding);
  w.input_wait = rows * (factor * costs.input_wait) / (1 + computing_excess_);
  w.input = loader_rate_ > 0 ? rows / loader_rate_ : 0;
  return w;
}

// Returns how the gradients are summed. NCCL's sums are measured and fitted as a ring, and shares of the optimizer's
// state go around a ring.
SumChoice Forecast::choice() const {
  if (base().on_device || experiment_.parallel.shard_state) return {.algorithm = "ring"};
  return sum_choice(experiment_.communication);
}

SumAlgorithm Forecast::chosen(const NodeShape& shape, bool flat) const {
  const std::int64_t bucket = bucket_elements(experiment_.communication, base().on_device, shape.ranks);
  const double bytes = base().element_bytes * static_cast<double>(std::min(bucket, base().elements));
  const SumAlgorithm algorithm = chosen_sum(choice(), shape, bytes);
  // The library's own sums (communication.algorithm: mpi) are predicted as the fastest flat ones.
  const bool other = algorithm == SumAlgorithm::library || (flat && algorithm == SumAlgorithm::hierarchical);
  return other ? fastest_sum(shape, choice().links, bytes, true) : algorithm;
}

Topology Forecast::chosen_topology(int ranks) const {
  const NodeShape shape = filled_nodes(ranks, ranks_per_node_);
  const bool hierarchical = shape.nodes > 1 && chosen(shape, false) == SumAlgorithm::hierarchical;
  return hierarchical ? Topology::hierarchical : Topology::flat;
}

bool Forecast::has_hierarchical_sums(int ranks) const {
  const NodeShape shape = filled_nodes(ranks, ranks_per_node_);
  return !base().on_device && !experiment_.parallel.shard_state && shape.nodes > 1 && shape.even();
}

Cluster Forecast::cluster(int ranks, int ranks_per_node, const Setting& setting,
                          std::optional<Topology> topology) const {
  const NodeShape shape = filled_nodes(ranks, ranks_per_node);
  const bool flat = topology == Topology::flat && shape.nodes > 1;  // in one node, every sum counts as flat
  const bool hierarchical = topology == Topology::hierarchical;
  return {
      shape,
      {setting.core_sharing.slower(node_, setting.crowding), setting.core_sharing.slower(network_, setting.crowding)},
      hierarchical ? SumAlgorithm::hierarchical : chosen(shape, flat)};
}

// If ranks share cores, the cost of taking turns is uncertain. The range is from no extra cost to twice the measured
// cost, and the core with the most threads delays all ranks. Without a measurement the extra cost may be as large as
// the turns themselves.
StepRange Forecast::range(const BatchShare& share, int ranks, int ranks_per_node,
                          std::optional<Topology> topology) const {
  const int on_node = std::min(ranks, ranks_per_node);
  const auto of = [&](const Setting& setting) {
    return step_range(work(share, ranks, on_node, setting), cluster(ranks, ranks_per_node, setting, topology),
                      uncertainty_);
  };
  const double crowding = crowding_of(on_node);
  if (crowding <= 1) return of(setting(on_node));
  const CoreSharing worst = core_sharing_is_measured_
                                ? CoreSharing{2 * core_sharing_.slowdown, 2 * core_sharing_.message_wait}
                                : CoreSharing{1, 0};
  return {of({{}, crowding}).low, of({worst, std::ceil(crowding)}).high};
}

BatchPlan Forecast::batch_on(Scaling scaling, int ranks) const {
  BatchConfig batch = experiment_.batch;
  batch.schedule.clear();  // only the first batch counts
  batch.follow_noise = 0;
  if (scaling == Scaling::weak) {
    // The size of the virtual workers does not change the speed; they only have to fit.
    batch.global = rows_per_rank_ * ranks;
    if (rows_per_rank_ % batch.worker != 0) batch.worker = rows_per_rank_;
  }
  return batch_plan(batch, ranks, base().micro_batch, base().whole_workers);
}

StepTime Forecast::predicted(const BatchShare& share, int ranks, int ranks_per_node,
                             std::optional<Topology> topology) const {
  const int on_node = std::min(ranks, ranks_per_node);
  const Setting its = setting(on_node);
  return step_time(work(share, ranks, on_node, its), cluster(ranks, ranks_per_node, its, topology));
}

ForecastRow Forecast::row(Scaling scaling, Topology topology, int ranks) const {
  if (ranks > 1 && !has_links())
    throw Error("no all-reduce was measured, so only one rank can be predicted", measure_advice);
  if (!base().on_device) {
    check_mpi_has(experiment_.communication.algorithm);
    check_sum_choice(choice(), filled_nodes(ranks, ranks_per_node_));
  }
  const BatchPlan batch = batch_on(scaling, ranks);
  ForecastRow r;
  r.scaling = scaling, r.topology = topology, r.chosen = topology == chosen_topology(ranks);
  r.ranks = ranks, r.nodes = divide_up(ranks, ranks_per_node_);
  r.global_batch = batch.global, r.rows_per_rank = batch.rows_per_rank, r.micro_batch = batch.micro_batch;
  r.crowding = crowding_of(std::min(ranks, ranks_per_node_));
  r.step = predicted(share_of(batch), ranks, ranks_per_node_, topology);
  r.range = range(share_of(batch), ranks, ranks_per_node_, topology);

  const BatchPlan alone = batch_on(scaling, 1);
  const double seconds_alone = predicted(share_of(alone), 1, ranks_per_node_).total();
  r.efficiency = r.samples_per_second() / (ranks * (static_cast<double>(alone.global) / seconds_alone));
  return r;
}

Forecast::Comparison Forecast::compare(const StepMeasurement& s) const {
  const int on_node = std::min(s.ranks, s.ranks_per_node);
  const bool with_input = s.input_seconds > 0;
  return {s.ranks, on_node, measured_seconds(s), model_time(s, with_input).total(),
          range(share_of(s, with_input), s.ranks, s.ranks_per_node)};
}

std::vector<int> parse_ranks(const std::string& text) {
  const auto number = [&](std::string_view part) {
    int value = 0;
    if (!read_number(part, value) || value < 1 || value > 1 << 24)
      throw Error(cat("--ranks is ", shown(text), "; expected 1..4096 (doubling) or a list such as 1,2,48"),
                  "ringtrain --help");
    return value;
  };
  std::vector<int> ranks;
  if (const auto dots = text.find(".."); dots != std::string::npos) {
    const int first = number(std::string_view(text).substr(0, dots));
    const int last = number(std::string_view(text).substr(dots + 2));
    if (last < first)
      throw Error(cat("--ranks is ", shown(text), "; expected the smaller number first"),
                  cat("--ranks ", last, "..", first));
    for (int r = first; r < last; r *= 2) ranks.push_back(r);
    ranks.push_back(last);
    return ranks;
  }
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) ranks.push_back(number(part));
  if (ranks.empty()) number("");
  return ranks;
}

void Unexplained::add(int ranks, int ranks_on_node, double seconds) {
  const auto after = std::ranges::upper_bound(points_, ranks, {}, &Point::ranks);
  points_.insert(after, {ranks, ranks_on_node, seconds});
}

double Unexplained::at(int ranks, int ranks_on_node) const {
  for (const Point& p : points_)
    if (p.ranks == ranks && p.ranks_on_node == ranks_on_node) return p.seconds;
  const auto place = [](int count) { return std::sqrt(std::log(static_cast<double>(count))); };
  const auto upper = std::ranges::lower_bound(points_, ranks, {}, &Point::ranks);
  const Point lower = upper == points_.begin() ? Point{1, 1, 0} : *std::prev(upper);
  if (upper != points_.end())
    return lower.seconds + (upper->seconds - lower.seconds) * (place(ranks) - place(lower.ranks)) /
                               (place(upper->ranks) - place(lower.ranks));
  return lower.seconds > 0 ? lower.seconds * place(ranks) / place(lower.ranks) : lower.seconds;
}

}  // namespace ringtrain
