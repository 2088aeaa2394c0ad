// `ringtrain bench input` measures the rates of the file system and of the loaders.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/table.h"
#include "bench/benchmarks.h"
#include "run/plan.h"
#include "run/split.h"
#include "run/start.h"

namespace ringtrain {

namespace {

constexpr std::int64_t block_bytes = 4 << 20, most_bytes = std::int64_t{1} << 30;

class File {
 public:
  explicit File(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0)
      throw Error(cat(path, " cannot be opened: ", std::strerror(errno)), "every node must see the data set");
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Reads from storage if the kernel drops the file from its page cache when asked.
  std::int64_t read(std::int64_t offset, std::vector<char>& into) const {
    ::posix_fadvise(descriptor_, offset, std::ssize(into), POSIX_FADV_DONTNEED);
    const ssize_t bytes = ::pread(descriptor_, into.data(), into.size(), offset);
    if (bytes < 0) throw Error(cat(path_, " cannot be read: ", std::strerror(errno)), "check the file system");
    return bytes;
  }

 private:
  std::string path_;
  int descriptor_;
};

// Reads blocks of the data set's files in a random order that differs by rank. Returns bytes per second.
double read_rate(const DatasetIndex& index, int rank, double seconds) {
  std::vector<std::pair<std::size_t, std::int64_t>> blocks;  // shard, offset
  for (std::size_t s = 0; s < index.shards.size(); ++s)
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(index.shards[s].file_bytes); at += block_bytes)
      blocks.emplace_back(s, at);
  std::vector<char> block(block_bytes);
  std::int64_t bytes = 0;
  const double begin = now_seconds();
  double now = begin;
  for (std::uint64_t i = 0; now - begin < seconds && bytes < most_bytes; ++i) {
    const double x = random_uniform(static_cast<std::uint64_t>(rank) + 1, i);
    const auto [shard, offset] = blocks.at(static_cast<std::size_t>(x * static_cast<double>(blocks.size())));
    bytes += File(index.shards[shard].path).read(offset, block);
    now = now_seconds();
  }
  return static_cast<double>(bytes) / (now - begin);
}

// The loader of a rank. Parameter servers with ranks of their own load nothing. In a pipeline, only the first stage
// loads inputs.
struct LoadingRank {
  RunPlan plan;
  int rank = 0, ranks = 1;  // the argument of for_rank(), and the number of ranks that load
  bool loads = true;
};

// Workers of parameter servers load like a ring of as many ranks. Without this, they would wait for a server to name
// their batches.
LoadingRank loading_rank(const Experiment& experiment, const DatasetIndex& index, int rank, int ranks,
                         Backend& backend) {
  if (const std::optional<ServerPlan> servers = server_plan(experiment, ranks, backend.on_device())) {
    Experiment ring = experiment;
    ring.parallel = {};
    const int own = rank - servers->servers;
    return {make_run_plan(ring, index, nullptr, servers->workers, backend), own, servers->workers, own >= 0};
  }
  LoadingRank all{make_run_plan(experiment, index, nullptr, ranks, backend), rank, ranks, true};
  if (const auto stages = static_cast<int>(all.plan.stages()); stages > 1) {
    all.loads = rank % stages == 0;
    all.ranks = ranks / stages;
  }
  return all;
}

double loader_rate(const LoadingRank& own, const RankGroup& group, double seconds) {
  const RunPlan& plan = own.plan;
  const std::shared_ptr<const Dataset> dataset = shared_dataset(plan.train, group);
  if (!own.loads) return 0;
  Loader loader(dataset, for_rank(plan, plan.train_loader, own.rank));
  loader.seek(0, 0);
  // Batches that were prepared before the clock starts do not count.
  for (std::int64_t i = 0; i < plan.train_loader.prefetch + 1; ++i) loader.next();
  std::int64_t passes = 0;
  const double begin = now_seconds();
  double now = begin;
  while (now - begin < seconds) {
    loader.next();
    ++passes;
    now = now_seconds();
  }
  return static_cast<double>(passes * plan.batch.micro_batch) / (now - begin);
}

// Returns the sum over the ranks of each host.
std::vector<double> host_sums(const BenchContext& context, const std::vector<double>& of_rank) {
  std::vector<double> sums(context.hosts.size());
  for (std::size_t r = 0; r < of_rank.size(); ++r) sums[context.host_of(r)] += of_rank[r];
  return sums;
}

}  // namespace

