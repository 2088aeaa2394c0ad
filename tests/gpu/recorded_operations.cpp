#include "tests/gpu/recorded_operations.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ringtrain::cuda {

std::string recorded_device(const DeviceFacts& facts) {
  constexpr std::pair<const char*, int> devices[] = {{"h200", 90}, {"h100", 90}, {"a100", 80}, {"b200", 100}};
  std::string name = facts.name;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [device, capability] : devices)
    if (name.find(device) != std::string::npos) return device;
  for (const auto& [device, capability] : devices)
    if (capability == facts.compute_capability) return device;
  return "";
}

std::vector<RecordedOperation> recorded_operations(const std::string& device) {
  const char* root = std::getenv("RINGTRAIN_ROOT");
  const std::string path = cat(root == nullptr ? "." : root, "/results/cuda_plans_", device, ".csv");
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line))
    throw Error(cat(path, " cannot be read"), "Start it in the repository's folder, or set RINGTRAIN_ROOT to it.");
  std::vector<RecordedOperation> all;
  while (std::getline(in, line)) {  // columns: cudnn, description, graph, operation, answer
    std::istringstream row(line);
    std::string cudnn, description, graph, key, answer;
    std::getline(row, cudnn, ',') && std::getline(row, description, ',') && std::getline(row, graph, ',') &&
        std::getline(row, key, ',') && std::getline(row, answer);
    all.push_back({parse_operation(key), parse_answer(answer, ','), cudnn});
  }
  return all;
}

}  // namespace ringtrain::cuda
