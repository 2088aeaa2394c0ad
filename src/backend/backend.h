// The machine behind the trainer. A backend owns memory, compiles graphs to programs and runs the few operations on
// flat vectors that a training step needs. No layer, trainer or policy knows which backend it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/checksums.h"
#include "backend/group_ranks.h"
#include "backend/orthogonalizer.h"
#include "backend/range_norms.h"
#include "nn/adascale.h"
#include "nn/graph.h"
#include "nn/update_rule.h"

namespace ringtrain {

// tf32: fp32 values whose products are rounded to 10-bit fractions (GPUs). 16 bit: activations and products; weights,
// sums and statistics stay fp32.
enum class Precision { fp32, tf32, bf16, fp16 };
const char* precision_name(Precision precision);  // as the experiment spells it
Precision precision_of(const std::string& name);  // throws Error
// statistics: forward passes in which batch norm normalises and measures its groups as in training, without dropout and
// without what gradients need.
enum class PassMode { training, inference, statistics };
const char* pass_name(PassMode mode);  // as tables of memory have it

// Thrown nowhere; printed by `plan` and checked against what was taken.
struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
  bool on_device = false;  // not in the host's memory
};

// A flat fp32 vector in the backend's memory.
class Vector {
 public:
  virtual ~Vector() = default;
  virtual float* data() = 0;  // address on the device
  virtual const float* data() const = 0;
  virtual std::int64_t size() const = 0;
};

// What one device pass reads, in host memory.
struct PassInput {
  const std::uint8_t* inputs = nullptr;   // [micro_batch, sequence] symbol ids, or [micro_batch, h, w, c] pixels
  const std::int32_t* targets = nullptr;  // [micro_batch, sequence], negative = not counted
};

struct PassContext {
  float gradient_scale =
      0;  // fp16's loss scale / (targets counted in the global batch): gradients of all ranks then sum
  // 1 / (virtual workers of the global batch x ranks that share each), for batch norm's statistics
  float statistic_scale = 0;
  std::uint64_t dropout_key = 0;  // with `step` and `first_row` it names every random bit of the pass
  std::int64_t step = 0;
  std::int64_t first_row = 0;  // of the global batch
  float* state = nullptr;  // in and, by take_sums(), out: [micro_batch, layers, (h, c), hidden]; null = zeros, not kept
  GroupRanks* group_ranks = nullptr;  // of a program whose groups lie on several ranks; must live until backward()
};

// What a program of a part of a model (Graph::part()) takes from its neighbours and gives to them, for a micro-batch:
// activations in the storage type. On CPUs gradients of maps too, those of vectors and sequences in fp32, as
// [micro_batch, channels, height, width] or [micro_batch, sequence, channels], the same on every CPU. On devices all in
// the storage type and in the layout of its kernels, at addresses of the device. Null: this end is the model's.
struct PartTraffic {
  const std::byte* activations_in = nullptr;
  std::byte* activations_out = nullptr;
  const std::byte* gradients_in = nullptr;  // of activations_out
  std::byte* gradients_out = nullptr;       // of activations_in
};
// Of one direction. 0: this end is the model's.
struct PartBytes {
  std::int64_t activations_in = 0, activations_out = 0, gradients_in = 0, gradients_out = 0;
};

// Sums over passes. They are added over micro-steps and ranks, and divided only once.
struct LossSums {
  double loss = 0;            // natural logarithm
  std::int64_t correct = 0;   // arg max equals target
  std::int64_t correct5 = 0;  // target among the five largest; images only
  std::int64_t targets = 0;   // counted

  LossSums& operator+=(const LossSums& other) {
    loss += other.loss;
    correct += other.correct;
    correct5 += other.correct5;
    targets += other.targets;
    return *this;
  }
};

struct BackwardHooks {
  std::function<void(std::int64_t)> ready;  // gradients [0, watermark) are final; the last call names the whole vector
  std::function<void()> poll;               // called often from the calling thread: lets communication advance
};

// What a training program moves to the host's memory and back in every pass (Graph::offload()).
struct HostTraffic {
  std::int64_t bytes = 0;  // each way; so many are page-locked
  // Predicted, of a pass: computing, and the copies beside it.
  double forward_seconds = 0, backward_seconds = 0, out_seconds = 0, back_seconds = 0;
};

