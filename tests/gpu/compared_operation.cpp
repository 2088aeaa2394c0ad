#include "tests/gpu/compared_operation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "tests/emulation/reference_dnn.h"
#include "tests/emulation/typed_memory.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

std::vector<float> values_of(const DnnOperation& op, const DnnTensor& tensor, std::uint64_t key) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  const bool scale = tensor.role == DnnRole::scale;
  const bool weights = tensor.role == DnnRole::w || tensor.role == DnnRole::b;
  // Weights are scaled so that convolutions, data gradients and matrix products give values of about 1. The sums of a
  // weight gradient are larger, but fp16 still holds them.
  const double terms = op.kind == DnnKind::matmul ? static_cast<double>(op.k) : static_cast<double>(op.c * op.r * op.r);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double normal = random_normal(key, i);
    values[i] = static_cast<float>(scale ? 1 + 0.2 * normal : weights ? normal / std::sqrt(terms) : normal);
    if (tensor.role == DnnRole::output) values[i] = std::max(values[i], 0.0f);  // as after a ReLU
  }
  return values;
}

// The difference of the whole tensors, or 1 when too many single elements are far off. A few may be, because a ReLU
// with an argument close to 0 may be open in one result and closed in the other.
double difference_of(const std::vector<float>& a, const std::vector<float>& b, double allowed) {
  const double whole = relative_difference(a.data(), b.data(), std::ssize(a));
  double squares = 0;
  for (const float v : b) squares += static_cast<double>(v) * v;
  const double usual = std::sqrt(squares / static_cast<double>(b.size()));
  std::size_t far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far += !(std::abs(a[i] - b[i]) <= 8 * allowed * (std::abs(b[i]) + usual));
  return far > a.size() / 100'000 ? 1 : whole;
}

}  // namespace

double rounding_of(const DnnOperation& op) {
  if (op.math == Math::tf32) return 3e-3;
  return op.type == Type::fp32 ? 2e-5 : op.type == Type::bf16 ? 6e-3 : 1.5e-3;
}

ComparedOperation compare_with_loops(const DnnOperation& op) {
  Device& device = gpu();
  const Stream stream = device.compute_stream();
  ComparedOperation outcome;
  const DnnPlan* plan = device.plan(op, &outcome.text);
  if (plan == nullptr) return outcome;
  outcome.found = true;
  outcome.text = plan->engine();

  const std::vector<DnnTensor> tensors = op.tensors();
  const DeviceMemory workspace(device, std::max<std::int64_t>(plan->workspace_bytes(), 1), "workspace");
  std::vector<DeviceMemory> memory;
  std::vector<std::vector<std::byte>> expected;
  std::vector<void*> on_gpu, on_cpu;
  float alpha = 0.5f;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].role == DnnRole::alpha) {
      on_gpu.push_back(&alpha);
      on_cpu.push_back(&alpha);
      continue;
    }
    const std::int64_t bytes = tensors[t].elements() * bytes_of(tensors[t].type);
    std::vector<std::byte>& host = expected.emplace_back(static_cast<std::size_t>(bytes), std::byte{0xff});
    if (!tensors[t].output) {
      std::vector<float> values = values_of(op, tensors[t], random_key(t + 1, RandomPurpose::sampling));
      store(tensors[t].type, host.data(), values);
    }
    on_gpu.push_back(memory.emplace_back(device, bytes, "tensor").data());
    on_cpu.push_back(host.data());
    device.copy(on_gpu.back(), host.data(), bytes, CopyKind::to_device, stream);
  }
  device.run(*plan, on_gpu, workspace.data(), stream);
  const Event end = device.make_event();
  device.record(end, stream);
  compute(op, on_cpu, alpha);
  device.synchronize(end, [] {});
  const auto fetch = [&](std::size_t t) {
    std::vector<std::byte> result(static_cast<std::size_t>(tensors[t].elements() * bytes_of(tensors[t].type)));
    device.copy(result.data(), on_gpu[t], std::ssize(result), CopyKind::to_host, stream);
    device.record(end, stream);
    device.synchronize(end, [] {});
    return result;
  };
  std::vector<std::vector<std::byte>> first(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].output) continue;
    const std::int64_t count = tensors[t].elements();
    const std::vector<std::byte>& result = first[t] = fetch(t);
    const std::vector<float> a = load(tensors[t].type, result.data(), count),
                             b = load(tensors[t].type, on_cpu[t], count);
    outcome.difference = worse(outcome.difference, difference_of(a, b, rounding_of(op)));
  }
  for (int repetition = 0; repetition < 3; ++repetition) {
    device.run(*plan, on_gpu, workspace.data(), stream);
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (tensors[t].output && fetch(t) != first[t]) outcome.same_bits = false;
  }
  return outcome;
}

}  // namespace ringtrain::cuda
