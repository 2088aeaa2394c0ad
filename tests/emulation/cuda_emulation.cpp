#include "tests/emulation/cuda_emulation.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <memory>
#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
// Saves the stack pointer and the registers that a call must preserve, and continues on another stack. It does what
// swapcontext() does, without its two system calls.
extern "C" void ringtrain_switch_stack(void** from, void* to);
asm(R"(
.text
.globl ringtrain_switch_stack
.type ringtrain_switch_stack, @function
ringtrain_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ringtrain_switch_stack, .-ringtrain_switch_stack
)");
#endif

namespace ringtrain::cuda::emulated {

namespace {

enum class State { ready, at_block_barrier, at_warp, ended };

void fiber_loop();

// A stack on which one thread of every block runs, one block after another.
class Fiber {
 public:
  Fiber() : stack_(new char[stack_bytes]) {
#if defined(__x86_64__)
    auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + stack_bytes) & ~std::uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top) - 8;  // six registers, the address to go to, and a word for alignment
    for (int i = 0; i < 8; ++i) words[i] = nullptr;
    words[6] = reinterpret_cast<void*>(&fiber_loop);
    own_ = words;
#else
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = stack_bytes;
    makecontext(&own_, &fiber_loop, 0);
#endif
  }
  Fiber(Fiber&&) = delete;
#if defined(__x86_64__)
  void resume() {
    ringtrain_switch_stack(&scheduler_, own_);
  }
  void yield() {
    ringtrain_switch_stack(&own_, scheduler_);
  }
#else
  void resume() {
    swapcontext(&scheduler_, &own_);
  }
  void yield() {
    swapcontext(&own_, &scheduler_);
  }
#endif

  State state = State::ready;
  std::uint64_t given[2] = {};  // two, so that a fast lane does not overwrite what a slow lane reads
  unsigned exchanges = 0;

 private:
  static constexpr std::size_t stack_bytes = 64 << 10;
  std::unique_ptr<char[]> stack_;
#if defined(__x86_64__)
  void *own_ = nullptr, *scheduler_ = nullptr;
#else
  ucontext_t own_ = {}, scheduler_ = {};
#endif
};

struct Scheduler {
  std::vector<std::unique_ptr<Fiber>> fibers;
  const std::function<void()>* body = nullptr;
  Fiber* current = nullptr;

  void run_block(unsigned threads, bool backwards) {
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    for (unsigned t = 0; t < threads; ++t) {
      fibers[t]->state = State::ready;
      fibers[t]->exchanges = 0;
    }
    const unsigned warps = threads / 32;
    for (;;) {
      for (unsigned i = 0; i < warps; ++i) {
        const unsigned warp = backwards ? warps - 1 - i : i;
        do {
          for (unsigned l = 0; l < 32; ++l) resume(warp * 32 + (backwards ? 31 - l : l));
        } while (release(warp * 32, 32, State::at_warp));
      }
      if (release(0, threads, State::at_block_barrier)) continue;
      if (all(0, threads, State::ended)) return;
      fibers.clear();
      throw Error(cat("block ", blockIdx.x, ", ", blockIdx.y, ", ", blockIdx.z,
                      ": threads wait at different barriers, or for threads that have ended; a GPU would hang"));
    }
  }

 private:
  void resume(unsigned thread) {
    Fiber& fiber = *fibers[thread];
    if (fiber.state != State::ready) return;
    threadIdx.x = thread;
    current = &fiber;
    fiber.resume();
    current = nullptr;
  }
  bool all(unsigned begin, unsigned count, State state) const {
    for (unsigned t = begin; t < begin + count; ++t)
      if (fibers[t]->state != state) return false;
    return true;
  }
  bool release(unsigned begin, unsigned count, State state) {
    if (!all(begin, count, state)) return false;
    for (unsigned t = begin; t < begin + count; ++t) fibers[t]->state = State::ready;
    return true;
  }
};

thread_local Scheduler scheduler;
thread_local std::uint64_t blocks_begun = 0;  // number of blocks that this thread has begun in all launches

void wait(State state) {
  if (scheduler.current == nullptr)
    throw Error("a kernel that runs without fibers has met a barrier", "name it in needs_fibers()");
  Fiber& fiber = *scheduler.current;
  fiber.state = state;
  fiber.yield();
}

void fiber_loop() {
  for (;;) {
    (*scheduler.body)();
    wait(State::ended);
  }
}

}  // namespace

void poison_once_per_block(std::uint64_t& of_block, void* memory, std::size_t bytes) {
  if (of_block == blocks_begun) return;
  of_block = blocks_begun;
  std::memset(memory, 0xff, bytes);
}

void block_barrier() {
  wait(State::at_block_barrier);
}

std::uint64_t exchange(std::uint64_t value, int distance) {
  const unsigned thread = threadIdx.x;
  if (scheduler.current == nullptr) wait(State::at_warp);
  Fiber& fiber = *scheduler.current;
  const unsigned side = fiber.exchanges++ % 2;
  fiber.given[side] = value;
  wait(State::at_warp);
  return scheduler.fibers[thread ^ static_cast<unsigned>(distance)]->given[side];
}

void run_grid(const Index& grid, unsigned threads, bool barriers, bool backwards, const std::function<void()>& body) {
  if (threads == 0 || threads % 32 != 0) throw Error(cat("a block of ", threads, " threads is not whole warps"));
  gridDim = grid;
  blockDim = {threads, 1, 1};
  scheduler.body = &body;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t block = backwards ? blocks - 1 - i : i;
    ++blocks_begun;
    blockIdx = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
                static_cast<unsigned>(block / grid.x / grid.y)};
    if (barriers) {
      scheduler.run_block(threads, backwards);
      continue;
    }
    for (unsigned t = 0; t < threads; ++t) {
      threadIdx.x = backwards ? threads - 1 - t : t;
      body();
    }
  }
}

}  // namespace ringtrain::cuda::emulated
