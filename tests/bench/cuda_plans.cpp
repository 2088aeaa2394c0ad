// Asks cuDNN for the models' plans on GPUs that are only described, and lists the fusions that the layers then choose:
//
//   make bin/ringtrain build/bench/cuda_plans
//   for d in a100 b200 h100 h200; do
//     RINGTRAIN_EXECUTABLE=bin/ringtrain build/bench/cuda_plans $d src/backend/cuda/device/recorded
//   done
//
// It replaces the rows of the GPU in plans.csv and fusions.csv. Answers in the first file for the same graph,
// description and cuDNN are kept. Each new answer takes about 0.3 s, on two threads.
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "tests/unit/cuda_models.h"
#include "tests/unit/recorded_rows.h"

namespace ringtrain::cuda {
namespace {

// Shortens cuDNN's reason for a refusal. Of a chain of reasons, the first one is the cause.
std::string with_short_reason(std::string line) {
  const std::string knobs = "\"knobChoices\":{", reason = "Reason: ", refused = ",refused,0,";
  const std::size_t begin = line.find(knobs);
  if (const std::size_t end = line.find('}', begin); begin != std::string::npos && end > begin + knobs.size())
    line.replace(begin + knobs.size(), end - begin - knobs.size(), "...");
  const std::size_t first = line.find(" Warning: ");
  const std::size_t second = first == std::string::npos ? first : line.find(" Warning: ", first + 1);
  if (second != std::string::npos) line = line.substr(0, second) + " ...";
  const std::size_t answer = line.find(refused), why = line.find(reason);
  if (answer == std::string::npos || why == std::string::npos) return line;
  return line.substr(0, answer + refused.size()) + line.substr(why + reason.size());
}

// cuDNN's version and the description's hash, with which a line of a PlanCache begins.
std::string prefix_of(const std::string& line) {
  return line.substr(0, line.find(',', line.find(',') + 1));
}

void record(const std::string& name, const std::string& folder) {
  const std::string recorded = folder + "/plans.csv", plans = cat(folder, "/plans-", name, ".csv.tmp");
  // A run that was interrupted has left its answers in this file.
  if (!std::filesystem::exists(plans))
    for (std::ofstream out(plans); const std::string& row : recorded_rows(recorded, name)) out << row << "\n";
  const std::vector<std::pair<PlannedModel, NamedPrecision>> passes = planned_passes();
  std::vector<std::vector<std::string>> lines(passes.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::string> failures(passes.size());
  const auto work = [&] {
    const DeviceDescription description = find_description(name);
    const std::unique_ptr<Device> device = make_described_device(description, plans);
    for (std::size_t i = next++; i < lines.size(); i = next++) {
      const auto& [model, precision] = passes[i];
      try {
        lines[i] = fusion_lines(*device, model, precision);
      } catch (const Error& e) {
        failures[i] = e.what();
        std::fprintf(stderr, "%s, %s: %s\n", model.name.c_str(), precision.name, e.what());
      }
      std::fprintf(stderr, "%s: %zu of %zu\n", name.c_str(), i + 1, lines.size());
    }
  };
  std::thread other(work);
  work();
  other.join();

  std::vector<std::string> fusions;
  for (const auto& part : lines) fusions.insert(fusions.end(), part.begin(), part.end());
  record_rows(folder + "/fusions.csv", fusion_header, name, "", fusions);
  // The newest answers are of the installed cuDNN and of today's description. Older ones are left out.
  std::vector<std::string> answers = read_lines(plans);
  const std::string prefix = prefix_of(answers.back());
  for (std::string& line : answers) line = with_short_reason(line);
  record_rows(recorded, plans_header, name, prefix, answers);
  std::filesystem::remove(plans);
  std::printf("%s: %zu answers, %zu choices\n", name.c_str(), answers.size(), fusions.size());
  for (const std::string& failure : failures)
    if (!failure.empty()) throw Error(failure);
}

}  // namespace
}  // namespace ringtrain::cuda

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DEVICE FOLDER\n", argv[0]);
    return 2;
  }
  try {
    ringtrain::cuda::record(argv[1], argv[2]);
    return 0;
  } catch (const ringtrain::Error& e) {
    std::fprintf(stderr, "error: %s\n  %s\n", e.what(), e.hint().c_str());
    return 1;
  }
}
