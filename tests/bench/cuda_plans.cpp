// Which plans cuDNN makes for the models' layers on GPUs that are only described: writes results/cuda_plans_DEVICE.csv.
//
//   make bin/ringtrain build/bench/cuda_plans
//   RINGTRAIN_EXECUTABLE=bin/ringtrain build/bench/cuda_plans h200 results/cuda_plans_h200.csv [processes]
//
// Rows that the file has for the same graph and cuDNN are kept; the rest takes about 0.3 s a row, and stays in
// build/cudnn-plans.txt as it comes.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "backend/cuda/described_device.h"
#include "tests/unit/cuda_plan_table.h"

namespace ringtrain::cuda {
namespace {

int write_table(const std::string& device, const std::string& path, std::size_t processes) {
  const DeviceDescription description = find_description(device);
  const LayerOperations operations = model_operations();
  const PlanTable kept = read_plan_table(path);
  PlanCache cache("build/cudnn-plans.txt", description.json);  // of a run that was ended before
  std::vector<PlanRow> rows(operations.all().size());
  std::string version;
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  const auto work = [&] {
    PlanProcess process(description.name, description.json);
    {
      const std::lock_guard lock(mutex);
      version = process.cudnn_version();
    }
    for (std::size_t i = next++; i < rows.size(); i = next++) {
      if (i % 50 == 0) std::fprintf(stderr, "%s: %zu of %zu\n", device.c_str(), i, rows.size());
      const DnnOperation& operation = operations.all()[i].operation;
      PlanRow& row = rows[i];
      row.key = operation.key();
      row.graph = process.hash(operation);
      const PlanRow* old = kept.find(row.key);
      const bool same = old != nullptr && old->graph == row.graph && kept.cudnn == process.cudnn_version();
      if (same) {
        row.answer = old->answer;
        continue;
      }
      {
        const std::lock_guard lock(mutex);
        if (const PlanAnswer* known = cache.find(process.cudnn_version(), row.graph, row.key)) {
          row.answer = *known;
          continue;
        }
      }
      row.answer = process.plan(operation);
      const std::lock_guard lock(mutex);
      cache.add(process.cudnn_version(), row.graph, row.key, row.answer);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < processes; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();

  std::size_t found = 0;
  std::ofstream out(path);
  out << "# cuDNN's plans for the models' layers on a described " << device << "; made by: build/bench/cuda_plans "
      << device << " " << path << "\n# cuDNN " << version
      << "\noperation,graph,answer,workspace_bytes,engine or reason\n";
  for (const PlanRow& row : rows) {
    out << plan_table_row(row) << "\n";
    found += row.answer.found;
  }
  std::printf("%s: %zu operations, %zu with a plan\n", path.c_str(), rows.size(), found);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace ringtrain::cuda

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s DEVICE FILE.csv [processes]\n", argv[0]);
    return 2;
  }
  try {
    return ringtrain::cuda::write_table(argv[1], argv[2], argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 2);
  } catch (const ringtrain::Error& e) {
    std::fprintf(stderr, "error: %s\n  %s\n", e.what(), e.hint().c_str());
    return 1;
  }
}
