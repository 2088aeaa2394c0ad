// The CPU backend: oneDNN for matrix products, own kernels for the rest, OpenMP threads.
#include <algorithm>
#include <cmath>
#include <utility>
#include <functional>

#include "backend/cpu/image_program.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/lstm_program.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/onednn.h"
#include "base/error.h"

namespace ringtrain {

namespace cpu {

namespace {

class CpuVector : public Vector {
 public:
  CpuVector(std::int64_t size, const MemoryCount& count)
      : memory_(size * static_cast<std::int64_t>(sizeof(float)), count), size_(size) {}
  float* data() override { return reinterpret_cast<float*>(memory_.data()); }
  const float* data() const override { return reinterpret_cast<const float*>(memory_.data()); }
  std::int64_t size() const override { return size_; }

 private:
  Memory memory_;
  std::int64_t size_;
};

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(int threads) : threads_(threads), isa_(best_isa()), kernels_(kernels(isa_)) {}

  std::string describe() const override {
    return cat("CPU, ", threads_, threads_ == 1 ? " thread, " : " threads, ", isa_name(isa_), ", oneDNN ",
               onednn_version());
  }

  std::unique_ptr<Vector> make_vector(std::int64_t size, bool) override {
    return std::make_unique<CpuVector>(size, count_);
  }
  void pin(std::span<const std::byte>) override {}  // its memory is the host's
  void unpin(std::span<const std::byte>) override {}

  void copy_to_host(const Vector& from, std::int64_t offset, std::span<float> to) override {
    std::copy_n(from.data() + offset, to.size(), to.data());
  }
  void copy_from_host(std::span<const float> from, Vector& to, std::int64_t offset) override {
    std::copy_n(from.data(), from.size(), to.data() + offset);
  }

  std::unique_ptr<Program> compile(const Graph& graph, std::int64_t micro_batch, Precision precision, PassMode mode,
                                   std::int64_t group) override {
    if (precision == Precision::tf32 || precision == Precision::fp16)
      throw Error(cat("precision ", precision_name(precision), " needs a GPU"),
                  "use fp32 or bf16 on CPUs, or run where there is a GPU (machine.device: cuda)");
    if (precision == Precision::bf16 && isa_ != Isa::avx512_bf16)
      throw Error(cat("precision bf16 needs a CPU with AVX-512 BF16; this one has ", isa_name(isa_)),
                  "use precision: fp32, or run on a CPU with avx512_bf16 in /proc/cpuinfo");
    if (!graph.has_images()) return compile_lstm_program(graph, micro_batch, precision, mode, threads_, isa_, count_);
    return compile_image_program(graph, micro_batch, group == 0 ? micro_batch : group, precision, mode, threads_, isa_,
                                 count_);
  }

  std::int64_t preferred_micro_batch(const Graph& graph, Precision, const PassDemand&) override {
    if (graph.has_images()) return preferred_image_batch(graph, threads_);
    // Two blocks of 64 rows per thread: the products run at full speed and the activations stay near the cores.
    return 128 * threads_;
  }

  void start_update(const Update& update, Vector& weights, const Vector& gradients,
                    std::span<const std::unique_ptr<Vector>> state) override {
    update_ = [this, update, &weights, &gradients, state] { return updated(update, weights, gradients, state); };
  }
  UpdateResult finish_update() override { return std::exchange(update_, {})(); }

  bool on_device() const override { return false; }
  std::vector<MemoryItem> overhead() const override { return {}; }
  std::int64_t allocated_bytes() const override { return *count_; }

 private:
  UpdateResult updated(const Update& update, Vector& weights, const Vector& gradients,
                       std::span<const std::unique_ptr<Vector>> state) const {
    const double unscale = 1.0 / static_cast<double>(update.loss_scale);
    const double norm = std::sqrt(squared_norm(gradients, update.trained)) * unscale;
    if (!std::isfinite(norm)) return {norm, false};
    UpdateRule rule = update.rule;
    const double clipping = update.clip_norm > 0 && norm > update.clip_norm ? update.clip_norm / norm : 1;
    rule.gradient_scale = static_cast<float>(clipping * unscale);
    for (const UpdateRange& range : update.ranges) {
      rule.weight_decay = range.weight_decay;
      update_range(rule, range.begin, range.end, weights, gradients, state);
    }
    for (std::int64_t i = update.trained; i < weights.size(); ++i)
      weights.data()[i] = (1 - update.norm_momentum) * weights.data()[i] + update.norm_momentum * gradients.data()[i];
    if (update.program != nullptr) update.program->set_weights(weights);
    return {norm, true};
  }

  // Sum of squares in pieces of a fixed size, added in order: the result does not depend on the number of threads.
  double squared_norm(const Vector& values, std::int64_t count) const {
    const std::int64_t pieces = (count + piece - 1) / piece;
    std::vector<double> sums(static_cast<std::size_t>(pieces));
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::int64_t i = 0; i < pieces; ++i)
      sums[static_cast<std::size_t>(i)] =
          kernels_.squared_norm(std::min(piece, count - i * piece), values.data() + i * piece);
    double sum = 0;
    for (double s : sums) sum += s;
    return sum;
  }

  void update_range(const UpdateRule& rule, std::int64_t begin, std::int64_t end, Vector& weights,
                    const Vector& gradients, std::span<const std::unique_ptr<Vector>> state) const {
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::int64_t i = begin; i < end; i += piece) {
      const std::int64_t n = std::min(piece, end - i);
      if (rule.kind == OptimizerKind::sgd)
        kernels_.sgd(rule, n, weights.data() + i, gradients.data() + i, state[0]->data() + i);
      else
        kernels_.adam(rule, n, weights.data() + i, gradients.data() + i, state[0]->data() + i, state[1]->data() + i);
    }
  }

  static constexpr std::int64_t piece = 1 << 14;
  int threads_;
  Isa isa_;
  const Kernels& kernels_;
  MemoryCount count_ = std::make_shared<std::int64_t>(0);
  std::function<UpdateResult()> update_;  // that was started
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return std::make_unique<cpu::CpuBackend>(threads);
}

}  // namespace ringtrain
