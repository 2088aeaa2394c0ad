#include "backend/cpu/backend.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/cpu/kernels.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/vector_operations.h"
#include "base/error.h"

namespace ringtrain {

namespace cpu {

CpuProgram::CpuProgram(const Graph& graph, const CompileOptions& options, MemoryCount count)
    : parameters_(graph.parameters()),
      mode_(options.mode),
      threads_(options.threads),
      schedule_(options.micro_batch, options.threads, options.slots),
      count_(std::move(count)),
      kept_(static_cast<std::size_t>(options.slots)) {
  const TeamSize team(threads_);
  const bool training = mode_ == PassMode::training;
  const OperationContext context{.schedule = &schedule_,
                                 .parameters = &parameters_,
                                 .kernels = &kernels(options.isa),
                                 .pass = &pass_,
                                 .training = training,
                                 .bf16 = options.precision == Precision::bf16};
  operations_ = make_operations(graph, options, context);
  const std::size_t count_of_operations = operations_.all.size();
  for (std::size_t i = 0; i < count_of_operations; ++i) {
    schedule_.enter(operations_.blocks[i]);
    operations_.all[i]->forward_steps();
  }
  schedule_.begin_backward();
  for (std::size_t i = training ? count_of_operations : 0; i-- > 0;) {
    schedule_.enter(operations_.blocks[i]);
    operations_.all[i]->backward_steps();
  }
  schedule_.prepare();
  schedule_.plan(parameters_);
}

std::vector<MemoryItem> CpuProgram::memory() const {
  std::int64_t lasting = 0;
  for (const ArenaPlan::Item& item : schedule_.arena().items())
    if (item.first < 0) lasting += item.bytes;
  const std::string pass = pass_name(mode_);
  return {{pass + ": weights' own copies and scratch", lasting},
          {pass + ": activations and gradients of a micro-batch", schedule_.arena().bytes() - lasting}};
}

void CpuProgram::allocate() {
  const TeamSize team(threads_);
  memory_ = Memory(schedule_.arena().bytes(), count_);
  schedule_.bind(memory_.data());
  for (auto& operation : operations_.all) operation->bind();
}

void CpuProgram::set_weights(const Vector& weights) {
  const TeamSize team(threads_);
  for (auto& operation : operations_.all) operation->set_weights(weights.data());
}

void CpuProgram::select(int slot) {
  if (slot == slot_) return;
  kept_[static_cast<std::size_t>(slot_)] = pass_;
  pass_ = kept_[static_cast<std::size_t>(slot)];
  slot_ = slot;
  schedule_.bind(memory_.data(), slot);
}

void CpuProgram::forward(const PassContext& context) {
  const TeamSize team(threads_);
  pass_ = Pass{.input = staged_, .context = context, .traffic = traffic_};
  schedule_.run(nullptr);
  sums_ += pass_.sums;
}

void CpuProgram::backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) {
  const TeamSize team(threads_);
  pass_.traffic = traffic_;
  pass_.gradients = gradients.data();
  pass_.accumulate = accumulate;
  pass_.poll = hooks.poll;
  schedule_.run(&hooks);
}

std::vector<float> CpuProgram::statistics() const {
  std::vector<float> all(static_cast<std::size_t>(parameters_.size() - parameters_.trained()));
  for (const auto& operation : operations_.all) operation->copy_statistics(all, parameters_.trained());
  return all;
}

namespace {

class CpuVector : public Vector {
 public:
  CpuVector(std::int64_t size, ReducedMemory reduced, MemoryCount count)
      : Vector(size), reduced_(std::move(reduced)), count_(std::move(count)) {
    if (reduced_.allocate) {
      data_ = static_cast<float*>(reduced_.allocate(bytes()));
      *count_ += bytes();
    } else {
      own_ = Memory(bytes(), count_);
      data_ = reinterpret_cast<float*>(own_.data());
    }
  }
  ~CpuVector() override {
    if (!reduced_.allocate) return;
    reduced_.release(data_);
    *count_ -= bytes();
  }

 private:
  ReducedMemory reduced_;
  MemoryCount count_;
  Memory own_;  // if `reduced_` is empty
};

// The arguments of queue_update(). They wait until all gradients are summed.
struct QueuedUpdate {
  Update update;
  Vector& weights;
  const Vector& gradients;
  std::span<const std::unique_ptr<Vector>> state;
};

class CpuBackend : public Backend {
 public:
  CpuBackend(int threads, ReducedMemory reduced)
      : threads_(threads), isa_(best_isa()), kernels_(kernels(isa_)), reduced_(std::move(reduced)) {}

  std::string describe() const override {
    return cat("CPU, ", threads_, threads_ == 1 ? " thread, " : " threads, ", isa_name(isa_), ", oneDNN ",
               onednn_version());
  }

