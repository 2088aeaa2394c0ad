// The interface between the trainer and a processor or GPU. Begin reading here. A Backend owns memory, compiles a Graph
// (nn/graph.h) to a Program, and runs the few operations on flat vectors that a training step needs, such as the
// update. The trainer, the layers and the optimizers do not know which backend they use. cpu/ is the backend for
// processors, with oneDNN; cuda/ is the one for GPUs, with cuDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/norm_team.h"
#include "backend/vector_operations.h"
#include "nn/graph.h"
#include "nn/update_rule.h"

namespace ringtrain {

// tf32 rounds the factors of products of fp32 values to 10-bit fractions (GPUs). bf16 and fp16 have 16-bit activations
// and products; weights, sums and statistics stay fp32.
enum class Precision { fp32, tf32, bf16, fp16 };
const char* precision_name(Precision precision);  // as it is spelt in an experiment
Precision precision_of(const std::string& name);  // throws Error
// In statistics mode, forward passes normalise and measure the groups of batch norm as in training, but without dropout
// and without keeping values for gradients.
enum class PassMode { training, inference, statistics };
const char* pass_name(PassMode mode);  // as it is printed in tables of memory

// Throws Error if a micro-batch has neither whole groups of `group` samples, which batch norm normalises together, nor
// an equal part of one.
void check_norm_groups(std::int64_t micro_batch, std::int64_t group);

// An item of memory. `plan` prints the items, and the backend checks them against the memory that was allocated.
struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
  bool on_device = false;  // false: in host memory
};

// A flat fp32 vector in the backend's memory.
class Vector {
 public:
  virtual ~Vector() = default;
  Vector(const Vector&) = delete;
  Vector& operator=(const Vector&) = delete;
  float* data() { return data_; }  // an address in the backend's memory
  const float* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::span<float> all() { return {data_, static_cast<std::size_t>(size_)}; }

 protected:
  explicit Vector(std::int64_t size) : size_(size) {}
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(float)); }
  float* data_ = nullptr;  // set by the class that owns the memory

 private:
  std::int64_t size_;
};

// Memory for vectors that are summed over ranks: Communicator::allocate() and release(). If the functions are empty,
// such vectors are in the backend's own memory.
struct ReducedMemory {
  std::function<void*(std::int64_t bytes)> allocate = {};
  std::function<void(void*)> release = {};
};

// The input of one pass, in host memory.
struct PassInput {
  const std::uint8_t* inputs = nullptr;   // [micro_batch, sequence] symbol ids, or [micro_batch, h, w, c] pixels
  const std::int32_t* targets = nullptr;  // [micro_batch, sequence], negative = not counted
};

struct PassContext {
  float gradient_scale =
      0;  // fp16's loss scale / (targets counted in the global batch); the gradients of all ranks can then be summed
  // 1 / (virtual workers of the global batch x ranks that share each), for batch norm's statistics. In
  // Trainer::compute(), only the workers of this rank count. A virtual worker is a group of samples that are normalised
  // together (config/batch_plan.h).
  float statistic_scale = 0;
  std::uint64_t dropout_key = 0;  // with `step` and `first_row` it decides every random bit of the pass
  std::int64_t step = 0;
  std::int64_t first_row = 0;     // position of the pass's first row in the global batch
  float* state = nullptr;         // [micro_batch, layers, (h, c), hidden], replaced by take_sums(); null: start from 0
  NormTeam* norm_team = nullptr;  // if groups of batch norm span several ranks; must live until backward()
};

// The data that a program of a part of a model (Graph::part()) exchanges with its neighbours for a micro-batch.
// Activations have the storage type. On CPUs, gradients of maps have it too, and gradients of vectors and sequences are
// fp32. The layout is [micro_batch, channels, height, width] or [micro_batch, sequence, channels] on every CPU. On
// devices, everything has the storage type and the layout of the kernels, at addresses of the device. Null: the part
// has no neighbour at this end.
struct PartTraffic {
  const std::byte* activations_in = nullptr;
  std::byte* activations_out = nullptr;
  const std::byte* gradients_in = nullptr;  // gradients of activations_out
  std::byte* gradients_out = nullptr;       // gradients of activations_in
};
// Bytes of each exchange. 0: the part has no neighbour at this end.
struct PartBytes {
  std::int64_t activations_in = 0, activations_out = 0, gradients_in = 0, gradients_out = 0;
};

// Sums over passes. They are added over micro-steps and ranks, and divided once at the end.
struct LossSums {
  double loss = 0;            // sum of the cross-entropies, in nats
  std::int64_t correct = 0;   // arg max equals target
  std::int64_t correct5 = 0;  // target among the five largest; images only
  std::int64_t targets = 0;   // number of targets that were counted

  LossSums& operator+=(const LossSums& other) {
    loss += other.loss;
    correct += other.correct;
    correct5 += other.correct5;
    targets += other.targets;
    return *this;
  }
};

