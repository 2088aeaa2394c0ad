// This file is the library: its twelve instances, which instance.cu defines, and the C functions of interface.h.
//
// In each kernel one warp group multiplies, as in CUTLASS 4.2's convolutions for Hopper. A tile of 128 x 256 would need
// all of its registers. Tiles of 128 x 64 are for results of 64 channels; two of these blocks fit on a multiprocessor
// at once.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <iterator>
#include <span>
#include <string>

#include "backend/cuda/hopper/instance.h"
#include "backend/cuda/hopper/sums.cuh"

namespace ringtrain::cuda::hopper {

#define RINGTRAIN_DECLARE(name, ...) Instance name();
RINGTRAIN_HOPPER_INSTANCES(RINGTRAIN_DECLARE)

namespace {

thread_local int refused_map = 0;  // the driver's answer for the first tensor map of a launch that it refused

std::span<const Instance> instances() {
#define RINGTRAIN_MAKE(name, ...) name(),
  static const Instance all[] = {RINGTRAIN_HOPPER_INSTANCES(RINGTRAIN_MAKE)};
  static_assert(std::size(all) <= 12);
  return all;
}

const Instance* instance(int index) {
  const std::span<const Instance> all = instances();
  return index >= 0 && index < std::ssize(all) ? &all[static_cast<std::size_t>(index)] : nullptr;
}

int fail(const std::string& text, char* why, int why_bytes) {
  if (why != nullptr && why_bytes > 0) std::snprintf(why, static_cast<std::size_t>(why_bytes), "%s", text.c_str());
  return 1;
}

std::string refused(const Instance& of, const Problem& problem) {
  if (std::string why = refusal(problem, of.description); !why.empty()) return why;
  return of.can_implement(problem) ? ""
                                   : std::string("CUTLASS's ") + of.description.name + " does not support this problem";
}

cudaError_t add_up(const Instance& of, const Problem& p, const Tensors& t, const Partials& partials,
                   const Workspace& space, cudaStream_t stream) {
  if (p.work != Work::weight_gradient) {
    const auto channels = static_cast<int>(result_channels(p));
    const on_device::ReduceTilesArguments a{partials.sum,
                                            partials.sum_other,
                                            t.sum,
                                            t.sum_other,
                                            t.sum_stride,
                                            space.sum_columns,
                                            static_cast<int>(tiles_per_group(p, of.description.tile_rows)),
                                            channels};
    const dim3 grid(static_cast<unsigned>(tiles_of(channels, on_device::reduce_channels)),
                    static_cast<unsigned>(p.groups));
    on_device::reduce_tiles<float><<<grid, on_device::reduce_channels * on_device::reduce_parts, 0, stream>>>(a);
    return cudaGetLastError();
  }
  const std::int64_t count = p.k * p.r * p.r * p.c;
  const auto splits = static_cast<int>(weight_gradient_splits(p, of.description));
  const int sharers = on_device::sharers_of(splits);
  const on_device::ReduceSplitsArguments a{partials.splits, t.result, count, splits, sharers, t.alpha};
  const auto grid = static_cast<unsigned>(tiles_of(count, 8 * on_device::reduce_threads / sharers));
  const auto launch = [&](auto kernel) { kernel<<<grid, on_device::reduce_threads, 0, stream>>>(a); };
  if (p.result == Element::fp32)
    launch(on_device::reduce_splits<float>);
  else if (p.result == Element::bf16)
    launch(on_device::reduce_splits<on_device::Bf16>);
  else
    launch(on_device::reduce_splits<on_device::Fp16>);
  return cudaGetLastError();
}

// Checks the addresses that this kind of work uses. Returns the reason when one is missing or not aligned, else "".
std::string missing(const Problem& p, const Tensors& t, const void* workspace) {
  const auto bad = [](const void* address) {
    return address == nullptr || reinterpret_cast<std::uintptr_t>(address) % 16 != 0;
  };
  const bool sums = p.work != Work::weight_gradient, recomputed = p.work == Work::gradient_sums;
  const bool adds = p.work == Work::gradient_add_sums;
  if (bad(t.activation) || bad(t.weight) || bad(t.result) || bad(workspace) ||
      (sums && (t.sum == nullptr || t.sum_other == nullptr)) || ((recomputed || adds) && bad(t.norm_input)) ||
      (recomputed && (t.scale == nullptr || t.bias == nullptr)) || (adds && (bad(t.shortcut) || bad(t.output))))
    return "an address is null, or no multiple of 16";
  return "";
}

}  // namespace

void note_tensor_map(int result) {
  if (refused_map == 0) refused_map = result;
}

Description described(const char* name, Work work, Element type, int rows, int columns, int depth, int cluster,
                      unsigned threads, int shared_bytes) {
  Description d{};
  std::snprintf(d.name, sizeof(d.name), "%s", name);
  d.work = work;
  d.type = type;
  d.tile_rows = rows;
  d.tile_columns = columns;
  d.tile_depth = depth;
  d.cluster_rows = cluster;
  d.threads = static_cast<std::int32_t>(threads);
  d.shared_bytes = shared_bytes;
  return d;
}

cudaError_t launch_clusters(const void* kernel, dim3 grid, unsigned threads, int cluster, int shared_bytes,
                            void* params, cudaStream_t stream) {
  if (refused_map != 0) return cudaErrorInvalidValue;
  // The limit is set at every launch, because it belongs to the current device. The call is cheap.
  if (const cudaError_t status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
      status != cudaSuccess)
    return status;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

extern "C" {

#define RINGTRAIN_EXPORT __attribute__((visibility("default")))

RINGTRAIN_EXPORT int ringtrain_hopper_version() {
  return interface_version;
}
RINGTRAIN_EXPORT int ringtrain_hopper_instances() {
  return static_cast<int>(instances().size());
}
RINGTRAIN_EXPORT void ringtrain_hopper_describe(int index, Description* to) {
  if (const Instance* of = instance(index); of != nullptr) *to = of->description;
}
RINGTRAIN_EXPORT int ringtrain_hopper_can_implement(int index, const Problem* problem, std::int64_t* workspace_bytes,
                                                    char* why, int why_bytes) {
  const Instance* of = instance(index);
  if (of == nullptr) return fail("there is no such instance", why, why_bytes);
  if (const std::string text = refused(*of, *problem); !text.empty()) return fail(text, why, why_bytes);
  *workspace_bytes = workspace_of(*problem, of->description).bytes;
  return 0;
}
RINGTRAIN_EXPORT int ringtrain_hopper_launch(int index, const Problem* problem, const Tensors* tensors, void* workspace,
                                             void* stream, char* why, int why_bytes) {
  const Instance* of = instance(index);
  if (of == nullptr) return fail("there is no such instance", why, why_bytes);
  if (const std::string text = refused(*of, *problem); !text.empty()) return fail(text, why, why_bytes);
  if (const std::string text = missing(*problem, *tensors, workspace); !text.empty()) return fail(text, why, why_bytes);
  const Workspace space = workspace_of(*problem, of->description);
  char* const base = static_cast<char*>(workspace);
  const Partials partials{reinterpret_cast<float*>(base + space.sum), reinterpret_cast<float*>(base + space.sum_other),
                          reinterpret_cast<float*>(base + space.splits)};
  const auto in = static_cast<cudaStream_t>(stream);
  refused_map = 0;
  cudaError_t status = of->launch(*problem, *tensors, partials, in);
  if (refused_map != 0)
    return fail(std::string(of->description.name) + ": the driver makes no tensor map for this problem (its error " +
                    std::to_string(refused_map) + ")",
                why, why_bytes);
  if (status == cudaSuccess) status = add_up(*of, *problem, *tensors, partials, space, in);
  if (status == cudaSuccess) return 0;
  return fail(std::string(of->description.name) + ": " + cudaGetErrorString(status), why, why_bytes);
}

}  // extern "C"

}  // namespace ringtrain::cuda::hopper
