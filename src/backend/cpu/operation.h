// An operation of an LSTM program: a node of the graph, or neighbouring nodes that run as one. image_operation.h has
// the operations of image programs.
#pragma once

#include <omp.h>

#include <cstdint>
#include <functional>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "nn/arena.h"
#include "nn/parameters.h"

namespace ringtrain::cpu {

// The layout of a micro-batch in memory. Rows are cut into blocks. One thread works on a block and all its time steps,
// so that the block's values stay in the second-level cache of that core.
//   activations: [blocks][time][block_rows][features]
struct RowBlocks {
  std::int64_t rows = 0;  // rows of the micro-batch
  std::int64_t blocks = 0;
  std::int64_t block_rows = 0;  // blocks x block_rows >= rows; the rest is padding that no target counts
  std::int64_t sequence = 0;
  int threads = 1;
  std::int64_t padded_rows() const { return blocks * block_rows; }
  std::int64_t positions() const { return padded_rows() * sequence; }  // rows of the weight-gradient products
};

// The place of an operation's output. It is the input buffer of its consumer, so that layers copy nothing.
struct Port {
  Buffer buffer;        // activations in the storage type
  std::int64_t ld = 0;  // elements from one row to the next
  Buffer gradient;      // fp32, written by the consumer's backward pass
  std::int64_t gradient_ld = 0;
};

// The arguments that a pass gives to the operations.
struct Pass {
  PassContext context = {};
  PartTraffic traffic = {};
  const std::uint8_t* tokens = nullptr;   // [padded_rows, sequence]
  const std::int32_t* targets = nullptr;  // [padded_rows, sequence]
  LossSums sums;
};

struct OperationContext {
  const ParameterTable* parameters = nullptr;
  RowBlocks blocks;
  const Kernels* kernels = nullptr;
  bool training = true;
};

// The planned memory after its allocation.
class Arena {
 public:
  Arena(char* base, const ArenaPlan& plan, int slot = 0) : base_(base), plan_(plan), slot_(slot) {}
  char* at(Buffer buffer) const { return buffer.planned() ? base_ + plan_.offset(buffer, slot_) : nullptr; }
  template <class Element>
  void place(Element*& pointer, Buffer buffer) const {
    pointer = reinterpret_cast<Element*>(at(buffer));
  }

 private:
  char* base_;
  const ArenaPlan& plan_;
  int slot_;
};

class CpuOperation {
 public:
  virtual ~CpuOperation() = default;
  // Plans memory. This operation runs forward at the moment `forward` and backward at the moment `backward`. Its
  // consumer runs backward at backward - 1, and its producer runs forward at forward - 1.
  virtual void plan(ArenaPlan& arena, int forward, int backward) = 0;
  virtual void bind(const Arena& arena) = 0;
  virtual void set_weights(const float* flat) = 0;
  virtual void forward(Pass& pass) = 0;
  // Sets or adds to the flat gradients of its own parameters.
  virtual void backward(const Pass& pass, float* gradients, bool accumulate, const std::function<void()>& poll) = 0;
  // Returns the element up to which the flat gradients are final after backward().
  virtual std::int64_t gradient_end() const = 0;
};

// Calls `body(block, thread)` for every block. Each thread gets a fixed, contiguous share.
template <class Body>
void for_each_block(const RowBlocks& blocks, const Body& body) {
#pragma omp parallel num_threads(blocks.threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(static)
    for (std::int64_t block = 0; block < blocks.blocks; ++block) body(block, thread);
  }
}

// to = from, or to += from.
inline void store_gradient(const Kernels& kernels, std::int64_t n, const float* from, float* to, bool accumulate) {
  if (accumulate)
    kernels.add(n, from, to);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

}  // namespace ringtrain::cpu
