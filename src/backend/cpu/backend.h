// This folder is the CPU backend. It implements the interface of backend/backend.h. oneDNN computes matrix products
// (onednn.h) and convolutions (convolution.h). The program's own kernels (kernels.h) compute the rest. OpenMP threads
// share the work.
//
// CpuProgram is a compiled graph: operations.cpp turns it into operations (operations.h), and schedule.h plans their
// memory and runs their steps. processor.h finds the instruction set, which decides which copy of the kernels runs. To
// change a model's computation, begin with operations.cpp, then read schedule.h and one operation, such as
// pool_operation.cpp.
#pragma once

#include <vector>

#include "backend/cpu/memory.h"
#include "backend/cpu/operations.h"

namespace ringtrain::cpu {

// A graph compiled for the CPU: a list of operations (operations.h), the schedule that runs their steps, and its
// memory.
class CpuProgram : public Program {
 public:
  // Throws Error if the graph cannot be compiled.
  CpuProgram(const Graph& graph, const CompileOptions& options, MemoryCount count);

  std::int64_t micro_batch() const override { return schedule_.samples(); }
  std::vector<MemoryItem> memory() const override;
  void allocate() override;
  void set_weights(const Vector& weights) override;
  void stage(const PassInput& input) override { staged_ = input; }
  void select(int slot) override;
  void connect(const PartTraffic& traffic) override { traffic_ = traffic; }
  PartBytes part_bytes() const override { return operations_.bytes; }
  void forward(const PassContext& context) override;
  LossSums take_sums() override { return std::exchange(sums_, {}); }
  void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) override;
  std::vector<float> statistics() const override;
  std::vector<float> logits(std::int64_t row, std::int64_t position) const override {
    return operations_.all.back()->logits(row, position);
  }

  // For benchmarks: what each step has cost since the last reset.
  std::vector<StepCost> costs() const { return schedule_.costs(); }
  void reset_costs() { schedule_.reset_costs(); }

 private:
  ParameterTable parameters_;
  PassMode mode_;
  int threads_;
  Schedule schedule_;
  Operations operations_;
  MemoryCount count_;
  Memory memory_;
  PassInput staged_;
  PartTraffic traffic_;
  LossSums sums_;
  Pass pass_;               // the pass of the selected slot
  std::vector<Pass> kept_;  // the passes of the other slots
  int slot_ = 0;
};

}  // namespace ringtrain::cpu
