#include "tests/gpu/recorded_operations.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "tests/unit/recorded_rows.h"

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
  const std::string path = cat(root == nullptr ? "." : root, "/", recorded_folder, "/plans.csv");
  const std::vector<std::string> rows = recorded_rows(path, device);
  if (rows.empty())
    throw Error(cat(path, " holds no plans of ", device),
                "Start it in the repository's folder, or set RINGTRAIN_ROOT to it.");
  std::vector<RecordedOperation> all;
  for (const std::string& row : rows) {  // columns: cudnn, description, graph, operation, answer
    std::istringstream fields(row);
    std::string cudnn, description, graph, key, answer;
    std::getline(fields, cudnn, ',') && std::getline(fields, description, ',') && std::getline(fields, graph, ',') &&
        std::getline(fields, key, ',') && std::getline(fields, answer);
    all.push_back({parse_operation(key), parse_answer(answer, ','), cudnn});
  }
  return all;
}

}  // namespace ringtrain::cuda
