#include "backend/cpu/image_program.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/image_graph.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/operation.h"
#include "base/error.h"

namespace ringtrain::cpu {

namespace {

template <class T>
class CompiledImageProgram : public ImageProgram {
 public:
  CompiledImageProgram(const Graph& graph, std::int64_t micro_batch, std::int64_t group, PassMode mode, int threads,
                       Isa isa, MemoryCount count, int slots)
      : parameters_(graph.parameters()),
        training_(mode == PassMode::training),
        mode_(mode),
        span_(std::max<std::int64_t>(1, group / micro_batch)),
        threads_(threads),
        schedule_(micro_batch, threads, slots),
        count_(std::move(count)),
        kept_(static_cast<std::size_t>(slots)) {
    const TeamSize team(threads_);
    ImageContext context{.schedule = &schedule_,
                         .parameters = &parameters_,
                         .kernels = &kernels(isa),
                         .norm = &norm_kernels(isa),
                         .image = &image_kernels(isa),
                         .pass = &pass_,
                         .training = training_,
                         .measures = mode != PassMode::inference,
                         .group = std::min(group, micro_batch),
                         .span = span_};
    parts_ = join_operations<T>(graph, context);
    for (std::size_t i = 0; i < parts_.operations.size(); ++i) {
      schedule_.enter(parts_.blocks[i]);
      parts_.operations[i]->forward_steps();
    }
    schedule_.begin_backward();
    if (training_)
      for (std::size_t i = parts_.operations.size(); i-- > 0;) {
        schedule_.enter(parts_.blocks[i]);
        parts_.operations[i]->backward_steps();
      }
    schedule_.prepare();
    schedule_.plan(parameters_);
  }

  std::int64_t micro_batch() const override { return schedule_.images(); }

  std::vector<MemoryItem> memory() const override {
    std::int64_t lasting = 0;
    for (const ArenaPlan::Item& item : schedule_.arena().items())
      if (item.first < 0) lasting += item.bytes;
    const std::string pass = pass_name(mode_);
    return {{pass + ": weights' own copies and scratch", lasting},
            {pass + ": activations and gradients of a micro-batch", schedule_.arena().bytes() - lasting}};
  }

  void allocate() override {
    const TeamSize team(threads_);
    memory_ = Memory(schedule_.arena().bytes(), count_);
    schedule_.bind(memory_.data());
    for (auto& operation : parts_.operations) operation->bind();
  }

  void set_weights(const Vector& weights) override {
    const TeamSize team(threads_);
    for (auto& operation : parts_.operations) operation->set_weights(weights.data());
  }

  void stage(const PassInput& input) override { staged_ = input; }

  void select(int slot) override {
    if (slot == slot_) return;
    kept_[static_cast<std::size_t>(slot_)] = pass_;
    pass_ = kept_[static_cast<std::size_t>(slot)];
    slot_ = slot;
    schedule_.bind(memory_.data(), slot);
  }
  void connect(const PartTraffic& traffic) override { traffic_ = traffic; }
  PartBytes part_bytes() const override { return parts_.bytes; }

  void forward(const PassContext& context) override {
    const TeamSize team(threads_);
    const GroupRanks* ranks = context.group_ranks;
    if (span_ > 1 && (ranks == nullptr || ranks->size() != span_))
      throw Error(cat("a pass of ", schedule_.images(), " images needs the ", span_, " ranks of its batch-norm group"));
    pass_ = ImagePass{.input = staged_, .context = context, .traffic = traffic_};
    schedule_.run(nullptr);
    sums_ += pass_.sums;
  }

  LossSums take_sums() override { return std::exchange(sums_, {}); }

  void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) override {
    const TeamSize team(threads_);
    pass_.traffic = traffic_;
    pass_.gradients = gradients.data();
    pass_.accumulate = accumulate;
    pass_.poll = hooks.poll;
    schedule_.run(&hooks);
  }

  std::vector<float> statistics() const override {
    std::vector<float> all(static_cast<std::size_t>(parameters_.size() - parameters_.trained()));
    for (const auto& norm : parts_.norms) norm->copy_statistics(all, parameters_.trained());
    return all;
  }

  std::vector<float> logits(std::int64_t row, std::int64_t) const override { return parts_.loss->logits(row); }

  std::vector<StepCost> costs() const override { return schedule_.costs(); }
  void reset_costs() override { schedule_.reset_costs(); }

 private:
  ParameterTable parameters_;
  bool training_;
  PassMode mode_;
  std::int64_t span_;  // number of ranks that share a group of batch norm
  int threads_;
  Schedule schedule_;
  MemoryCount count_;
  PassInput staged_;
  LossSums sums_;
  PartTraffic traffic_;
  ImagePass pass_;               // the pass of the selected slot
  std::vector<ImagePass> kept_;  // the passes of the other slots
  int slot_ = 0;
  ImageOperations parts_;
  Memory memory_;
};

}  // namespace

std::unique_ptr<ImageProgram> compile_image_program(const Graph& graph, std::int64_t micro_batch, std::int64_t group,
                                                    Precision precision, PassMode mode, int threads, Isa isa,
                                                    MemoryCount count, int slots) {
  if (group < 1 || (micro_batch % group != 0 && group % micro_batch != 0))
    throw Error(cat("a micro-batch of ", micro_batch, " holds neither whole batch-norm groups of ", group,
                    " nor an equal part of one"),
                "let one of batch.micro and batch.worker be a multiple of the other");
  if (precision == Precision::fp32)
    return std::make_unique<CompiledImageProgram<float>>(graph, micro_batch, group, mode, threads, isa,
                                                         std::move(count), slots);
  return std::make_unique<CompiledImageProgram<BFloat16>>(graph, micro_batch, group, mode, threads, isa,
                                                          std::move(count), slots);
}

std::int64_t preferred_image_batch(const Graph& graph, int threads) {
  // Large maps fill the caches by themselves. Small maps need more images to outweigh the traffic of the weights.
  const std::int64_t images = graph.input_bytes() >= 128 * 128 * 3 ? 16 : 64;
  return images * threads;
}

}  // namespace ringtrain::cpu
