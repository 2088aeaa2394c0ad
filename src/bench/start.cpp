// `ringtrain bench start` measures what the ranks of a job read and keep in memory before they can train.
#include "run/start.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/table.h"
#include "bench/benchmarks.h"
#include "data/image_dataset.h"
#include "data/text_dataset.h"

namespace ringtrain {
namespace {

// Returns the seconds since this process began.
double process_seconds() {
  std::string text = file_text("/proc/self/stat");
  text.erase(0, text.rfind(')') + 1);  // the name may contain anything
  std::istringstream fields(text);
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // proc(5): the 22nd is starttime, in ticks since the machine started
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Returns the memory of this process. A page that k processes share counts as 1/k (proc(5), smaps_rollup: Pss).
double resident_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  double kib = 0;
  while (file >> word)
    if (word == "Pss:" && file >> kib) break;
  return 1024 * kib;
}

// Reads all that a data set keeps in memory: the tables of images, or the text.
void touch_all(const Dataset& dataset) {
  const DatasetIndex& index = dataset.index();
  if (const auto* images = dynamic_cast<const ImageDataset*>(&dataset)) {
    for (const DatasetIndex::Shard& shard : index.shards)
      if (shard.count > 0) images->record(shard.first);
    return;
  }
  const auto& text = dynamic_cast<const TextDataset&>(dataset);
  const std::int64_t row = index.text.running_text ? 1 : index.text.context_length + 1;
  std::vector<std::uint8_t> piece(static_cast<std::size_t>(index.text.crc_block_bytes));
  for (std::int64_t at = 0; at < index.total * row; at += std::ssize(piece))
    text.read_text(at,
                   std::span(piece).first(std::min(piece.size(), static_cast<std::size_t>(index.total * row - at))));
}

// Measures one way to keep the data sets, on all ranks at the same time.
template <class Make>
void measure(const BenchContext& context, const TrainingData& data, const char* way, const Make& make) {
  Communicator& host = *context.machine.host;
  host.barrier();
  const double resident = resident_bytes(), begin = now_seconds();
  std::vector<std::shared_ptr<const Dataset>> datasets = {make(data.train)};
  if (data.validation) datasets.push_back(make(*data.validation));
  const double made = now_seconds();
  for (const auto& dataset : datasets) touch_all(*dataset);
  const double touched = now_seconds();
  host.barrier();  // all ranks have mapped the shared memory
  double read = 0;
  for (const auto& dataset : datasets) read += static_cast<double>(dataset->bytes_read());
  const std::vector<double> making = gather_to_0(host, made - begin), reading = gather_to_0(host, touched - made),
                            bytes = gather_to_0(host, read), kept = gather_to_0(host, resident_bytes() - resident);
  host.barrier();
  if (!context.root()) return;
  log_info(printed(
      "start: %-22s made in %.3f s, read in %.3f s (slowest rank); %.3f MB read and %.3f MB more memory in "
      "all, %.3f MB read by the rank that reads most",
      way, std::ranges::max(making), std::ranges::max(reading), 1e-6 * std::accumulate(bytes.begin(), bytes.end(), 0.0),
      1e-6 * std::accumulate(kept.begin(), kept.end(), 0.0), 1e-6 * std::ranges::max(bytes)));
}

}  // namespace

void bench_start(const BenchContext& context) {
  Communicator& host = *context.machine.host;
  const std::vector<double> started = gather_to_0(host, process_seconds());
  const double begin = now_seconds();
  const TrainingData data = shared_data(context.experiment, host);
  const std::vector<double> headers = gather_to_0(host, now_seconds() - begin);
  if (context.root())
    log_info(
        printed("start: %d ranks on %zu nodes: %.3f s from the first process to here, headers of the data sets %.3f s",
                host.size(), context.hosts.size(), std::ranges::max(started), std::ranges::max(headers)));
  measure(context, data, "one copy for a node:", [&](const DatasetIndex& index) {
    return shared_dataset(index, context.session.job());
  });
  measure(context, data, "a copy of each rank:", [](const DatasetIndex& index) { return make_dataset(index); });
}

}  // namespace ringtrain
