// `ringtrain predict` prints and writes the table of predictions. It is one process without MPI and runs on a login
// node.
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/table.h"
#include "bench/forecast.h"
#include "bench/preflight.h"
#include "commands/commands.h"
#include "config/reader.h"
#include "run/folder.h"

namespace ringtrain {

namespace {

const char* limit_of(const ForecastRow& r) {
  if (r.step.input > std::max(r.step.exposed, 0.1 * r.step.compute)) return "input";
  return r.step.exposed > r.step.compute ? "communication" : "computing";
}

OutputKind forecast_table() {
  return table_output("table of ringtrain predict", "scaling,topology,ranks,");
}

OutputKind forecast_file() {
  return json_output("result of ringtrain predict --json", {"ranks_per_node", "left_out", "uncertainty"});
}

struct MeasuredPoint {
  int ranks = 1;
  double step_seconds = 0, samples_per_second = 0;
};

// Returns the columns of a row, with their names.
Json columns_of(const ForecastRow& r) {
  return {{"scaling", scaling_name(r.scaling)},
          {"topology", topology_name(r.topology)},
          {"ranks", r.ranks},
          {"nodes", r.nodes},
          {"global_batch", r.global_batch},
          {"rows_per_rank", r.rows_per_rank},
          {"micro_batch", r.micro_batch},
          {"step_seconds", r.step.total()},
          {"step_seconds_low", r.range.low},
          {"step_seconds_high", r.range.high},
          {"compute_seconds", r.step.compute},
          {"exposed_seconds", r.step.exposed},
          {"input_seconds", r.step.input},
          {"samples_per_second", r.samples_per_second()},
          {"efficiency", r.efficiency},
          {"limit", limit_of(r)},
          {"threads_per_core", r.crowding},
          {"chosen", r.chosen}};
}

std::string csv_field(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? cat(value.get<double>()) : value.dump();
}

// Returns the table of --csv. Rows whose scaling is "measured" have only ranks, seconds of a step, and samples per
// second.
std::string csv(const std::vector<ForecastRow>& rows, const std::vector<MeasuredPoint>& measured) {
  const Json first = columns_of(rows.front());
  std::string text;
  for (const auto& [name, value] : first.items()) text += cat(text.empty() ? "" : ",", name);
  text += "\n";
  for (const ForecastRow& r : rows) text += joined(columns_of(r), ",", csv_field) + "\n";
  for (const MeasuredPoint& m : measured)
    text += cat("measured,,", m.ranks, ",,,,,", m.step_seconds, ",,,,,,", m.samples_per_second, ",,,,\n");
  return text;
}

// Returns the seconds by which the measured step of forecast.base() was longer than the model says.
double left_out(const Forecast& forecast) {
  const StepMeasurement& s = forecast.base();
  return forecast.unexplained(s.ranks, std::min(s.ranks, s.ranks_per_node));
}

std::string json(const Forecast& forecast, const std::vector<ForecastRow>& rows,
                 const std::vector<Forecast::Comparison>& comparisons) {
  const Uncertainty& u = forecast.uncertainty();
  Json j = {{"model", forecast.base().model},
            {"ranks_per_node", forecast.ranks_per_node()},
            {"cores_per_node", forecast.cores_per_node()},
            {"busy", forecast.busy()},
            {"busy_is_fitted", forecast.busy_is_fitted()},
            {"network_is_assumed", forecast.network_is_assumed()},
            {"turns",
             {{"slowdown", forecast.core_sharing().slowdown}, {"message_wait", forecast.core_sharing().message_wait}}},
            {"turns_are_measured", forecast.core_sharing_is_measured()},
            {"left_out", {{"computing", forecast.computing_excess()}, {"seconds", left_out(forecast)}}},
            {"uncertainty", {{"compute", u.compute}, {"sums", u.sums}, {"model", u.model}, {"jitter", u.jitter}}}};
  for (const ForecastRow& r : rows) j["rows"].push_back(columns_of(r));
  for (const Forecast::Comparison& c : comparisons)
    j["comparisons"].push_back({{"ranks", c.ranks},
                                {"ranks_on_node", c.ranks_on_node},
                                {"measured_seconds", c.measured},
                                {"predicted_seconds", c.predicted},
                                {"low", c.range.low},
                                {"high", c.range.high}});
  return j.dump(1) + "\n";
}

// Returns the row like `r` with this topology; null: there is none.
const ForecastRow* with_topology(const std::vector<ForecastRow>& rows, const ForecastRow& r, Topology topology) {
  const auto found = std::ranges::find_if(rows, [&](const ForecastRow& other) {
    return other.scaling == r.scaling && other.ranks == r.ranks && other.topology == topology;
  });
  return found == rows.end() ? nullptr : &*found;
}

// Prints the rows of this scaling with the experiment's sums. For several nodes, a column shows the efficiency with
// hierarchical sums. A line names the first number of ranks on which the other topology would be faster.
void print(const std::vector<ForecastRow>& rows, Scaling scaling) {
  log_info(scaling == Scaling::strong ? "the experiment's batch (strong scaling)"
                                      : "the batch grows with the ranks (weak scaling)");
  log_info(
      " ranks nodes    batch rows/rank    step ms (    low ..     high)     samples/s efficiency hierarchical  limit");
  const ForecastRow* faster = nullptr;
  for (const ForecastRow& r : rows) {
    if (r.scaling != scaling || !r.chosen) continue;
    const ForecastRow *flat = with_topology(rows, r, Topology::flat),
                      *hierarchical = with_topology(rows, r, Topology::hierarchical);
    log_info(printed("%6d %5d %8lld %9lld %10.2f (%8.2f .. %8.2f) %13s %8.1f %% %12s  %s%s", r.ranks, r.nodes,
                     static_cast<long long>(r.global_batch), static_cast<long long>(r.rows_per_rank),
                     1e3 * r.step.total(), 1e3 * r.range.low, 1e3 * r.range.high,
                     with_thousands(std::llround(r.samples_per_second())).c_str(), 100 * r.efficiency,
                     hierarchical == nullptr ? "-" : printed("%.1f %%", 100 * hierarchical->efficiency).c_str(),
                     limit_of(r), r.crowding > 1 ? ", cores shared" : ""));
    const ForecastRow* other = r.topology == Topology::flat ? hierarchical : flat;
    if (faster == nullptr && other != nullptr && other->step.total() < 0.99 * r.step.total()) faster = other;
  }
  if (faster != nullptr)
    log_info("  on ", faster->ranks, " ranks, a step with ", topology_name(faster->topology), " sums would take ",
             printed("%.2f ms", 1e3 * faster->step.total()),
             " (communication.algorithm; auto chooses by the latencies and bandwidths that the experiment states)");
}

// Throws Error if a file is both fitted and compared, because such a comparison would show nothing.
void refuse_fitted(const std::vector<std::string>& measured, const std::vector<std::string>& held_out) {
  std::error_code ignored;
  for (const std::string& path : held_out)
    for (const std::string& fitted : measured)
      if (std::filesystem::equivalent(path, fitted, ignored))
        throw Error(cat("--check ", path, " is also a file that is fitted (--preflight)"),
                    "compare with a measurement of its own: ringtrain bench step ... --json other.json");
}

// Prints the cost of sharing cores, if a row has more threads than cores.
void print_turns(const Forecast& f, const std::vector<ForecastRow>& rows) {
  double most = 1;
  for (const ForecastRow& r : rows) most = std::max(most, r.crowding);
  if (most <= 1) return;
  if (f.core_sharing_is_measured())
    log_info(printed(
        "cores shared: up to %.3g threads take turns on a core; each thread after the first slows computing by "
        "%.1f %% in addition to taking turns, and holds a message up by %.0f us (measured with two; the range: nothing "
        "of this, up to twice as much)",
        most, 100 * f.core_sharing().slowdown, 1e6 * f.core_sharing().message_wait));
  else
    log_info(printed(
        "cores shared: up to %.3g threads take turns on a core; what that costs in addition to taking turns was not "
        "measured (ringtrain bench comm step on an even number of ranks of a node measures it): the range is wide",
        most));
}

void print_basis(const Forecast& f) {
  const Uncertainty& u = f.uncertainty();
  const StepMeasurement& s = f.base();
  log_info(
      printed("fitted on steps of up to %d ranks (%d a node, %d threads each, %d cores a node); nodes of %d ranks and "
              "%d cores",
              s.ranks, s.ranks_per_node, s.threads, s.cores_per_node, f.ranks_per_node(), f.cores_per_node()));
  log_info(printed("while gradients are summed, computing keeps %.0f %% of its speed (%s)", 100 * (1 - f.busy()),
                   f.busy_is_fitted() ? "fitted" : "assumed: no step of several ranks was measured"));
  log_info(printed(
      "uncertainty: passes %.1f %%, all-reduce %.0f %%, left out of fitted steps %.1f %%, jitter of a rank %.1f %%",
      100 * u.compute, 100 * u.sums, 100 * u.model, 100 * u.jitter));
  log_info(printed("left out by the model, and added: %+.1f %% of computing, %+.3f ms of a step of %d ranks",
                   100 * f.computing_excess(), 1e3 * left_out(f), s.ranks));
  if (f.network_is_assumed())
    log_warning(
        "no network was measured: the links inside a node are used instead, so the prediction may be too optimistic. "
        "Measure on two nodes, or state the network: --latency-us 5 --link-gbit 100");
  if (s.passes.size() == 1)
    log_warning(
        "only one size of pass was measured: the time of smaller passes is assumed to be proportional, so the "
        "prediction is too optimistic");
}

// Warns if a measured step was clearly faster with the data set than without it. A data set cannot make a step faster,
// so other work has disturbed the measurement.
void warn_of_contradictions(const std::vector<Preflight>& measured) {
  for (const Preflight& p : measured) {
    if (!p.has_step || p.step.input_seconds <= 0 || p.step.input_seconds > 0.8 * p.step.seconds) continue;
    log_warning(
        printed("on %d ranks, a step with the data set took %.3f ms, and a step without it %.3f ms: other work "
                "disturbed the measurement. Measure again on an idle machine, with a longer --seconds",
                p.step.ranks, 1e3 * p.step.input_seconds, 1e3 * p.step.seconds));
  }
}

}  // namespace

int predict(const PredictArguments& arguments) {
  const Experiment experiment = read_experiment(arguments.experiment.path, arguments.experiment.overrides);
  refuse_other_kinds(experiment.parallel, "predict knows the steps of a ring");
  ForecastOptions options;
  options.ranks_per_node = arguments.ranks_per_node;
  options.cores_per_node = arguments.cores_per_node;
  options.rows_per_rank = arguments.rows_per_rank;
  if (arguments.latency_us > 0 && arguments.link_gbit == 0)
    throw Error("--latency-us without --link-gbit", "state both: --latency-us 5 --link-gbit 100");
  if (arguments.link_gbit > 0) {
    const double alpha = 1e-6 * arguments.latency_us;
    options.network = {alpha, 8e-9 / arguments.link_gbit, alpha};
  }
  if (!arguments.csv.empty()) expect_output(arguments.csv, forecast_table());
  if (!arguments.json.empty()) expect_output(arguments.json, forecast_file());
  refuse_fitted(arguments.preflight, arguments.check);
  const std::vector<Preflight> measured = read_preflights(arguments.preflight),
                               held_out = read_preflights(arguments.check);
  warn_of_contradictions(measured);
  const Forecast forecast(experiment, measured, options);

  std::vector<ForecastRow> rows;
  struct Refusal {
    std::string ranks, why, advice;
  };
  std::map<Scaling, Refusal> refusals;
  for (const Scaling scaling : {Scaling::strong, Scaling::weak})
    for (const int ranks : parse_ranks(arguments.ranks)) try {
        rows.push_back(forecast.row(scaling, Topology::flat, ranks));
        if (forecast.has_hierarchical_sums(ranks)) rows.push_back(forecast.row(scaling, Topology::hierarchical, ranks));
      } catch (const Error& e) {
        Refusal& refusal = refusals[scaling];
        if (refusal.ranks.empty()) refusal.why = e.what(), refusal.advice = e.hint();
        refusal.ranks += cat(refusal.ranks.empty() ? "" : ", ", ranks);
      }
  if (rows.empty()) {
    const Refusal& first = refusals.begin()->second;
    throw Error(first.why, first.advice.empty() ? "choose other --ranks" : first.advice);
  }
  for (const Scaling scaling : {Scaling::strong, Scaling::weak}) {
    print(rows, scaling);
    if (const auto refusal = refusals.find(scaling); refusal != refusals.end())
      log_info("  not on ", refusal->second.ranks, " ranks: ", refusal->second.why);
  }
  if (experiment.parallel.shard_state)
    log_info(
        "parallel.shard_state: a reduce-scatter and an all-gather move the bytes of the ring's sum, and are predicted "
        "as that sum. The all-gather follows the update, so a step whose sums overlap with its passes takes longer "
        "than predicted");
  print_turns(forecast, rows);
  print_basis(forecast);

  std::vector<Forecast::Comparison> comparisons;
  std::vector<MeasuredPoint> points;
  const auto compare = [&](const Preflight& p, const char* how) {
    if (!p.has_step) return;
    if (p.step.model != forecast.base().model)
      throw Error(cat("a step of another model to compare with: ", p.step.model));
    const Forecast::Comparison c = comparisons.emplace_back(forecast.compare(p.step));
    // The curves are for this number of ranks per node. Measurements with other numbers are left out.
    if (c.ranks_on_node == std::min(c.ranks, forecast.ranks_per_node()))
      points.push_back({c.ranks, c.measured, static_cast<double>(p.step.rows_per_rank * p.step.ranks) / c.measured});
    log_info(printed("measured on %d ranks (%d a node), %s: %.3f ms; predicted %.3f ms (%.3f .. %.3f), off by %+.1f %%",
                     c.ranks, c.ranks_on_node, how, 1e3 * c.measured, 1e3 * c.predicted, 1e3 * c.range.low,
                     1e3 * c.range.high, 100 * (c.predicted / c.measured - 1)));
  };
  for (const Preflight& p : measured) compare(p, "fitted");
  for (const Preflight& p : held_out) compare(p, "not fitted");

  const auto write = [](const std::string& path, const OutputKind& kind, const std::string& text) {
    if (path.empty()) return;
    write_output(path, kind, text);
    log_info("wrote ", path);
  };
  write(arguments.csv, forecast_table(), csv(rows, points));
  write(arguments.json, forecast_file(), json(forecast, rows, comparisons));
  return 0;
}

}  // namespace ringtrain
