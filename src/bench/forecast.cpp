#include "bench/forecast.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "bench/preflight.h"
#include "config/batch_plan.h"
#include "run/plan.h"

namespace ringtrain {

namespace {

constexpr const char* measure_advice = "bin/ringtrain bench comm input step EXPERIMENT.yaml --json preflight.json";

std::pair<int, int> on_ranks(const StepMeasurement& s) {
  return {s.ranks_per_node, s.ranks};
}

// Returns a value of the measured steps for `ranks_on_node` ranks on a node. It interpolates linearly between measured
// numbers of ranks per node, and takes the nearest one outside of them. Of several steps with the same ranks per node,
// it takes the one with the most ranks up to `ranks`.
template <class Value>
double between(const std::vector<StepMeasurement>& steps, int ranks, int ranks_on_node, const Value& value) {
  const auto first = std::find_if(steps.begin(), steps.end(),
                                  [&](const StepMeasurement& s) { return s.ranks_per_node >= ranks_on_node; });
  if (first == steps.end()) return value(steps.back());
  auto after = first;
  for (auto s = first; s != steps.end() && s->ranks_per_node == first->ranks_per_node && s->ranks <= ranks; ++s)
    after = s;
  if (first == steps.begin() || after->ranks_per_node == ranks_on_node) return value(*after);
  const StepMeasurement &a = *std::prev(first), &b = *after;
  const double x = static_cast<double>(ranks_on_node - a.ranks_per_node) / (b.ranks_per_node - a.ranks_per_node);
  return value(a) + x * (value(b) - value(a));
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
  const std::string keys = model_keys(experiment);
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
  for (const Preflight& p : measured) {
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
  if (!has_network_ && options.network.beta > 0) network_ = options.network, has_network_ = true;
  if (!has_network_ && has_node_) network_ = node_, network_is_assumed_ = true;
  if (!has_node_) node_ = network_;
  if (options.ranks_per_node > 0) ranks_per_node_ = static_cast<int>(options.ranks_per_node);
  cores_per_node_ = options.cores_per_node > 0 ? static_cast<int>(options.cores_per_node) : base().cores_per_node;
  rows_per_rank_ = options.rows_per_rank > 0 ? options.rows_per_rank : base().rows_per_rank;
  fit();
}

double Forecast::crowding_of(int ranks_on_node) const {
  return base().on_device ? 1 : crowding(ranks_on_node, base().threads, cores_per_node_);
}

bool Forecast::has_spare_core(int ranks_on_node, int cores) const {
  return base().on_device || ranks_on_node * base().threads < cores;
}

// On a GPU, sums hardly disturb computation. On a CPU, the computing core does all the work of a sum, unless a measured
// step shows that it does less.
void Forecast::fit() {
  for (const StepMeasurement& s : steps_)
    if (s.ranks == 1 && s.seconds > 0) computing_excess_ = s.seconds / model_time(s, false).total() - 1;
  busy_ = base().on_device ? 0 : 1;
  double fitted = 0;
  int count = 0;
  for (const StepMeasurement& s : steps_) {
    if (s.ranks == 1 || s.seconds <= 0 || own_crowding(s) > 1 || !(has_node_ || has_network_)) continue;
    const Setting setting = {{}, 1};
    const StepWork w = work(share_of(s, false), s.ranks, s.ranks_per_node, setting);
    fitted += fit_busy(w, cluster(s.ranks, s.ranks_per_node, setting), Topology::flat, s.seconds);
    ++count;
  }
  busy_is_fitted_ = count > 0;
  if (count > 0) busy_ = fitted / count;
  for (const StepMeasurement& s : steps_) fit_core_sharing(s);

  for (const StepMeasurement& s : steps_) uncertainty_.jitter = std::max(uncertainty_.jitter, s.jitter);
  uncertainty_.compute = uncertainty_.jitter;
  uncertainty_.sums = std::max(node_.error, network_.error);
  fit_unexplained();
}

double Forecast::unexplained(int ranks, int ranks_on_node) const {
  if (ranks == 1) return 0;
  const bool shares_cores = crowding_of(ranks_on_node) > 1;
  return (shares_cores ? unexplained_shared_ : unexplained_).at(ranks, ranks_on_node);
}

StepTime Forecast::model_time(const StepMeasurement& s, bool with_input) const {
  const int on_node = std::min(s.ranks, s.ranks_per_node);
  const StepWork w = work(share_of(s, with_input), s.ranks, on_node, setting(on_node));
  return step_time(w, cluster(s.ranks, s.ranks_per_node, setting(on_node)), Topology::flat);
}

// The model does not predict measured steps exactly, because its few parameters serve all of them. Predictions add the
// differences, so that a fitted step is predicted as it was measured:
// - Computing: a step on one rank takes longer than its passes and its update. All computing is predicted to take
//   longer by the same share (computing_excess_, which fit() has computed).
// - Steps of several ranks: the difference in seconds. Unexplained estimates it for other numbers of ranks. For ranks
//   that share cores, it is added only if such ranks were measured. Otherwise the fitted wait of a message contains it.
// - The data set: the seconds per sample that it adds to a step (input_cost_).
// The relative error of the model is the root mean square of the first two kinds of differences.
void Forecast::fit_unexplained() {
  const auto is_known = [&](const StepMeasurement& s) { return s.ranks == 1 || has_node_ || has_network_; };
  std::vector<double> left(steps_.size());
  double squares = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const StepMeasurement& s = steps_[i];
    if (s.seconds <= 0 || !is_known(s)) continue;
    left[i] = s.seconds - model_time(s, false).total();
    const double all = s.ranks == 1 ? s.seconds * computing_excess_ / (1 + computing_excess_) : left[i];
    const double off = s.seconds / (s.seconds - all) - 1;
    squares += off * off / static_cast<double>(steps_.size());
  }
  uncertainty_.model = std::sqrt(squares);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const int on_node = std::min(steps_[i].ranks, steps_[i].ranks_per_node);
    if (steps_[i].ranks > 1 && steps_[i].seconds > 0 && is_known(steps_[i]))
      (crowding_of(on_node) > 1 ? unexplained_shared_ : unexplained_).add(steps_[i].ranks, on_node, left[i]);
  }

  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const StepMeasurement& s = steps_[i];
    if (s.input_seconds <= 0 || !is_known(s)) continue;
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
  if (s.on_device || s.ranks == 1 || seconds == 0 || !(has_node_ || has_network_)) return;
  Setting setting = {core_sharing_, is_crowded ? own_crowding(s) : 2};
  if (!is_crowded && s.shared_pass > 0)
    setting.core_sharing.slowdown = std::max(0.0, s.shared_pass / (2 * (s.forward + s.backward)) - 1);
  core_sharing_ = setting.core_sharing;
  const StepWork w = work(share_of(s, false), s.ranks, s.ranks_per_node, setting);
  core_sharing_.message_wait = fit_message_wait(w, {s.ranks, s.ranks_per_node, node_, network_, sums()}, Topology::flat,
                                                setting.crowding, seconds);
  core_sharing_is_measured_ = true;
}

StepWork Forecast::work(const BatchShare& share, int ranks, int ranks_on_node, const Setting& setting) const {
  const StepMeasurement& last = base();
  double factor = (1 + computing_excess_) * setting.core_sharing.slower(setting.crowding);
  if (last.full_node_pass > 0)
    factor *= full_node_slowdown(last.full_node_pass / (last.forward + last.backward), ranks_on_node,
                                 last.ranks_per_node, last.cores_per_node / last.threads);
  const auto at_node = [&](const auto& value) {
    return factor * between(steps_, ranks, ranks_on_node,
                            [&](const StepMeasurement& s) { return value(s) / core_sharing_.slower(own_crowding(s)); });
  };
  const auto micro = static_cast<double>(share.micro_batch), rows = static_cast<double>(share.rows);
  StepWork w;
  w.forward = at_node([&](const StepMeasurement& s) { return pass_at(s.passes, micro).forward; });
  w.backward = at_node([&](const StepMeasurement& s) { return pass_at(s.passes, micro).backward; });
  w.update = at_node([](const StepMeasurement& s) { return s.update; });
  if (share.with_input) {
    // The data set adds more than waiting to a step, because loader threads take time from computing threads.
    const auto of_samples = [&](const auto& value) { return rows * at_node(value) / (1 + computing_excess_); };
    // A negative cost takes away at most half of the computation, as in step_time().
    const double computation = static_cast<double>(share.accumulation) * (w.forward + w.backward) + w.update;
    w.update += std::max(-computation / 2, of_samples([&](const StepMeasurement& s) {
      return input_cost_[static_cast<std::size_t>(&s - steps_.data())];
    }));
    w.input_wait = of_samples([](const StepMeasurement& s) {
      return s.input_seconds > 0 ? s.input_wait / static_cast<double>(s.rows_per_rank) : 0;
    });
  }
  // The loader was measured with a core of its own. A full node has no core for it.
  if (share.with_input && loader_rate_ > 0 && has_spare_core(last.ranks_per_node, last.cores_per_node) &&
      !has_spare_core(ranks_on_node, cores_per_node_))
    w.update +=
        setting.crowding * static_cast<double>(experiment_.data.loader_threads) * rows / loader_rate_ / last.threads;
  w.input = share.with_input && loader_rate_ > 0 ? rows / loader_rate_ : 0;
  w.accumulation = share.accumulation;
  w.elements = base().elements;
  w.bucket_elements = bucket_elements(experiment_.communication, base().on_device, ranks);
  w.element_bytes = base().element_bytes;
  w.busy = busy_;
  w.unexplained = unexplained(ranks, ranks_on_node);
  w.watermark = base().watermark;
  return w;
}

// NCCL's sums are measured and fitted as a ring.
FlatSums Forecast::sums() const {
  const std::string& algorithm = experiment_.communication.algorithm;
  if (base().on_device || algorithm == "ring") return FlatSums::ring;
  return algorithm == "halving" ? FlatSums::halving : FlatSums::faster;
}

Cluster Forecast::cluster(int ranks, int ranks_per_node, const Setting& setting) const {
  return {ranks, ranks_per_node, setting.core_sharing.slower(node_, setting.crowding),
          setting.core_sharing.slower(network_, setting.crowding), sums()};
}

// If ranks share cores, the cost of taking turns is uncertain. The range is from no extra cost to twice the measured
// cost, and the core with the most threads delays all ranks. Without a measurement the extra cost may be as large as
// the turns themselves.
StepRange Forecast::range(const BatchShare& share, int ranks, int ranks_per_node, Topology topology) const {
  const int on_node = std::min(ranks, ranks_per_node);
  const auto of = [&](const Setting& setting) {
    return step_range(work(share, ranks, on_node, setting), cluster(ranks, ranks_per_node, setting), topology,
                      uncertainty_);
  };
  const double crowding = crowding_of(on_node);
  if (crowding <= 1) return of(setting(on_node));
  const CoreSharing worst = core_sharing_is_measured_
                                ? CoreSharing{2 * core_sharing_.slowdown, 2 * core_sharing_.message_wait}
                                : CoreSharing{1, 0};
  return {of({{}, crowding}).low, of({worst, std::ceil(crowding)}).high};
}

ForecastRow Forecast::row(Scaling scaling, Topology topology, int ranks) const {
  if (ranks > 1 && !has_node_ && !has_network_)
    throw Error("no all-reduce was measured, so only one rank can be predicted", measure_advice);
  ForecastRow r;
  r.scaling = scaling, r.topology = topology, r.ranks = ranks;
  const auto seconds_of = [&](int count, ForecastRow* into) {
    BatchConfig batch = experiment_.batch;
    batch.schedule.clear();  // only the first batch counts
    batch.follow_noise = 0;
    if (scaling == Scaling::weak) {
      // The size of the virtual workers does not change the speed; they only have to fit.
      batch.global = rows_per_rank_ * count;
      if (rows_per_rank_ % batch.worker != 0) batch.worker = rows_per_rank_;
    }
    const BatchPlan plan = batch_plan(batch, count, base().micro_batch, base().whole_workers);
    const int on_node = std::min(count, ranks_per_node_);
    const BatchShare share = {plan.rows_per_rank, plan.micro_batch, plan.accumulation};
    const Cluster c = cluster(count, ranks_per_node_, setting(on_node));
    const StepWork w = work(share, count, on_node, setting(on_node));
    if (into != nullptr) {
      into->nodes = c.nodes();
      into->global_batch = plan.global, into->rows_per_rank = plan.rows_per_rank, into->micro_batch = plan.micro_batch;
      into->step = step_time(w, c, topology);
      into->range = range(share, count, ranks_per_node_, topology);
      into->crowding = crowding_of(on_node);
    }
    return static_cast<double>(plan.global) / step_time(w, c, topology).total();  // samples per second
  };
  r.efficiency = seconds_of(ranks, &r) / (ranks * seconds_of(1, nullptr));
  return r;
}

Forecast::Comparison Forecast::compare(const StepMeasurement& s) const {
  const int on_node = std::min(s.ranks, s.ranks_per_node);
  const bool with_input = s.input_seconds > 0;
  return {s.ranks, on_node, measured_seconds(s), model_time(s, with_input).total(),
          range(share_of(s, with_input), s.ranks, s.ranks_per_node, Topology::flat)};
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
