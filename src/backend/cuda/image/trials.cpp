#include "backend/cuda/image/trials.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// Hands out places one behind the other; without a base it only counts.
class Places {
 public:
  explicit Places(char* base = nullptr) : base_(base) {}
  template <class T = void>
  T* take(std::int64_t bytes) {
    char* place = base_ + used_;
    used_ += round_up(bytes, Schedule::alignment);
    return reinterpret_cast<T*>(place);
  }
  std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

// `make` lays its tensors out in Places; it is asked once without memory, for the bytes.
template <class Make>
TrialPart kernel_trial(const Make& make) {
  Places count;
  make(count);
  return {count.used(), [make](Device& device, Stream stream, char* scratch) {
            Places places(scratch);
            device.launch(make(places), stream);
          }};
}

struct NormShape {
  Type type;
  std::int64_t bytes, mask_bytes, factor_bytes, rows_per_group;
  int groups, channels, blocks;
  NormShape(const ImageContext& c, const Value& x, Kernel sums = Kernel::norm_sums)
      : type(c.type),
        bytes(c.bytes(x)),
        mask_bytes(c.samples * x.elements() / 8),
        factor_bytes(c.groups() * x.width * bytes_of(Type::fp32)),
        rows_per_group(c.group * x.pixels()),
        groups(static_cast<int>(c.groups())),
        channels(static_cast<int>(x.width)),
        blocks(norm_blocks(c.device->facts().size(), sums, type, rows_per_group, groups, channels)) {}
};

}  // namespace

TrialPart operation_trial(const ImageContext& context, const DnnOperation& operation) {
  const DnnPlan* plan = context.device->plan(operation);
  if (plan == nullptr) throw Error(cat("a trial of ", operation.key(), ", which has no plan"));
  struct Part {
    std::int64_t offset, step;
  };
  const std::int64_t launches = operation.kind == DnnKind::matmul ? 1 : context.samples / operation.n;
  std::vector<Part> parts;
  Places places;
  for (const DnnTensor& tensor : operation.tensors()) {
    const std::int64_t bytes = tensor.elements() * bytes_of(tensor.type);
    const bool per_sample = operation.kind != DnnKind::matmul && tensor.dimensions[0] == operation.n &&
                            tensor.role != DnnRole::w && tensor.role != DnnRole::dw;
    const std::int64_t step = per_sample ? bytes : 0;
    parts.push_back({tensor.role == DnnRole::alpha ? -1 : places.used(), step});
    places.take(per_sample ? launches * bytes : bytes);
  }
  const std::int64_t workspace = places.used();
  places.take(plan->workspace_bytes());
  return {places.used(), [=](Device& device, Stream stream, char* scratch) {
            static float one = 1;
            std::vector<void*> addresses(parts.size());
            for (std::int64_t launch = 0; launch < launches; ++launch) {
              for (std::size_t i = 0; i < parts.size(); ++i)
                addresses[i] =
                    parts[i].offset < 0 ? &one : static_cast<void*>(scratch + parts[i].offset + launch * parts[i].step);
              device.run(*plan, addresses, scratch + workspace, stream);
            }
          }};
}

TrialPart norm_sums_trial(const ImageContext& context, const Value& x) {
  return kernel_trial([s = NormShape(context, x)](Places& places) {
    return launch_of(s.type, NormSumsArguments{.x = places.take(s.bytes),
                                               .partial = places.take<float>(2 * s.blocks * s.factor_bytes),
                                               .rows_per_group = s.rows_per_group,
                                               .groups = s.groups,
                                               .channels = s.channels,
                                               .blocks = s.blocks});
  });
}

TrialPart norm_apply_trial(const ImageContext& context, const Value& x, bool mask) {
  return kernel_trial([mask, s = NormShape(context, x)](Places& places) {
    return launch_of(s.type, NormApplyArguments{.x = places.take(s.bytes),
                                                .other = nullptr,
                                                .scale = places.take<float>(s.factor_bytes),
                                                .bias = places.take<float>(s.factor_bytes),
                                                .other_scale = nullptr,
                                                .other_bias = nullptr,
                                                .y = places.take(s.bytes),
                                                .mask = mask ? places.take<std::uint8_t>(s.mask_bytes) : nullptr,
                                                .rows_per_group = s.rows_per_group,
                                                .groups = s.groups,
                                                .channels = s.channels,
                                                .relu = true});
  });
}

TrialPart norm_backward_sums_trial(const ImageContext& context, const Value& x) {
  return kernel_trial([s = NormShape(context, x, Kernel::norm_backward_sums)](Places& places) {
    return launch_of(s.type, NormBackwardSumsArguments{.dy = places.take(s.bytes),
                                                       .x = places.take(s.bytes),
                                                       .other = nullptr,
                                                       .mask = places.take<std::uint8_t>(s.mask_bytes),
                                                       .partial = places.take<float>(2 * s.blocks * s.factor_bytes),
                                                       .rows_per_group = s.rows_per_group,
                                                       .groups = s.groups,
                                                       .channels = s.channels,
                                                       .blocks = s.blocks});
  });
}

TrialPart add_trial(const ImageContext& context, const Value& x) {
  return kernel_trial([type = context.type, count = context.samples * x.elements()](Places& places) {
    const std::int64_t bytes = count * bytes_of(type);
    return launch_of(
        type, AddArguments{.a = places.take(bytes), .b = places.take(bytes), .y = places.take(bytes), .count = count});
  });
}

std::function<void(Device&, Stream)> trial(std::function<std::vector<TrialPart>()> make_parts) {
  struct State {
    std::vector<TrialPart> parts;
    DeviceMemory scratch;
  };
  auto state = std::make_shared<State>();
  return [make_parts = std::move(make_parts), state](Device& device, Stream stream) {
    if (state->parts.empty()) {
      state->parts = make_parts();
      std::int64_t bytes = 0;
      for (const TrialPart& part : state->parts) bytes += part.bytes;
      state->scratch = DeviceMemory(device, bytes, "a trial of fused kernels");
    }
    char* place = state->scratch.data<char>();
    for (const TrialPart& part : state->parts) {
      part.run(device, stream, place);
      place += part.bytes;
    }
  };
}

}  // namespace ringtrain::cuda
