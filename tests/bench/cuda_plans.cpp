// Asks cuDNN for the models' plans on GPUs that are only described, and lists the fusions that the layers then choose:
//
//   make bin/ringtrain build/bench/cuda_plans
//   for d in a100 b200 h100 h200; do
//     RINGTRAIN_EXECUTABLE=bin/ringtrain build/bench/cuda_plans $d results
//   done
//
// It writes results/cuda_plans_DEVICE.csv and results/cuda_fusions_DEVICE.csv. Answers in the first file for the same
// graph, description and cuDNN are kept. Each new answer takes about 0.3 s, on two threads.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "tests/unit/cuda_models.h"

namespace ringtrain::cuda {
namespace {

// Shortens cuDNN's reason for a refusal. Of a chain of reasons, the first one is the cause.
std::string with_short_reason(std::string line) {
  const std::string knobs = "\"knobChoices\":{";
  const std::size_t begin = line.find(knobs);
  if (const std::size_t end = line.find('}', begin); begin != std::string::npos && end > begin + knobs.size())
    line.replace(begin + knobs.size(), end - begin - knobs.size(), "...");
  const std::size_t first = line.find(" Warning: ");
  const std::size_t second = first == std::string::npos ? first : line.find(" Warning: ", first + 1);
  return second == std::string::npos ? line : line.substr(0, second) + " ...";
}

void write_lines(const std::string& path, const char* header, const std::vector<std::string>& lines) {
  std::filesystem::remove(path);  // a link to another GPU's equal table becomes a file
  std::ofstream out(path);
  out << header << "\n";
  for (const std::string& line : lines) out << line << "\n";
  if (!out.flush()) throw Error(cat("cannot write ", path));
}

void record(const std::string& name, const std::string& folder) {
  const std::string plans = cat(folder, "/cuda_plans_", name, ".csv");
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
  write_lines(cat(folder, "/cuda_fusions_", name, ".csv"), fusion_header, fusions);
  // Two threads may have asked the same question, and the order of the answers is random.
  std::vector<std::string> answers = read_lines(plans);
  for (std::string& line : answers) line = with_short_reason(line);
  std::sort(answers.begin(), answers.end());
  answers.erase(std::unique(answers.begin(), answers.end()), answers.end());
  std::erase(answers, plan_cache_header);
  write_lines(plans, plan_cache_header, answers);
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
