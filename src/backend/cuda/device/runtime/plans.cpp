#include "backend/cuda/device/runtime/plans.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace ringtrain::cuda {
namespace {

constexpr int repetitions = 5;

std::string file_name(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.') c = '-';
  return text;
}

std::size_t candidates_setting() {
  const char* text = std::getenv("RINGTRAIN_PLAN_CANDIDATES");
  const long count = text == nullptr ? 1 : std::strtol(text, nullptr, 10);
  return static_cast<std::size_t>(std::clamp(count, 1L, 16L));
}

std::span<const std::uint8_t> bytes_of_text(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

PackedPlan pack_one(const CudnnPlan* plan, const std::string& why) {
  if (plan == nullptr) return {true, why};
  const std::vector<std::uint8_t> bytes = plan->serialise();
  return {false, std::string(bytes.begin(), bytes.end())};
}

}  // namespace

RuntimePlans::RuntimePlans(Device& device, cudnnHandle_t handle, const std::string& cache)
    : device_(device),
      handle_(handle),
      planner_(DnnPlanner::for_device(handle)),
      most_candidates_(candidates_setting()) {
  const DeviceFacts& facts = device.facts();
  if (!cache.empty())
    folder_ = std::filesystem::path(cache) / file_name(cat(facts.name, "-cudnn-", facts.cudnn_version));
}

const CudnnPlan* RuntimePlans::find(const DnnOperation& operation, std::string* why) {
  const auto [place, added] = known_.try_emplace(operation.key());
  if (added) place->second = make(operation);
  if (why != nullptr) *why = place->second.why;
  return place->second.plan.get();
}

PackedPlans RuntimePlans::packed() const {
  PackedPlans plans;
  for (const auto& [key, known] : known_) plans[key] = pack_one(known.plan.get(), known.why);
  return plans;
}

void RuntimePlans::take(PackedPlans plans) {
  taken_.merge(std::move(plans));
}

bool RuntimePlans::load(const DnnOperation& operation, const PackedPlan& packed, Known& known) const {
  if (packed.refused) {
    known.why = packed.content;
    return true;
  }
  known.plan = planner_.load(operation, bytes_of_text(packed.content));
  return known.plan != nullptr;
}

RuntimePlans::Known RuntimePlans::make(const DnnOperation& operation) {
  Known known;
  if (const auto taken = taken_.find(operation.key()); taken != taken_.end()) {
    if (load(operation, taken->second, known)) return known;
    if (!std::exchange(said_, true))
      log_warning("cuDNN does not take a kept plan of '", operation.key(), "': such are searched anew");
  }
  if (!folder_.empty()) {
    std::ifstream file(file_of(operation), std::ios::binary);
    const PackedPlans kept = unpack({std::istreambuf_iterator<char>(file), {}});
    if (const auto own = kept.find(operation.key()); own != kept.end() && load(operation, own->second, known))
      return known;
  }
  if (most_candidates_ == 1)
    known.plan = planner_.plan(operation, &known.why);
  else
    known.plan = fastest(planner_.candidates(operation, most_candidates_, &known.why));
  if (known.plan != nullptr) known.why.clear();
  if (!folder_.empty()) write(operation, pack_one(known.plan.get(), known.why));
  return known;
}

std::unique_ptr<CudnnPlan> RuntimePlans::fastest(std::vector<std::unique_ptr<CudnnPlan>> plans) {
  if (plans.size() <= 1) return plans.empty() ? nullptr : std::move(plans.front());
  const std::string what = cat("timing ", plans.front()->operation().key());
  std::vector<DeviceMemory> memory;
  std::vector<void*> addresses;
  float alpha = 1;
  for (const DnnTensor& tensor : plans.front()->operation().tensors()) {
    if (tensor.role == DnnRole::alpha) {
      addresses.push_back(&alpha);
      continue;
    }
    memory.emplace_back(device_, tensor.elements() * cuda::bytes_of(tensor.type), what);
    addresses.push_back(memory.back().data());
  }
  std::unique_ptr<CudnnPlan> best;
  double least = std::numeric_limits<double>::infinity();
  for (std::unique_ptr<CudnnPlan>& plan : plans) {
    const DeviceMemory workspace(device_, plan->workspace_bytes(), what);
    const double seconds =
        device_.time([&](Stream stream) { device_.run(*plan, addresses, workspace.data(), stream); }, repetitions);
    if (seconds >= least) continue;
    least = seconds;
    best = std::move(plan);
  }
  return best;
}

std::filesystem::path RuntimePlans::file_of(const DnnOperation& operation) const {
  return folder_ / cat(std::hex, graph_hash(operation), ".plan");
}

// A cache that cannot be written costs time, nothing else.
void RuntimePlans::write(const DnnOperation& operation, const PackedPlan& packed) const {
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::filesystem::path path = file_of(operation);
  const std::filesystem::path temporary = cat(path.string(), '.', gethostid(), '-', getpid());  // of this rank alone
  std::ofstream(temporary, std::ios::binary) << pack({{operation.key(), packed}});
  std::filesystem::rename(temporary, path, ignored);
}

}  // namespace ringtrain::cuda