struct BackwardHooks {
  std::function<void(std::int64_t)> ready;  // gradients [0, watermark) are final; last call: all of them
  std::function<void()> poll;               // called often by the calling thread, so that communication advances
};

// What a training program copies to host memory and back in every pass (Graph::offload()).
struct HostTraffic {
  std::int64_t bytes = 0;  // copied in each direction; also the size of the page-locked host memory
  // Predicted seconds of a pass. The computation and the copies run at the same time.
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
  // Renews the program's own blocked or 16-bit copies of the weights. It must be called after every change of the
  // weights; an update calls it for Update::program.
  virtual void set_weights(const Vector& weights) = 0;
  // Begins to copy the input of the next pass to the device. The buffers must not change until its forward() has
  // returned. It may be called for at most one pass before forward().
  virtual void stage(const PassInput& input) = 0;
  // Lets the next pass use the input of an earlier one without a copy. Benchmarks measure the cost of the copies with
  // it. It may be called after two calls of stage(), and for at most one pass before forward().
  virtual void stage_again() {}
  // Chooses the slot of the next forward() or backward(). A program with several slots can begin other micro-batches
  // before the backward pass of an earlier one.
  virtual void select(int slot) { static_cast<void>(slot); }
  // For a part of a model: the memory for exchanges with its neighbours in the next forward() or backward().
  virtual void connect(const PartTraffic& traffic) { static_cast<void>(traffic); }
  virtual PartBytes part_bytes() const { return {}; }
  // Computes the forward pass of the staged input. A device may still be computing when the call returns.
  virtual void forward(const PassContext& context) = 0;
  // Passes that begin after this call do not count for the next take_sums(), but for the one after it.
  virtual void close_sums() {}
  // Waits for the passes so far, or for those before close_sums(). Returns their sums since the last call.
  virtual LossSums take_sums() = 0;
  // Runs one forward pass and returns its sums.
  LossSums run(const PassInput& input, const PassContext& context = {}) {
    stage(input);
    forward(context);
    return take_sums();
  }
  // Called after forward(). Sets the flat gradient vector (accumulate = false) or adds to it. The places of batch
  // norm's statistics get statistic_scale x the sums of mean and unbiased variance over this pass's groups.
  virtual void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) = 0;
  // Called after forward() in statistics mode. Returns the sums, over this pass's groups, of the mean and of the mean
  // square of each norm's input. They are at the places of running mean and variance, counted from the end of the
  // trained elements. Waits for a device.
  virtual std::vector<float> statistics() const { return {}; }
  // Called after forward() in inference mode. Returns the logits [classes] of one row and position.
  virtual std::vector<float> logits(std::int64_t row, std::int64_t position) const = 0;
};

// The demands of a training step that decide how large a rank's micro-batches may be.
struct PassDemand {
  std::int64_t rows = 0;          // rows of the global batch, a multiple of the micro-batch
  std::int64_t group = 0;         // samples that batch norm normalises together; 0: the model has none
  std::int64_t vector_bytes = 0;  // size of weights, gradients and optimizer state
  bool evaluates = false;         // an inference program is in memory at the same time as the training program
  bool measures_norms = false;    // a statistics program is in memory too
};

// The work of the optimizer in one step. Its `state` consists of the vectors of the optimizer's kind, in the order of
// Optimizer::state_names().
struct Update {
  UpdateRule rule;                      // the update sets gradient_scale, weight_decay and trust ratios itself
  std::span<const UpdateRange> ranges;  // the trained tensors, in ascending order
  RangeNorms* gradient_norms =
      nullptr;                 // measures the norm of the gradient in each of these ranges; null: there are no ranges
  double clip_norm = 0;        // largest norm of the unscaled gradient (Pascanu et al. 2013); 0: off
  float loss_scale = 1;        // the gradients contain this factor (fp16)
  std::int64_t trained = 0;    // number of trained elements; the statistics come after them
  float norm_momentum = 0;     // running = (1 - momentum) running + momentum x value of this step
  Program* program = nullptr;  // training program whose copies of the weights are renewed; null: none
  bool reports_trust = false;  // whether the result has the trust ratios
  std::optional<AdaScaleStep> adascale;  // AdaScale: the rate is multiplied by its gain
  Vector* average = nullptr;             // exponential average of the weights, with the places of `state`; null: none
  Vector* directions = nullptr;  // directions of Muon's matrices (UpdateRange::direction); null: another optimizer
  Orthogonalizer* orthogonalizer = nullptr;  // Muon: orthogonalises this rank's share of the directions
  std::function<void()> gather = {};         // Muon: gathers the shares of all ranks; collective. Empty: one rank
  // For ranks that update different parts of the model. The function gets this rank's squared norms, one per range. It
  // replaces each by the squared norm of the range's whole tensor, and returns the sum over all tensors of the model.
  // The results have the same bits on all of these ranks. Collective. Empty: this rank has the whole model.
  std::function<double(std::span<double>)> complete_norms = {};
};
struct UpdateResult {
  double gradient_norm = 0;  // unscaled, before clipping and decay; summed in double, reproducible bit for bit
  bool applied = false;
  // One per range; 1 for a range without a ratio. Empty if Update::reports_trust is false, if the optimizer has no
  // ratios, or if the update was skipped.
  std::vector<float> trust_ratios = {};
  double gain = 1;                 // factor by which AdaScale has multiplied the rate
  AdaScaleAverages adascale = {};  // AdaScale's averages, including this step
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string describe() const = 0;  // such as "CPU, 2 threads, AVX-512 BF16, oneDNN 2.6.3"