// A compiled graph for one micro-batch size. Memory is planned at compile time and taken by allocate().
class Program {
 public:
  virtual ~Program() = default;
  virtual std::int64_t micro_batch() const = 0;
  virtual std::vector<MemoryItem> memory() const = 0;
  virtual void allocate() = 0;
  virtual HostTraffic host_traffic() const { return {}; }
  // Refreshes the program's own blocked or 16-bit copies; call after every change of the weights. Backend::update()
  // does it for the program that it is given.
  virtual void set_weights(const Vector& weights) = 0;
  // Begins to move the next pass's input to the device; the buffers stay untouched until its forward() has returned.
  // At most one pass ahead of forward().
  virtual void stage(const PassInput& input) = 0;
  // The next pass takes the input of an earlier one again, and nothing is moved: to measure what moving costs. After
  // two calls of stage().
  virtual void stage_again() {}
  // The slot that the next forward() or backward() works in. A program with several slots can begin other micro-batches
  // before the backward pass of an earlier one.
  virtual void select(int slot) { static_cast<void>(slot); }
  // Of a part of a model: where the next forward() or backward() finds and leaves what crosses its ends.
  virtual void connect(const PartTraffic& traffic) { static_cast<void>(traffic); }
  virtual PartBytes part_bytes() const { return {}; }
  // Computes the forward pass of the staged input. A device may still be computing when the call returns.
  virtual void forward(const PassContext& context) = 0;
  // Passes that begin after this call do not count for the next take_sums(), but for the one after it.
  virtual void close_sums() {}
  // Waits for the passes so far, or until close_sums(): their sums since the last call.
  virtual LossSums take_sums() = 0;
  // One pass by itself.
  LossSums run(const PassInput& input, const PassContext& context = {}) {
    stage(input);
    forward(context);
    return take_sums();
  }
  // After forward(). Sets (accumulate = false) or adds to the flat gradient vector. In the places of batch norm's
  // statistics go statistic_scale x the sums over this pass's groups of mean and unbiased variance.
  virtual void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) = 0;
  // After forward() in statistics mode: sums over this pass's groups of the mean and of the mean square of each norm's
  // input, in the places of its running mean and variance behind the trained elements. Waits for a device.
  virtual std::vector<float> statistics() const { return {}; }
  // After forward() in inference mode: [classes] of one row and position.
  virtual std::vector<float> logits(std::int64_t row, std::int64_t position) const = 0;
};

// The demands of a training step that decide how large a rank's micro-batches may be.
struct PassDemand {
  std::int64_t rows = 0;          // of the global batch; micro-batches divide them
  std::int64_t group = 0;         // samples that batch norm normalises together; 0: the model has none
  std::int64_t vector_bytes = 0;  // weights, gradients, optimizer state
  bool evaluates = false;         // an inference program lives beside the training program
  bool measures_norms = false;    // and a statistics program
};

// The optimizer's work of one step. `state`: the vectors that Optimizer::state_names() lists, in that order.
struct Update {
  UpdateRule rule;                       // gradient_scale, weight_decay and the trust ratios are filled in
  std::span<const UpdateRange> ranges;   // the trained tensors, ascending
  RangeNorms* gradient_norms = nullptr;  // of these ranges: the update measures the gradient with it; null: no ranges
  double clip_norm = 0;                  // of the unscaled gradient (Pascanu et al. 2013); 0: off
  float loss_scale = 1;                  // by which the gradients are too large
  std::int64_t trained = 0;              // elements; the statistics lie behind them
  float norm_momentum = 0;               // running = (1 - momentum) running + momentum x this step's
  Program* program = nullptr;            // of training: its copies of the weights, set before, follow them; null: none
  bool reports_trust = false;            // the result shall have the trust ratios
  std::optional<AdaScaleStep> adascale;  // the rule's rate is multiplied by the gain that follows from it
  Vector* directions = nullptr;          // of Muon's matrices (UpdateRange::direction); null: another optimizer
  Orthogonalizer* orthogonalizer = nullptr;  // muon: of this rank's share of the directions
  std::function<void()> gather = {};         // muon: brings the shares of all ranks; collective. Empty: one rank
  // Where other ranks update other parts of the model: is given this rank's squared norms, one per range, replaces each
  // by that of the range's whole tensor, and returns the sum over all tensors of the model. The same bits on all of
  // those ranks; collective. Null: this rank has the whole model.
  std::function<double(std::span<double>)> complete_norms = {};
};
struct UpdateResult {
  double gradient_norm = 0;  // before clipping and decay, loss scale removed; summed in double, the same bits each time
  bool applied = false;
  // One per range, 1 where a range has none. Empty where nobody asked, the optimizer has no ratios, or the update was
  // skipped.
  std::vector<float> trust_ratios = {};
  double gain = 1;                 // by which AdaScale has multiplied the rate
  AdaScaleAverages adascale = {};  // with this step
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string describe() const = 0;  // "CPU, 2 threads, AVX-512 BF16, oneDNN 2.6.3"