void bench_input(const BenchContext& context, Preflight& result) {
  Communicator& host = *context.machine.host;
  const double seconds = context.seconds / 2;
  const DatasetIndex index = shared_index(context.experiment.data.train, host);
  host.barrier();
  const std::vector<double> reads = gather_to_0(host, read_rate(index, host.rank(), seconds));
  const LoadingRank own = loading_rank(context.experiment, index, host.rank(), host.size(), *context.machine.backend);
  host.barrier();
  const std::vector<double> samples = gather_to_0(host, loader_rate(own, context.session.job(), seconds)),
                            threads =
                                gather_to_0(host, own.loads ? static_cast<double>(own.plan.train_loader.threads) : 0);
  if (!context.root()) return;
  result.input_is_images = index.is_image();
  result.input_is_raw = index.image.raw;
  result.input_channels = index.image.channels;

  const std::vector<double> bytes_of = host_sums(context, reads), samples_of = host_sums(context, samples),
                            threads_of = host_sums(context, threads);
  log_info("input: ", index.prefix, ", every node at the same time");
  if (own.ranks < host.size())
    log_info("  ", own.ranks, " of ", host.size(), " ranks load: with parallel.kind ", context.experiment.parallel.kind,
             " the others need no inputs");
  for (std::size_t h = 0; h < context.hosts.size(); ++h) {
    result.input.push_back({context.hosts[h], bytes_of[h], samples_of[h], static_cast<int>(threads_of[h])});
    log_info("  ", context.hosts[h], ": ", readable_bytes(bytes_of[h]), "/s from the files, ",
             with_thousands(std::llround(samples_of[h])), " samples/s from the loaders");
  }
  result.add_slow_hosts(bytes_of, "reading files", false);
  if (own.ranks == host.size()) result.add_slow_hosts(samples_of, "loading samples", false);
}

InputAdvice input_advice(const NodeInput& node, double wanted) {
  InputAdvice a;
  a.samples_per_core = node.samples_per_second / std::max(1, std::min(node.loader_threads, node.cores));
  const double of_rank = wanted / node.ranks;
  a.threads_per_rank = static_cast<std::int64_t>(std::ceil(of_rank / a.samples_per_core - 1e-9));
  a.threads = a.threads_per_rank * node.ranks;
  a.free_cores = std::max(0, node.cores - node.computing_threads);
  a.loaders_do = a.threads <= a.free_cores;
  a.decoded_size = (node.image_size * 8 + 6) / 7;
  a.decoded_bytes_per_second = wanted * static_cast<double>(a.decoded_size * a.decoded_size * node.channels);
  a.files_do = a.decoded_bytes_per_second <= node.bytes_per_second;
  return a;
}

std::vector<std::string> input_advice_lines(const NodeInput& node, double wanted) {
  const auto rate = [](double samples) { return with_thousands(std::llround(samples)); };
  if (!(node.samples_per_second > 0)) return {};
  const InputAdvice a = input_advice(node, wanted);
  std::vector<std::string> lines = {cat("one loader thread on a core: ", rate(a.samples_per_core), " samples/s")};
  if (!(wanted > 0)) {
    lines.push_back("use --wanted RATE to see how many loader threads a node needs for RATE samples/s");
    return lines;
  }
  lines.push_back(cat(rate(wanted), " samples/s of a node take ", counted(a.threads, "loader thread"),
                      " (data.loader_threads: ", a.threads_per_rank, " on each of ", counted(node.ranks, "rank"), "); ",
                      a.free_cores, " of its ", counted(node.cores, "core"),
                      a.free_cores == 1 ? " is free" : " are free"));
  const std::string kind = !node.images ? "this data set"
                           : node.raw   ? "this decoded data set"
                                        : "JPEGs, decoded on its cores,";
  if (a.loaders_do) {
    lines.push_back(cat(kind, " will do"));
  } else if (!node.images || node.raw) {
    lines.push_back(cat(kind, " will not do: ", rate(a.samples_per_core * static_cast<double>(a.free_cores)),
                        " samples/s is what its free cores load"));
  } else {
    lines.push_back(cat(kind, " will not do (", rate(a.samples_per_core * static_cast<double>(a.free_cores)),
                        " samples/s): it needs a decoded data set, bin/ringtrain-data images ... --size ",
                        a.decoded_size, " --encoding raw"));
    lines.push_back(cat("which is read with ", readable_bytes(a.decoded_bytes_per_second), "/s; the files gave ",
                        readable_bytes(node.bytes_per_second), "/s",
                        a.files_do ? "" : ": too slow, unless the node's memory or a local disk holds it"));
  }
  return lines;
}

void advise_on_input(const BenchContext& context, const Preflight& result) {
  if (!context.root() || result.input.empty()) return;
  const auto slowest = std::ranges::min_element(result.input, {}, [](const InputRate& rate) {
    return rate.samples_per_second > 0 ? rate.samples_per_second : std::numeric_limits<double>::infinity();
  });
  const StepMeasurement& step = result.step;
  const auto all = static_cast<int>(std::ranges::count(context.session.hosts(), slowest->host));
  const auto ranks = std::max(1, static_cast<int>(slowest->loader_threads / context.experiment.data.loader_threads));
  const NodeInput node{.samples_per_second = slowest->samples_per_second,
                       .bytes_per_second = slowest->bytes_per_second,
                       .loader_threads = slowest->loader_threads,
                       .ranks = ranks,
                       .cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
                       .computing_threads = all * (context.machine.device ? 1 : context.threads),
                       .images = result.input_is_images,
                       .raw = result.input_is_raw,
                       .image_size = context.experiment.data.image_size,
                       .channels = result.input_channels};
  // If steps were measured, this is the rate that the ranks of the node need.
  const double of_steps = result.has_step ? static_cast<double>(step.rows_per_rank * ranks) / step.seconds : 0;
  for (const std::string& line : input_advice_lines(node, context.wanted > 0 ? context.wanted : of_steps))
    log_info("  ", line);
}

}  // namespace ringtrain