  // Makes a vector of zeros. `reduced`: the communicator will sum it over ranks and may need special memory for it.
  virtual std::unique_ptr<Vector> make_vector(std::int64_t size, bool reduced = false) = 0;
  // Pins host memory that stage() will read often, until unpin() or the end of the backend. The memory must consist of
  // whole pages, each of which is pinned once (base/pages.h). A device throws Error otherwise.
  virtual void pin(std::span<const std::byte> memory) = 0;
  virtual void unpin(std::span<const std::byte> memory) = 0;
  virtual void copy_to_host(const Vector& from, std::int64_t offset, std::span<float> to) = 0;
  virtual void copy_from_host(std::span<const float> from, Vector& to, std::int64_t offset) = 0;
  // Copies all of `from` to `to`, which has the same size. A device copies in its compute stream.
  virtual void copy(const Vector& from, Vector& to) = 0;
  // Adds the elements `range` of each vector of `from` to those of `to`, one vector after the other. `stream` is the
  // handle of a device's stream; 0: the compute stream.
  virtual void add(std::span<const Vector* const> from, ElementRange range, Vector& to, std::uintptr_t stream = 0) = 0;

  // Compiles a graph. `group` is the number of samples that batch norm normalises together (batch.worker); 0: the whole
  // micro-batch. `group` is a divisor or a multiple of micro_batch. If it is a multiple, group / micro_batch ranks
  // share a group, and every pass needs PassContext::norm_team. Throws Error if the machine cannot run this
  // precision. A training program of a part of a model has memory for `slots` micro-batches in flight.
  virtual std::unique_ptr<Program> compile(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                           PassMode mode, std::int64_t group = 0, int slots = 1) = 0;
  // Returns the samples per pass if the experiment does not state them. On a CPU, the size of the caches decides. On a
  // device, it is the largest number that fits, divides demand.rows and is a multiple of demand.group.
  virtual std::int64_t preferred_micro_batch(const Graph& graph, Precision precision, const PassDemand& demand) = 0;

  // The ranges may be in any order and overlap. Throws Error if there are no ranges, or if one is empty.
  virtual std::unique_ptr<RangeNorms> make_range_norms(std::span<const ElementRange> ranges) = 0;

  virtual std::unique_ptr<NormTotal> make_norm_total() = 0;

  // Throws Error as expect_checksum_ranges() does.
  virtual std::unique_ptr<Checksums> make_checksums(std::span<const ChecksumRange> ranges) = 0;

  // The result takes no memory before its allocate(). Throws Error if the machine cannot orthogonalise.
  virtual std::unique_ptr<Orthogonalizer> make_orthogonalizer(std::span<const MatrixRange> matrices) = 0;

  // Queues an update of the trained elements and then of the running statistics after them. Nothing changes if the norm
  // of the gradient is not finite. A device does the update before any work that comes after queue_update(). A CPU
  // does the update in finish_update(). Until then its gradients may still be summed. On a CPU, an update that is never
  // finished changes nothing.
  virtual void queue_update(const Update& update, Vector& weights, const Vector& gradients,
                            std::span<const std::unique_ptr<Vector>> state) = 0;
  virtual UpdateResult finish_update() = 0;  // ends the queued update

  // Measures the rate of matrix products in this precision on the cores of this rank, in floating-point operations per
  // second. It takes about 15 ms and changes nothing. Ranks that share cores must call it at the same time. 0: a
  // device, whose rates are known by its name.
  virtual double measure_matrix_rate(Precision precision) = 0;

  // Whether vectors and programs are in a device's memory.
  virtual bool on_device() const = 0;
  // Returns the device memory of a process that vectors and programs do not use. Estimates are marked as such.
  virtual std::vector<MemoryItem> overhead() const = 0;
  // The device memory that a process may take, with overhead(); 0: not on a device.
  virtual std::int64_t device_bytes() const { return 0; }
  // The bytes that vectors and programs have taken so far.
  virtual std::int64_t allocated_bytes() const = 0;
};

// Pins host memory for the lifetime of this object.
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

// Makes the CPU backend with `threads` threads.
std::unique_ptr<Backend> make_cpu_backend(int threads, ReducedMemory reduced = {});

}  // namespace ringtrain