  // Zeros. `reduced`: the communicator will sum it over ranks, and may want it in memory of its own.
  virtual std::unique_ptr<Vector> make_vector(std::int64_t size, bool reduced = false) = 0;
  // Host memory that stage() will read often, for as long as the backend lives or until unpin(): whole pages, each of
  // them pinned once (base/pages.h). A device throws Error for anything else.
  virtual void pin(std::span<const std::byte> memory) = 0;
  virtual void unpin(std::span<const std::byte> memory) = 0;
  virtual void copy_to_host(const Vector& from, std::int64_t offset, std::span<float> to) = 0;
  virtual void copy_from_host(std::span<const float> from, Vector& to, std::int64_t offset) = 0;
  // All of `from`, which is as long. A device does it in its compute stream.
  virtual void copy(const Vector& from, Vector& to) = 0;
  // Adds the elements `range` of each of `from` to those of `to`, one vector after the other. `stream`: the handle of
  // the device's stream that does it; 0: the compute stream.
  virtual void add(std::span<const Vector* const> from, ElementRange range, Vector& to, std::uintptr_t stream = 0) = 0;

  // Throws Error when the machine cannot run this precision.
  // `group`: samples that batch norm normalises together (batch.worker), a divisor of micro_batch; 0: all of them. A
  // multiple: the group lies on group / micro_batch ranks, which every pass then needs (PassContext::group_ranks).
  virtual std::unique_ptr<Program> compile(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                           PassMode mode, std::int64_t group = 0) = 0;
  // Of a part of a model. `slots`: a training program has memory for so many micro-batches in flight.
  virtual std::unique_ptr<Program> compile_part(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                                PassMode mode, std::int64_t group, int slots) = 0;
  // Samples per pass where the experiment leaves it open: the fastest by working set on a CPU; on a device the largest
  // that fits, which then divides demand.rows and is a multiple of demand.group.
  virtual std::int64_t preferred_micro_batch(const Graph& graph, Precision precision, const PassDemand& demand) = 0;

  // Norms of these ranges, which may lie in any order and overlap. Throws Error when there is none or one is empty.
  virtual std::unique_ptr<RangeNorms> make_range_norms(std::span<const ElementRange> ranges) = 0;

  virtual std::unique_ptr<NormTotal> make_norm_total() = 0;

  // Throws Error as expect_checksum_ranges().
  virtual std::unique_ptr<Checksums> make_checksums(std::span<const ChecksumRange> ranges) = 0;

  // Takes no memory before its allocate(). Throws Error where the machine cannot do it.
  virtual std::unique_ptr<Orthogonalizer> make_orthogonalizer(std::span<const MatrixRange> matrices) = 0;

  // One update of the trained elements, then the running statistics behind them. Nothing changes where the gradient's
  // norm is not finite. A device does it before whatever it is given after start_update(). A CPU does it in
  // finish_update(): until then the gradients may still be summed, and an update that is never finished changes
  // nothing.
  virtual void start_update(const Update& update, Vector& weights, const Vector& gradients,
                            std::span<const std::unique_ptr<Vector>> state) = 0;
  virtual UpdateResult finish_update() = 0;  // waits for the one that was started
  UpdateResult update(const Update& update, Vector& weights, const Vector& gradients,
                      std::span<const std::unique_ptr<Vector>> state) {
    start_update(update, weights, gradients, state);
    return finish_update();
  }

  // Whether vectors and programs live in memory of their own, apart from the host's.
  virtual bool on_device() const = 0;
  // What a process holds there besides vectors and programs; estimates say so.
  virtual std::vector<MemoryItem> overhead() const = 0;
  // What a process may take there, overhead() included; 0: not on a device.
  virtual std::int64_t device_bytes() const { return 0; }
  // Bytes taken so far by vectors and programs.
  virtual std::int64_t allocated_bytes() const = 0;
};

// Host memory that is pinned for as long as this lives.
class Pinned {
 public:
  Pinned(Backend& backend, std::vector<std::span<const std::byte>> memory)
      : backend_(backend), memory_(std::move(memory)) {
    for (const auto& piece : memory_) backend_.pin(piece);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    for (const auto& piece : memory_) backend_.unpin(piece);
  }

 private:
  Backend& backend_;
  std::vector<std::span<const std::byte>> memory_;
};

// The CPU backend on `threads` threads.
std::unique_ptr<Backend> make_cpu_backend(int threads);

}  // namespace ringtrain