  std::unique_ptr<Vector> make_vector(std::int64_t size, bool reduced) override {
    return std::make_unique<CpuVector>(size, reduced ? reduced_ : ReducedMemory(), count_);
  }
  void pin(std::span<const std::byte>) override {}  // the CPU's memory is host memory
  void unpin(std::span<const std::byte>) override {}

  void copy_to_host(const Vector& from, std::int64_t offset, std::span<float> to) override {
    std::copy_n(from.data() + offset, to.size(), to.data());
  }
  void copy_from_host(std::span<const float> from, Vector& to, std::int64_t offset) override {
    std::copy_n(from.data(), from.size(), to.data() + offset);
  }
  void copy(const Vector& from, Vector& to) override {
    for_pieces({0, from.size()}, [&](const RangePiece& piece) {
      std::copy_n(from.data() + piece.begin, piece.count, to.data() + piece.begin);
    });
  }
  void add(std::span<const Vector* const> from, ElementRange range, Vector& to, std::uintptr_t) override {
    for_pieces(range, [&](const RangePiece& piece) {
      for (const Vector* vector : from)
        kernels_.add(piece.count, vector->data() + piece.begin, to.data() + piece.begin);
    });
  }

  std::unique_ptr<Program> compile(const Graph& graph, std::int64_t micro_batch, Precision precision, PassMode mode,
                                   std::int64_t group, int slots) override {
    if (precision == Precision::tf32 || precision == Precision::fp16)
      throw Error(cat("precision ", precision_name(precision), " needs a GPU"),
                  "use fp32 or bf16 on CPUs, or run where there is a GPU (machine.device: cuda)");
    if (precision == Precision::bf16 && isa_ != Isa::avx512_bf16)
      throw Error(cat("precision bf16 needs a CPU with AVX-512 BF16; this one has ", isa_name(isa_)),
                  "use precision: fp32, or run on a CPU with avx512_bf16 in /proc/cpuinfo");
    return std::make_unique<CpuProgram>(graph,
                                        CompileOptions{.micro_batch = micro_batch,
                                                       .group = group == 0 ? micro_batch : group,
                                                       .precision = precision,
                                                       .mode = mode,
                                                       .threads = threads_,
                                                       .isa = isa_,
                                                       .slots = slots},
                                        count_);
  }

  std::int64_t preferred_micro_batch(const Graph& graph, Precision, const PassDemand&) override {
    // Text: each thread gets two blocks of 64 rows. Products then run at full speed, and the activations stay in the
    // caches.
    if (!graph.has_images()) return 128 * threads_;
    // Large maps fill the caches by themselves. Small maps need more images to outweigh the traffic of the weights.
    return (graph.input_bytes() >= 128 * 128 * 3 ? 16 : 64) * threads_;
  }

  std::unique_ptr<RangeNorms> make_range_norms(std::span<const ElementRange> ranges) override {
    return cpu::make_range_norms(threads_, kernels_, ranges);
  }
  std::unique_ptr<NormTotal> make_norm_total() override { return cpu::make_norm_total(); }
  std::unique_ptr<Checksums> make_checksums(std::span<const ChecksumRange> ranges) override {
    return cpu::make_checksums(threads_, ranges);
  }
  std::unique_ptr<Orthogonalizer> make_orthogonalizer(std::span<const MatrixRange> matrices) override {
    return cpu::make_orthogonalizer(threads_, kernels_, matrices, count_);
  }
  void queue_update(const Update& update, Vector& weights, const Vector& gradients,
                    std::span<const std::unique_ptr<Vector>> state) override {
    queued_.emplace(QueuedUpdate{update, weights, gradients, state});
  }
  UpdateResult finish_update() override {
    const QueuedUpdate queued = std::exchange(queued_, std::nullopt).value();
    return run_update(threads_, kernels_, queued.update, queued.weights, queued.gradients, queued.state);
  }

  double measure_matrix_rate(Precision precision) override {
    return cpu::measure_matrix_rate(threads_, precision == Precision::bf16);
  }
  bool on_device() const override { return false; }
  std::vector<MemoryItem> overhead() const override { return {}; }
  std::int64_t allocated_bytes() const override { return *count_; }

 private:
  template <class Action>
  void for_pieces(ElementRange range, const Action& action) const {
    const std::vector<RangePiece> pieces = pieces_of(std::span<const ElementRange>(&range, 1));
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::size_t i = 0; i < pieces.size(); ++i) action(pieces[i]);
  }

  int threads_;
  Isa isa_;
  const Kernels& kernels_;
  ReducedMemory reduced_;
  MemoryCount count_ = std::make_shared<std::int64_t>(0);
  std::optional<QueuedUpdate> queued_;  // empty: finish_update() has carried the update out
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend(int threads, ReducedMemory reduced) {
  return std::make_unique<cpu::CpuBackend>(threads, std::move(reduced));
}

}  // namespace ringtrain
