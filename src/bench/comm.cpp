// `ringtrain bench comm` measures all-reduces of growing size within nodes, between nodes and over all ranks.
#include <algorithm>
#include <optional>

#include "backend/cuda/device/device.h"
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "bench/benchmarks.h"

namespace ringtrain {

namespace {

constexpr std::int64_t smallest_bytes = 4096, largest_bytes = 64 << 20;
constexpr int sums_together = 16;

// A communicator of all ranks that give the same colour, and a vector to sum. A rank with a negative colour has no
// communicator and sums nothing. All ranks must construct it together.
class Sums {
 public:
  Sums(const BenchContext& context, int colour, const std::string& algorithm) : device_(context.machine.device.get()) {
    const std::optional<RankGroup> group = context.session.job().split(colour);
    if (!group) return;
    host_ = make_mpi_communicator(*group, static_cast<std::size_t>(context.experiment.communication.chunk_kib) << 10,
                                  0x7fffffff, {.algorithm = algorithm});
    if (device_ != nullptr) {
      sums_ = make_sums(context.experiment, *device_, *host_);
      done_ = device_->make_event();
    }
    values_ = {static_cast<float*>(communicator().allocate(largest_bytes)), largest_bytes / sizeof(float)};
  }
  ~Sums() {
    if (host_) communicator().release(values_.data());
  }
  Sums(const Sums&) = delete;
  Sums& operator=(const Sums&) = delete;

  int size() const { return host_ ? host_->size() : 0; }

  // Starts `count` sums together and waits for all of them.
  void sum(std::int64_t bytes, int count) {
    if (!host_) return;
    Communicator& c = communicator();
    const auto length = static_cast<std::size_t>(bytes) / sizeof(float);
    std::vector<std::unique_ptr<Pending>> pending;
    for (int i = 0; i < count; ++i)
      pending.push_back(c.start_sum(values_.subspan(static_cast<std::size_t>(i) * length, length)));
    for (const auto& p : pending) p->finish();
    if (device_ == nullptr) return;
    device_->record(done_, device_->compute_stream());
    device_->synchronize(done_, [&c] { c.poll(); });
  }

 private:
  Communicator& communicator() { return sums_ ? *sums_ : *host_; }

