#include "backend/cuda/program/operation.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ringtrain::cuda {
namespace {

// Returns the operands in the order of the operation's tensors.
std::vector<Operand> in_order(const std::string& name, const DnnOperation& operation,
                              const std::vector<Operand>& operands) {
  std::vector<Operand> ordered;
  for (const DnnTensor& tensor : operation.tensors()) {
    if (tensor.role == DnnRole::alpha) {
      ordered.push_back({DnnRole::alpha, {}});
      continue;
    }
    const auto found = std::find_if(operands.begin(), operands.end(),
                                    [&](const Operand& operand) { return operand.role == tensor.role; });
    if (found == operands.end()) throw Error(cat(name, ": ", operation.key(), " needs a tensor that was not given"));
    ordered.push_back(*found);
  }
  return ordered;
}

}  // namespace

const DnnPlan& plan_of(Device& device, const std::string& name, const DnnOperation& operation) {
  std::string why;
  const DnnPlan* plan = device.plan(operation, &why);
  if (plan == nullptr)
    throw Error(cat(name, ": cuDNN has no plan for ", operation.key(), " on ", device.facts().name, ": ", why),
                "Try another precision or version of cuDNN; sizes that are multiples of 8 have the most kernels.");
  return *plan;
}

double tensor_bytes(const DnnOperation& operation) {
  double bytes = 0;
  for (const DnnTensor& tensor : operation.tensors())
    bytes += static_cast<double>(tensor.elements() * bytes_of(tensor.type));
  return bytes;
}

void add_operation(Schedule& schedule, const DnnPlan* plan, std::string name, const DnnOperation& operation,
                   std::int64_t launches, const std::vector<Operand>& operands) {
  if (plan != nullptr) schedule.workspace(plan->workspace_bytes());
  std::vector<Access> uses = {{schedule.workspace(), true}};
  for (const Operand& operand : operands) uses.push_back({operand.tensor.storage, operand.write});
  const auto issue = [&schedule, plan, launches, ordered = in_order(name, operation, operands)](Device& d,
                                                                                                Stream stream, bool) {
    static float one = 1;
    std::vector<void*> addresses(ordered.size());
    for (std::int64_t launch = 0; launch < launches; ++launch) {
      for (std::size_t i = 0; i < ordered.size(); ++i) {
        const Operand& operand = ordered[i];
        addresses[i] = operand.role == DnnRole::alpha ? static_cast<void*>(&one)
                                                      : schedule.at<char>(operand.tensor.storage) +
                                                            operand.tensor.offset + launch * operand.step_bytes;
      }
      d.run(*plan, addresses, schedule.at(schedule.workspace()), stream);
    }
  };
  const auto times = static_cast<double>(launches);
  schedule.add({.name = std::move(name),
                .uses = std::move(uses),
                .issue = issue,
                .flops = operation.flops() * times,
                .bytes = tensor_bytes(operation) * times,
                .operation = cat(operation.key(), " x", launches)});
}

namespace {
constexpr double launch_seconds = 3e-6;  // from a kernel's last block until the next kernel fills the GPU
constexpr double tile = 128;             // rows and columns of a block's tile of the product

// Holds the sizes of the implicit matrix product: [rows, inner] x [inner, columns].
struct Product {
  double rows, columns, inner;
};
Product product_of(const DnnOperation& o) {
  const auto taps = static_cast<double>(o.r * o.r), n = static_cast<double>(o.n);
  if (o.kind == DnnKind::data_gradient)
    return {n * static_cast<double>(o.h * o.w), static_cast<double>(o.c), static_cast<double>(o.k) * taps};
  return {n * static_cast<double>(o.out_h() * o.out_w()), static_cast<double>(o.k), static_cast<double>(o.c) * taps};
}

double seconds_of(const DnnOperation& operation, const Rates& rates, double multiprocessors) {
  const Product p = product_of(operation);
  const double tiles = std::ceil(p.rows / tile) * std::ceil(p.columns / tile);
  const double tile_seconds = 2 * tile * std::min(tile, p.columns) * p.inner / (rates.flops / multiprocessors);
  return launch_seconds +
         std::max(tensor_bytes(operation) / rates.bytes, std::ceil(tiles / multiprocessors) * tile_seconds);
}

}  // namespace

double bytes_lost_to_groups(const DeviceFacts& device, const DnnOperation& group, std::int64_t launches) {
  if (launches <= 1) return 0;
  const Rates rates = rates_of(device.compute_capability, group.math);
  const double multiprocessors = std::max(1, device.multiprocessors);
  DnnOperation all = group;
  all.n *= launches;
  const double lost = static_cast<double>(launches) * seconds_of(group, rates, multiprocessors) -
                      seconds_of(all, rates, multiprocessors);
  return std::max(0.0, lost) * rates.bytes;
}

}  // namespace ringtrain::cuda
