#include "tests/gpu/compared_recurrent.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/emulation/reference_rnn.h"
#include "tests/emulation/typed_memory.h"
#include "tests/gpu/compared_operation.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {
namespace {

using Bytes = std::vector<std::byte>;

std::size_t bytes_for(Type type, std::int64_t count) {
  return static_cast<std::size_t>(count * bytes_of(type));
}

// Returns normally distributed values, rounded to `type`.
Bytes random_bytes(Type type, std::int64_t count, std::uint64_t key, double size) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(size * random_normal(key, static_cast<std::uint64_t>(i))));
  Bytes bytes(bytes_for(type, count));
  store(type, bytes.data(), values);
  return bytes;
}

const RnnWeight& same_weight(const std::vector<RnnWeight>& places, const RnnWeight& as) {
  for (const RnnWeight& w : places)
    if (w.layer == as.layer && w.recurrent == as.recurrent && w.bias == as.bias && w.gate == as.gate) return w;
  throw Error(cat("the plan names no place for gate ", as.gate, " of layer ", as.layer));
}

// The memory of both passes, on the CPU or on the GPU.
struct Places {
  void *x, *h0, *c0, *dy, *weights, *y, *hn, *cn, *dx, *dweights, *workspace, *reserve;
  RnnForward forward() const { return {x, weights, h0, c0, y, hn, cn, workspace, reserve}; }
  RnnBackward backward() const { return {x, weights, h0, c0, y, dy, dx, dweights, workspace, reserve}; }
};

class OnDevice {
 public:
  void* add(const Bytes& values) {
    void* const to = add(std::ssize(values));
    device_.copy(to, values.data(), std::ssize(values), CopyKind::to_device, device_.compute_stream());
    return to;
  }
  void* add(std::int64_t bytes) {
    return memory_.emplace_back(device_, std::max<std::int64_t>(bytes, 1), "recurrent layers").data();
  }
  std::vector<float> fetch(Type type, const void* from, std::int64_t count) {
    Bytes bytes(bytes_for(type, count));
    device_.copy(bytes.data(), from, std::ssize(bytes), CopyKind::to_host, device_.compute_stream());
    wait();
    return load(type, bytes.data(), count);
  }
  void wait() {
    device_.record(end_, device_.compute_stream());
    device_.synchronize(end_, [] {});
  }

 private:
  Device& device_ = gpu();
  Event end_ = device_.make_event();
  std::vector<DeviceMemory> memory_;
};

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  return relative_difference(a.data(), b.data(), std::ssize(b));
}

}  // namespace

double ComparedRecurrent::largest() const {
  return worse(worse(output, states), worse(input_gradient, weight_gradient));
}

std::string ComparedRecurrent::text() const {
  return cat("output ", output, ", states ", states, ", input's gradient ", input_gradient, ", weights' gradient ",
             weight_gradient);
}

double rounding_of(const RnnOperation& op) {
  return op.type == Type::fp32 ? (op.math == Math::fp32 ? 1e-3 : 1e-2) : op.type == Type::bf16 ? 3e-2 : 5e-3;
}

ComparedRecurrent compare_with_loops(const RnnOperation& op) {
  Device& device = gpu();
  ComparedRecurrent result;
  const RnnPlan* plan = device.plan(op, &result.why);
  if (plan == nullptr) return result;
  result.found = true;

  const Type type = op.type;
  const std::int64_t rows = op.length * op.batch, states = op.layers * op.batch * op.hidden;
  Bytes x = random_bytes(type, rows * op.input, 1, 1), h0 = random_bytes(type, states, 2, 0.5),
        c0 = random_bytes(type, states, 3, 1), dy = random_bytes(type, rows * op.hidden, 4, 1);
  Bytes weights = random_bytes(type, weight_elements(op), 5, 1 / std::sqrt(static_cast<double>(op.hidden)));
  Bytes own_weights(static_cast<std::size_t>(plan->weight_bytes()));
  const std::vector<RnnWeight> layout = weight_layout(op);
  for (const RnnWeight& from : layout) {
    const RnnWeight& to = same_weight(plan->weights(), from);
    std::copy_n(weights.begin() + from.offset * bytes_of(type), bytes_for(type, from.count),
                own_weights.begin() + to.offset * bytes_of(type));
  }

  OnDevice memory;
  const auto bytes = [&](std::int64_t count) { return count * bytes_of(type); };
  const Places on_gpu = {memory.add(x),
                         memory.add(h0),
                         memory.add(c0),
                         memory.add(dy),
                         memory.add(own_weights),
                         memory.add(bytes(rows * op.hidden)),
                         memory.add(bytes(states)),
                         memory.add(bytes(states)),
                         memory.add(bytes(rows * op.input)),
                         memory.add(plan->weight_bytes()),
                         memory.add(plan->workspace_bytes()),
                         memory.add(plan->reserve_bytes())};
  device.run_forward(*plan, on_gpu.forward(), device.compute_stream());
  device.run_backward(*plan, on_gpu.backward(), device.compute_stream());
  memory.wait();

  Bytes y(bytes_for(type, rows * op.hidden)), hn(bytes_for(type, states)), cn(hn), dx(x.size()),
      dweights(weights.size()), workspace(1);
  std::vector<float> reserve(static_cast<std::size_t>(reserve_elements(op)));
  const Places on_cpu = {x.data(),  h0.data(), c0.data(), dy.data(),       weights.data(),   y.data(),
                         hn.data(), cn.data(), dx.data(), dweights.data(), workspace.data(), reserve.data()};
  forward(op, on_cpu.forward());
  backward(op, on_cpu.backward());

  const auto compare = [&](const void* on_device, const Bytes& host) {
    const std::int64_t count = std::ssize(host) / bytes_of(type);
    return difference(memory.fetch(type, on_device, count), load(type, host.data(), count));
  };
  result.output = compare(on_gpu.y, y);
  result.states = worse(compare(on_gpu.hn, hn), compare(on_gpu.cn, cn));
  result.input_gradient = compare(on_gpu.dx, dx);
  const std::vector<float> own = memory.fetch(type, on_gpu.dweights, plan->weight_bytes() / bytes_of(type)),
                           wanted = load(type, dweights.data(), weight_elements(op));
  std::vector<float> a, b;
  for (const RnnWeight& at : layout) {
    const RnnWeight& from = same_weight(plan->weights(), at);
    a.insert(a.end(), own.begin() + from.offset, own.begin() + from.offset + from.count);
    b.insert(b.end(), wanted.begin() + at.offset, wanted.begin() + at.offset + at.count);
  }
  result.weight_gradient = difference(a, b);
  return result;
}

}  // namespace ringtrain::cuda
