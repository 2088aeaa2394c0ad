// One step of a CPU program: a node of the graph, or neighbours that run as one.
#pragma once

#include <omp.h>

#include <cstdint>
#include <functional>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "nn/arena.h"
#include "nn/parameters.h"

namespace ringtrain::cpu {

// How a micro-batch lies in memory: rows are cut into blocks, each block is worked on by one thread and holds all its
// time steps together, so that a block's values stay in that core's second-level cache.
//   activations: [blocks][time][block_rows][features]
struct RowBlocks {
  std::int64_t rows = 0;  // of the micro-batch
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
  std::int64_t ld = 0;  // elements from row to row
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

// The planned memory once it is taken.
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
  // Asks for memory. Moments: this operation runs forward at `forward`, backward at `backward`; its consumer's
  // backward runs at backward - 1, its producer's forward at forward - 1.
  virtual void plan(ArenaPlan& arena, int forward, int backward) = 0;
  virtual void bind(const Arena& arena) = 0;
  virtual void set_weights(const float* flat) = 0;
  virtual void forward(Pass& pass) = 0;
  // Sets or adds to the flat gradients of its own parameters.
  virtual void backward(const Pass& pass, float* gradients, bool accumulate, const std::function<void()>& poll) = 0;
  // After backward() the flat gradients before this element are final.
  virtual std::int64_t gradient_end() const = 0;
};

// Calls `body(block, thread)` for every block; each thread gets a fixed, contiguous share.
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