  cuda::Device* device_;
  std::unique_ptr<Communicator> host_;
  std::unique_ptr<DeviceCommunicator> sums_;
  std::span<float> values_;
  cuda::Event done_;
};

double bus_bandwidth(const SumSample& s) {
  return 2.0 * (s.ranks - 1) / s.ranks * static_cast<double>(s.bytes) / s.seconds;
}

void print(const Preflight& result, double link_gbit) {
  for (const CommSample& c : result.comm) {
    if (c.sample.sums > 1) continue;
    const double bandwidth = bus_bandwidth(c.sample);
    std::string text = printed("  %-8s %4d ranks %10lld bytes %12.1f us %8.3f GB/s", c.scope.c_str(), c.sample.ranks,
                               static_cast<long long>(c.sample.bytes), c.sample.seconds * 1e6, bandwidth / 1e9);
    if (link_gbit > 0 && c.scope != "node") {
      text += printed("  %3.0f %% of the link", 100 * bandwidth * 8e-9 / link_gbit);
    }
    log_info(text);
  }
  for (const auto& [scope, f] : result.fit) {
    log_info(printed(
        "  %-8s latency %.1f us a message (%.1f us if another is under way), %.3f GB/s; the fit is within %.0f %%",
        scope.c_str(), f.alpha * 1e6, f.gap * 1e6, f.beta > 0 ? 1e-9 / f.beta : 0.0, 100 * f.error));
    if (f.beta <= 0 || (scope != "node" && scope != "network")) continue;
    log_info(printed("  communication.%s_latency_us=%.3g communication.%s_gb_s=%.3g", scope.c_str(), f.alpha * 1e6,
                     scope.c_str(), 1e-9 / f.beta),
             "  (for communication.algorithm: auto)");
  }
}

// Compares the values of communication.algorithm over all ranks.
void compare_algorithms(const BenchContext& context) {
  std::vector<std::string> algorithms = {"auto", "ring", "halving", "mpi"};
  const RankLayout layout(context.session.hosts());
  if (layout.shape().even() && layout.nodes().size() > 1) algorithms.insert(algorithms.begin() + 3, "hierarchical");
  std::string head = "  us a sum of bytes  ";
  for (const std::string& a : algorithms) head += cat(std::string(12 - std::min<std::size_t>(12, a.size()), ' '), a);
  if (context.root()) log_info("communication.algorithm: mpi is the library's own all-reduce\n", head);
  std::vector<std::unique_ptr<Sums>> sums;
  for (const std::string& algorithm : algorithms) sums.push_back(std::make_unique<Sums>(context, 0, algorithm));
  const double seconds = context.seconds / static_cast<double>(algorithms.size()) / 9;
  for (std::int64_t bytes = smallest_bytes; bytes <= largest_bytes; bytes *= 4) {
    std::string line = printed("  %18lld ", static_cast<long long>(bytes));
    for (const auto& way : sums) {
      const Runs runs = timed_runs(*context.machine.host, seconds, 200, TooSlow::give_up, [&] { way->sum(bytes, 1); });
      // "-": one sum takes longer than the time for all runs
      line += runs.of_rank.empty() ? printed("%12s", "-") : printed("%12.1f", 1e6 * runs.slowest());
    }
    if (context.root()) log_info(line);
  }
}

}  // namespace

void bench_comm(const BenchContext& context, Preflight& result) {
  Communicator& host = *context.machine.host;
  if (host.size() == 1) {
    log_info("comm: one rank, nothing to communicate");
    return;
  }
  const std::vector<std::string>& hosts = context.session.hosts();
  const auto first_of_node =
      static_cast<int>(std::find(hosts.begin(), hosts.end(), context.session.host()) - hosts.begin());
  const bool several_nodes = context.hosts.size() > 1;
  const bool alone_on_nodes = host.size() == std::ssize(context.hosts);
  struct Scope {
    std::string name;
    int colour;  // colour of this rank
  };
  std::vector<Scope> scopes;
  if (!alone_on_nodes) scopes.push_back({"node", first_of_node});
  if (several_nodes) scopes.push_back({"network", context.session.rank() == first_of_node ? 0 : -1});
  if (several_nodes && !alone_on_nodes) scopes.push_back({"all", 0});

  log_info("comm: all-reduce, bus bandwidth = 2 (p - 1) / p x bytes / seconds");
  for (const Scope& scope : scopes) {
    Sums ring(context, scope.colour, "ring");  // the link's figures are fitted to the cost of the ring
    const std::vector<int> sizes = gather_to_0(host, ring.size());
    const int ranks = context.root() ? *std::max_element(sizes.begin(), sizes.end()) : 0;
    const double seconds = context.seconds / static_cast<double>(scopes.size()) / 9;
    std::vector<double> largest;  // seconds for the largest size, per rank
    std::vector<SumSample> samples;
    const auto measure = [&](std::int64_t bytes, int sums) {
      const Runs runs = timed_runs(host, seconds, 200, TooSlow::give_up, [&] { ring.sum(bytes, sums); });
      if (runs.of_rank.empty()) return;
      samples.push_back({ranks, bytes, runs.slowest(), sums});
      if (sums == 1) largest = runs.rank_medians();
    };
    measure(smallest_bytes, sums_together);
    for (std::int64_t bytes = smallest_bytes; bytes <= largest_bytes; bytes *= 4) measure(bytes, 1);
    if (!context.root()) continue;
    for (const SumSample& s : samples) result.comm.push_back({scope.name, s});
    result.fit[scope.name] = fit_link(samples);
    if (scope.name == "node" && several_nodes)
      result.add_slow_hosts(largest_by_host(context, largest), slow_all_reduce, true);
  }
  if (context.root()) print(result, context.link_gbit);
  if (context.machine.device == nullptr) compare_algorithms(context);
}

}  // namespace ringtrain
