#include "backend/cuda/program/proof.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>

#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "base/random.h"
#include "base/small_floats.h"

namespace ringtrain::cuda {

namespace {

using Values = std::vector<float>;

constexpr std::int64_t tile_rows = 128;

float read(Type type, const std::byte* from, std::size_t i) {
  if (type == Type::fp32) {
    float value;
    std::memcpy(&value, from + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from + 2 * i, 2);
  return type == Type::bf16 ? from_bf16(bits) : from_fp16(bits);
}
void write(Type type, std::byte* to, std::size_t i, float value) {
  if (type == Type::fp32) {
    std::memcpy(to + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t bits = type == Type::bf16 ? to_bf16(value) : to_fp16(value);
  std::memcpy(to + 2 * i, &bits, 2);
}

// Reduces the operation to at most two groups. Each group has just enough samples that its pixels fill whole tiles, or
// all of its samples if they are fewer.
DnnOperation small(DnnOperation o) {
  const std::int64_t rows = o.kind == DnnKind::convolution ? o.out_h() * o.out_w() : o.h * o.w;
  const std::int64_t unit = std::min(o.n / o.groups, tile_rows / std::gcd(tile_rows, rows));
  o.groups = std::min<std::int64_t>(o.groups, 2);
  o.n = unit * o.groups;
  return o;
}
DnnOperation plain(DnnOperation o) {
  o.engine = Engine::general;
  o.epilogue = Epilogue::none;
  o.prologue = Prologue::none;
  o.groups = 1;
  return o;
}

// Holds the tensors of an operation, in the device's memory and in page-locked memory of the host.
class OperationTensors {
 public:
  OperationTensors(Device& device, const DnnOperation& operation) : device_(device), described_(operation.tensors()) {
    for (std::size_t i = 0; i < described_.size(); ++i) {
      on_device_.emplace_back(device, bytes(i), "a convolution's check");
      on_host_.emplace_back(device, bytes(i));
    }
  }
  std::size_t index(DnnRole role) const {
    for (std::size_t i = 0; i < described_.size(); ++i)
      if (described_[i].role == role) return i;
    return described_.size();
  }
  bool has(DnnRole role) const { return index(role) < described_.size(); }
  std::int64_t bytes(std::size_t i) const { return described_[i].elements() * bytes_of(described_[i].type); }

  // Fills the inputs with normally distributed values. Their standard deviation is `deviation` for the weight and one
  // for all other inputs. Tensors of the same role have the same values in every operation.
  void fill(double deviation) {
    constexpr std::size_t period = 8191;  // a prime number, so that the values of pixels and channels differ
    for (std::size_t i = 0; i < described_.size(); ++i) {
      const DnnTensor& t = described_[i];
      if (t.output || t.role == DnnRole::alpha) continue;
      const double factor = t.role == DnnRole::w ? deviation : 1;
      Values values(period);
      for (std::size_t e = 0; e < period; ++e)
        values[e] = static_cast<float>(factor * random_normal(static_cast<std::uint64_t>(t.role) + 1, e));
      for (std::size_t e = 0; e < static_cast<std::size_t>(t.elements()); ++e)
        write(t.type, on_host_[i].data(), e, values[e % period]);
      copy_in(i);
    }
  }
  // Replaces the values of an input.
  void set(DnnRole role, const Values& values) {
    const std::size_t i = index(role);
    for (std::size_t e = 0; e < values.size(); ++e) write(described_[i].type, on_host_[i].data(), e, values[e]);
    copy_in(i);
  }
  std::vector<void*> addresses(float& alpha) {
    std::vector<void*> all;
    for (std::size_t i = 0; i < described_.size(); ++i)
      all.push_back(described_[i].role == DnnRole::alpha ? static_cast<void*>(&alpha) : on_device_[i].data());
    return all;
  }
  void fetch() {
    for (std::size_t i = 0; i < described_.size(); ++i)
      if (described_[i].output)
        device_.copy(on_host_[i].data(), on_device_[i].data(), bytes(i), CopyKind::to_host, device_.compute_stream());
  }
  Values values(DnnRole role) const {
    const std::size_t i = index(role);
    Values all(static_cast<std::size_t>(described_[i].elements()));
    for (std::size_t e = 0; e < all.size(); ++e) all[e] = read(described_[i].type, on_host_[i].data(), e);
    return all;
  }

 private:
  void copy_in(std::size_t i) {
    device_.copy(on_device_[i].data(), on_host_[i].data(), bytes(i), CopyKind::to_device, device_.compute_stream());
  }

  Device& device_;
  std::vector<DnnTensor> described_;
  std::vector<DeviceMemory> on_device_;
  std::deque<HostMemory<std::byte>> on_host_;
};

DnnRole result_of(const DnnOperation& o) {
  return o.kind == DnnKind::convolution ? DnnRole::y : o.kind == DnnKind::data_gradient ? DnnRole::dx : DnnRole::dw;
}

// Fills the inputs of an operation.
void fill(const DnnOperation& o, OperationTensors& tensors) {
  // A result of a convolution or of a data gradient is a sum of at most `terms` products. With this standard deviation
  // of the weights, the standard deviation of these results is about one. A weight gradient has no weights as input.
  const std::int64_t terms = o.r * o.r * (o.kind == DnnKind::convolution ? o.c : o.k);
  tensors.fill(1 / std::sqrt(static_cast<double>(terms)));
}

void compute(Device& device, const DnnPlan& plan, OperationTensors& tensors) {
  float alpha = 1;
  const DeviceMemory workspace(device, plan.workspace_bytes(), "a convolution's check");
  device.run(plan, tensors.addresses(alpha), workspace.data(), device.compute_stream());
  tensors.fetch();
  wait_for(device, device.compute_stream(), device.make_event(), {});
}

// Returns the input of the convolution after the prologue.
Values input_of(const OperationTensors& tensors) {
  Values x = tensors.values(DnnRole::x);
  const Values scale = tensors.values(DnnRole::scale), bias = tensors.values(DnnRole::bias);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t channel = i % scale.size();
    x[i] = std::max(x[i] * scale[channel] + bias[channel], 0.0f);
  }
  return x;
}

// Returns for each element whether the ReLU after the norm passes the gradient: 1 for yes, 0 for no, NaN when rounding
// decides.
Values gates(const DnnOperation& o, const OperationTensors& tensors) {
  Values open;
  if (o.epilogue == Epilogue::add_relu_sums) {
    open = tensors.values(DnnRole::output);
    for (float& value : open) value = value > 0 ? 1.0f : 0.0f;
  } else if (o.epilogue == Epilogue::relu_sums) {
    open = tensors.values(DnnRole::norm_input);
    const Values scale = tensors.values(DnnRole::scale), bias = tensors.values(DnnRole::bias);
    const std::size_t width = static_cast<std::size_t>(o.c),
                      of_group = open.size() / static_cast<std::size_t>(o.groups);
    for (std::size_t i = 0; i < open.size(); ++i) {
      const std::size_t channel = i / of_group * width + i % width;
      const float scaled = open[i] * scale[channel], output = scaled + bias[channel];
      const bool unsure = std::abs(output) <= 1e-6f * (std::abs(scaled) + std::abs(bias[channel]));
      open[i] = unsure ? NAN : output > 0 ? 1.0f : 0.0f;
    }
  }
  return open;
}

// `rounding` bounds the relative error of rounding to the stored type.
std::string compare_results(const DnnOperation& o, const OperationTensors& tensors, const Values& plain,
                            double rounding) {
  const Values result = tensors.values(result_of(o)), open = gates(o, tensors);
  const Values shortcut = tensors.has(DnnRole::shortcut) ? tensors.values(DnnRole::shortcut) : Values();
  double size = 0;
  for (const float value : plain) size = std::max(size, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < result.size(); ++i) {
    double wanted = plain[i];
    if (!shortcut.empty()) wanted += shortcut[i];
    // Both results were rounded, and fp32 sums in different orders differ slightly.
    const double tolerance = 2 * rounding * (std::abs(static_cast<double>(plain[i])) + std::abs(wanted)) + 1e-4 * size;
    const bool unsure = !open.empty() && std::isnan(open[i]);
    if (!open.empty() && !unsure) wanted *= open[i];
    const double got = result[i];
    if (std::abs(got - wanted) <= tolerance || (unsure && got == 0)) continue;  // false when one of them is NaN
    return cat("element ", i, " of the result is ", got, " where cuDNN's plain operation makes it ", wanted);
  }
  return "";
}

std::string compare_sums(const DnnOperation& o, const OperationTensors& tensors) {
  const Values result = tensors.values(result_of(o)), sums = tensors.values(DnnRole::sum);
  const Values other = o.kind == DnnKind::convolution ? result : tensors.values(DnnRole::norm_input);
  const std::size_t groups = static_cast<std::size_t>(o.groups), width = sums.size() / groups / 2;
  std::vector<double> wanted(sums.size()), size(sums.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::size_t at = i / (result.size() / groups) * 2 * width + i % width;
    const double value = result[i], product = value * static_cast<double>(other[i]);
    wanted[at] += value;
    wanted[at + width] += product;
    size[at] += std::abs(value);
    size[at + width] += std::abs(product);
  }
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (!(std::abs(static_cast<double>(sums[i]) - wanted[i]) <= 1e-5 * size[i] + 1e-6))
      return cat("sum ", i / width % 2, " of channel ", i % width, ", group ", i / width / 2, ", is ", sums[i],
                 " where the result's is ", wanted[i]);
  return "";
}

}  // namespace

std::string difference_from_plain(Device& device, const DnnOperation& operation) {
  const DnnOperation o = small(operation), beside = plain(o);
  std::string why;
  const DnnPlan* const plan = device.plan(o, &why);
  if (plan == nullptr) return cat("no plan for ", o.key(), ": ", why);
  // cuDNN may take another engine for few samples, whose result would prove nothing.
  if (const DnnPlan* const real = o.engine == Engine::specialised ? device.plan(operation) : nullptr;
      real != nullptr && real->engine() != plan->engine())
    return cat("engine ", real->engine(), " was not proved: few samples are computed by ", plan->engine());
  const DnnPlan* const other = device.plan(beside, &why);
  if (other == nullptr) return cat("no plan to compare with, for ", beside.key(), ": ", why);
  OperationTensors own(device, o), simple(device, beside);
  fill(o, own);
  fill(beside, simple);
  if (o.prologue != Prologue::none) simple.set(DnnRole::x, input_of(own));
  compute(device, *plan, own);
  compute(device, *other, simple);
  const Type stored = o.kind == DnnKind::weight_gradient ? o.result : o.type;
  const double rounding = stored == Type::bf16 ? 1.0 / 256 : stored == Type::fp16 ? 1.0 / 2048 : 1e-5;
  std::string difference = compare_results(o, own, simple.values(result_of(beside)), rounding);
  if (difference.empty() && own.has(DnnRole::sum)) difference = compare_sums(o, own);
  return difference;
}

}  // namespace ringtrain::cuda
