#include "backend/cpu/program.h"

#include "backend/cpu/onednn.h"
#include "backend/cpu/operations.h"

namespace ringtrain::cpu {

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

}  // namespace ringtrain::cpu
