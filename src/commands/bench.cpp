// `ringtrain bench` runs one benchmark or several, and writes what they measured.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/files.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/table.h"
#include "bench/benchmarks.h"
#include "cluster/rank_group.h"
#include "commands/commands.h"
#include "run/folder.h"
#include "run/library_versions.h"
#include "run/start.h"

namespace ringtrain {

namespace {

constexpr double noticeable_skew_seconds = 1;  // one second, because make, file times and batch systems count seconds

// Each node compares its version with that of rank 0 and prints a difference itself.
bool same_version_everywhere(const BenchContext& context) {
  Communicator& host = *context.machine.host;
  const std::string mine = version_text(), of_rank_0 = broadcast_string(host, mine, 0);
  double others = mine == of_rank_0 ? 0 : 1;
  const auto& hosts = context.session.hosts();
  const bool speaks = std::find(hosts.begin(), hosts.end(), context.session.host()) - hosts.begin() == host.rank();
  if (others > 0 && speaks)
    log_warning("this node runs another program or other libraries than rank 0:\n", mine, "rank 0 has:\n", of_rank_0);
  host.sum(std::span(&others, 1));
  return others == 0;
}

void examine_job(const BenchContext& context, Preflight& result) {
  result.version = version_text();
  result.versions_equal = same_version_everywhere(context);
  const std::vector<ClockOffset> offsets = clock_offsets(context.session.job());
  if (!context.root()) return;
  double largest = 0, accuracy = 0;
  for (std::size_t h = 0; h < offsets.size(); ++h) {
    result.clock_skew_seconds.push_back(offsets[h].seconds);
    largest = std::max(largest, std::abs(offsets[h].seconds));
    accuracy = std::max(accuracy, offsets[h].round_trip / 2);
    if (std::abs(offsets[h].seconds) > noticeable_skew_seconds)
      log_warning("the clock of ", context.hosts[h], " is ", offsets[h].seconds, " s ahead of that of ",
                  context.hosts[0], ": tell the site");
  }
  log_info(result.ranks, result.ranks == 1 ? " rank" : " ranks", " on ", context.hosts.size(),
           context.hosts.size() == 1 ? " node, each: " : " nodes, each: ", context.machine.backend->describe());
  if (context.hosts.size() == 1) return;
  log_info(printed("clocks within %.6f s (known to %.6f s); programs and libraries %s", largest, accuracy,
                   result.versions_equal ? "the same on all nodes" : "DIFFER between nodes"));
}

// Returns " layer2.0,layer4.0".
std::string describe_cuts(const PipelineTrial& trial) {
  return trial.cuts.empty() ? "" : " " + joined(trial.cuts, ",");
}

void bench_split(const BenchContext& context, const BenchArguments& arguments) {
  Machine& machine = context.machine;
  const TrainingData data = shared_data(context.experiment, *machine.host);
  const std::vector<PipelineTrial> trials =
      measure_pipelines(context.experiment, data.train, data.validation ? &*data.validation : nullptr, machine,
                        context.session.job(), context.seconds, false);
  if (!context.root()) return;
  const PipelineTrial& best = fastest(trials);
  for (const PipelineTrial& t : trials) {
    const auto bar = static_cast<std::size_t>(std::lround(20 * t.samples_per_second / best.samples_per_second));
    log_info(printed("split size %5lld x %4lld: %8.3f ms a step, %9.1f samples/s %-20s bubble %5.1f %%, cuts",
                     static_cast<long long>(t.micro_batch), static_cast<long long>(t.micro_batches), 1e3 * t.seconds,
                     t.samples_per_second, std::string(bar, '#').c_str(), 100 * t.bubble_seconds / t.seconds),
             describe_cuts(t));
  }
  log_info("fastest: batch.micro=", best.micro_batch, " parallel.cuts=[", describe_cuts(best).substr(1), "], ",
           std::llround(best.samples_per_second), " samples/s");
  if (!arguments.csv.empty())
    write_output(arguments.csv, split_table(), pipeline_csv(context.experiment, context.session.size(), trials));
}

int most_ranks_on_a_host(const std::vector<std::string>& hosts) {
  std::ptrdiff_t most = 0;
  for (const std::string& host : hosts) most = std::max(most, std::count(hosts.begin(), hosts.end(), host));
  return static_cast<int>(most);
}

}  // namespace

int bench(const BenchArguments& arguments, Session& session) {
  const std::unique_ptr<Communicator> start = make_mpi_communicator(session.job(), 1 << 16);
  Experiment experiment;
  const auto asks_for = [&](const char* kind) {
    return std::ranges::find(arguments.kinds, kind) != arguments.kinds.end();
  };
  if (!arguments.experiment.path.empty())
    experiment = shared_experiment(arguments.experiment, *start);
  else if (asks_for("utilisation"))
    experiment = small_cnn_experiment();
  const int threads = thread_count(experiment, session);
  Machine machine = make_machine(experiment, session.job(), threads);
  const BenchContext context{.session = session,
                             .experiment = experiment,
                             .machine = machine,
                             .threads = threads,
                             .seconds = arguments.seconds,
                             .link_gbit = arguments.link_gbit,
                             .wanted = arguments.wanted,
                             .hosts = distinct_hosts(session.hosts())};

  Preflight result;
  result.hosts = context.hosts;
  result.ranks = session.size();
  result.ranks_per_node = most_ranks_on_a_host(session.hosts());
  std::optional<Preflight> earlier;
  if (context.root() && !arguments.json.empty()) {
    earlier = earlier_preflight(arguments.json, result.hosts, result.ranks);
    expect_output(arguments.json, preflight_file());
  }
  if (context.root() && !arguments.csv.empty())
    expect_output(arguments.csv, asks_for("split")         ? split_table()
                                 : asks_for("utilisation") ? utilisation_table()
                                                           : components_table());
  examine_job(context, result);
  for (const std::string& kind : arguments.kinds) {
    if (kind == "start") bench_start(context);
    if (kind == "comm") bench_comm(context, result);
    if (kind == "input") bench_input(context, result);
    if (kind == "step") bench_step(context, result);
    if (kind == "split") bench_split(context, arguments);
    if (kind == "utilisation") bench_utilisation(context, arguments.limit_gib, arguments.largest, arguments.csv);
    if (kind == "components") bench_components(context, arguments.csv);
  }
  if (asks_for("input")) advise_on_input(context, result);
  if (context.root()) {
    for (const SlowHost& s : result.slow) {
      log_warning("slow node: ", s.host, ", ", s.what, ": ", printed("%.2f", s.times_median),
                  " x the median node's time");
    }
    const bool has_compared = result.has_step || !result.input.empty() ||
                              std::ranges::any_of(result.comm, [](const CommSample& s) { return s.scope == "node"; });
    if (context.hosts.size() > 2 && has_compared && result.slow.empty())
      log_info("no node is 10 % slower than the median");
    if (!arguments.json.empty()) {
      if (earlier) result.keep_from(*earlier);
      write_output(arguments.json, preflight_file(), result.to_json());
      log_info("wrote ", arguments.json);
    }
  }
  machine.host->barrier();
  return 0;
}

}  // namespace ringtrain
