#include "backend/cuda/backend.h"

#include <algorithm>

#include "backend/cuda/device/described.h"
#include "backend/cuda/image/program.h"
#include "backend/cuda/lstm/program.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/update.h"
#include "backend/cuda/program/vector_operations.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

class CudaBackend : public Backend {
 public:
  CudaBackend(Device& device, BackendOptions options)
      : device_(device),
        options_(std::move(options)),
        updater_(make_updater(device, options_.poll)),
        finished_(device.make_event()) {
    if (options_.fusions == nullptr) options_.fusions = &own_fusions_;
  }

  std::string describe() const override {
    const DeviceFacts& facts = device_.facts();
    const int capability = facts.compute_capability;
    return cat(facts.name, ", compute capability ", capability / 10, ".", capability % 10, ", ", facts.multiprocessors,
               " multiprocessors, CUDA ", facts.cuda_version, ", cuDNN ", facts.cudnn_version);
  }

  std::unique_ptr<Vector> make_vector(std::int64_t size, bool reduced) override {
    return make_device_vector(device_, size, reduced ? options_.reduced : ReducedMemory(), reduced_bytes_);
  }

  void pin(std::span<const std::byte> memory) override {
    device_.pin(const_cast<std::byte*>(memory.data()), std::ssize(memory));
  }
  void unpin(std::span<const std::byte> memory) override { device_.unpin(const_cast<std::byte*>(memory.data())); }

  void copy_to_host(const Vector& from, std::int64_t offset, std::span<float> to) override {
    copy(to.data(), from.data() + offset, std::ssize(to), CopyKind::to_host);
  }
  void copy_from_host(std::span<const float> from, Vector& to, std::int64_t offset) override {
    copy(to.data() + offset, from.data(), std::ssize(from), CopyKind::to_device);
  }
  void copy(const Vector& from, Vector& to) override {
    device_.copy(to.data(), from.data(), size_in_bytes<float>(from.size()), CopyKind::on_device,
                 device_.compute_stream());
  }
  void add(std::span<const Vector* const> from, ElementRange range, Vector& to, std::uintptr_t stream) override {
    if (range.begin >= range.end) return;
    for (const Vector* vector : from)
      device_.launch(launch_of(Type::fp32, AddArguments{.a = to.data() + range.begin,
                                                        .b = vector->data() + range.begin,
                                                        .y = to.data() + range.begin,
                                                        .count = range.end - range.begin}),
                     stream != 0 ? Stream{stream} : device_.compute_stream());
  }

  std::unique_ptr<Program> compile(const Graph& graph, std::int64_t micro_batch, Precision precision, PassMode mode,
                                   std::int64_t group, int slots) override {
    expect_precision(precision);
    if (!graph.has_images()) return make_lstm_program(device_, options_, graph, micro_batch, precision, mode, slots);
    return make_image_program(device_, options_, graph, micro_batch, group == 0 ? micro_batch : group, precision, mode,
                              slots);
  }

  std::int64_t preferred_micro_batch(const Graph& graph, Precision precision, const PassDemand& demand) override {
    // free_bytes excludes CUDA's context, which exists already.
    const std::int64_t room = device_.facts().free_bytes - demand.vector_bytes - nccl_estimate_bytes;
    return largest_micro_batch(demand, room, least_bytes_per_sample(graph, precision),
                               [&](std::int64_t samples) { return program_bytes(graph, samples, precision, demand); });
  }

  double measure_matrix_rate(Precision) override { return 0; }

  bool on_device() const override { return true; }
  std::vector<MemoryItem> overhead() const override {
    return {{"CUDA's context and kernels (estimate)", context_estimate_bytes},
            {"NCCL's channels (estimate)", nccl_estimate_bytes}};
  }

  // CUDA's context exists already, so free_bytes excludes it.
  std::int64_t device_bytes() const override { return device_.facts().free_bytes + context_estimate_bytes; }

  std::unique_ptr<RangeNorms> make_range_norms(std::span<const ElementRange> ranges) override {
    return std::make_unique<DeviceRangeNorms>(device_, options_.poll, ranges, norm_bytes_);
  }
  std::unique_ptr<NormTotal> make_norm_total() override { return make_device_norm_total(device_, norm_bytes_); }
  std::unique_ptr<Checksums> make_checksums(std::span<const ChecksumRange> ranges) override {
    return make_device_checksums(device_, options_.poll, ranges, norm_bytes_);
  }
  std::unique_ptr<Orthogonalizer> make_orthogonalizer(std::span<const MatrixRange> matrices) override {
    return make_device_orthogonalizer(device_, options_.poll, matrices, norm_bytes_);
  }
  void queue_update(const Update& update, Vector& weights, const Vector& gradients,
                    std::span<const std::unique_ptr<Vector>> state) override {
    const ProgramBase* program =
        update.program == nullptr ? nullptr : &dynamic_cast<const ProgramBase&>(*update.program);
    updater_->start(update, program, weights, gradients, state);
  }
  UpdateResult finish_update() override { return updater_->finish(); }

  std::int64_t allocated_bytes() const override {
    return device_.allocated_bytes() - updater_->bytes() - *norm_bytes_ + *reduced_bytes_;
  }

 private:
  // Copies between host and device and blocks until the copy is done. Then the caller may use its memory again.
  void copy(void* to, const void* from, std::int64_t count, CopyKind kind) {
    const Stream stream = device_.compute_stream();
    device_.copy(to, from, size_in_bytes<float>(count), kind, stream);
    wait_for(device_, stream, finished_, options_.poll);
  }

  std::int64_t program_bytes(const Graph& graph, std::int64_t micro_batch, Precision precision,
                             const PassDemand& demand) {
    std::int64_t bytes = 0;
    const bool lives[] = {true, demand.evaluates, demand.measures_norms};
    for (const PassMode mode : {PassMode::training, PassMode::inference, PassMode::statistics})
      if (lives[static_cast<int>(mode)])
        for (const MemoryItem& item : compile(graph, micro_batch, precision, mode, demand.group, 1)->memory())
          bytes += item.bytes;
    return bytes;
  }

  void expect_precision(Precision precision) const {
    const DeviceFacts& facts = device_.facts();
    const bool volta = facts.compute_capability >= 70, ampere = facts.compute_capability >= 80;
    if (precision == Precision::fp32 || (precision == Precision::fp16 ? volta : ampere)) return;
    throw Error(cat("precision ", precision_name(precision), " needs a GPU of compute capability ",
                    precision == Precision::fp16 ? "7.0" : "8.0", " or later; ", facts.name, " has ",
                    facts.compute_capability / 10, ".", facts.compute_capability % 10),
                "use precision: fp32");
  }

  Device& device_;
  BackendOptions options_;
  FusionTable own_fusions_;
  std::unique_ptr<Updater> updater_;
  Event finished_;
  std::shared_ptr<std::int64_t> reduced_bytes_ = std::make_shared<std::int64_t>(0);
  std::shared_ptr<std::int64_t> norm_bytes_ = std::make_shared<std::int64_t>(0);
};

}  // namespace

std::unique_ptr<Backend> make_backend(Device& device, BackendOptions options) {
  return std::make_unique<CudaBackend>(device, std::move(options));
}

}  // namespace ringtrain::cuda
