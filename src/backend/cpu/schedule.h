// The steps of a program in order, and the memory between them. Steps that work sample by sample run together, slice
// by slice: the maps of a slice are still in the cache when the next step reads them. A step that needs the whole
// micro-batch (batch statistics, a weight gradient, a dense layer) cuts the sequence of steps.
//
//   forward   normalise | convolve | statistics  for each slice;  then: the statistics of all slices
//   backward  apply | convolve | sums            for each slice;  then: the sums of all slices, the weight gradient
//
// A block may be recomputed (Chen et al. 2016). Its maps then live twice: in the forward pass, and again from the time
// when its forward steps are repeated, just before its first backward step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "nn/arena.h"

namespace ringtrain::cpu {

inline constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

struct Slice {
  std::int64_t first = 0, count = 0;  // samples of the micro-batch
};

struct Step {
  std::string name;
  bool whole = false;          // runs once, for all samples
  std::vector<int> uses = {};  // storages that it reads or writes; -1: one that the operation does not have
  std::function<void(std::int64_t)> prepare = {};  // makes primitives for slices of this number of samples
  std::vector<std::string> finishes = {};          // parameters whose gradients are final after this step
  std::int64_t least_samples = 1;                  // least samples in a slice, if the micro-batch has them
  double flops_per_sample = 0;
  bool once = false;   // must not be repeated: its results are kept for the backward pass, or were counted
  bool waits = false;  // a whole step that may wait for the next cut
  int block = -1;      // set by Schedule::add(); see Schedule::enter()
  std::function<void(const Slice&)> run = {};  // set by Schedule::add()
};

// What a step has cost so far, for benchmarks.
struct StepCost {
  std::string name;
  bool backward = false;
  double seconds = 0, flops = 0;
  std::int64_t slice = 0;  // samples per slice
};

class Schedule {
 public:
  // `slots`: micro-batches in flight (ArenaPlan::place()).
  Schedule(std::int64_t samples, int threads, int slots) : samples_(samples), threads_(threads), slots_(slots) {}
  std::int64_t samples() const { return samples_; }
  int threads() const { return threads_; }

  // Adds memory of `bytes` per sample: for one slice if all its uses lie between two cuts, otherwise for all samples.
  int per_sample(std::string what, std::int64_t bytes) {
    return append({.what = std::move(what), .bytes = bytes, .per_sample = true});
  }
  // For all samples together, from the first to the last use.
  int fixed(std::string what, std::int64_t bytes) { return append({.what = std::move(what), .bytes = bytes}); }
  // For the whole run, such as copies of weights.
  int lasting(std::string what, std::int64_t bytes) {
    return append({.what = std::move(what), .bytes = bytes, .lasting = true});
  }
  // Before plan(), when the primitives' needs are known.
  void resize(int storage, std::int64_t bytes) { storages_[static_cast<std::size_t>(storage)].bytes = bytes; }

  // The steps added after this call belong to this block of the model, which is recomputed. -1: to no block.
  void enter(int block) { block_ = block; }
  void add(Step step, std::function<void(const Slice&)> run);
  void cut();  // places the waiting steps here
  void begin_backward();

  void prepare();                          // fixes the slices and makes the primitives
  void plan(const ParameterTable& table);  // plans the memory and the watermarks
  const ArenaPlan& arena() const { return arena_; }
  void bind(char* base, int slot = 0);

  // A null `hooks` runs the forward pass; otherwise the backward pass runs.
  void run(const BackwardHooks* hooks);

  template <class Element>
  Element* at(int storage, const Slice& slice, std::int64_t image) const {
    const Storage& s = storages_[static_cast<std::size_t>(storage)];
    const Life& life = s.lives[s.present];
    return reinterpret_cast<Element*>(life.base + (life.sliced ? image - slice.first : image) * s.bytes);
  }
  template <class Element>
  Element* at(int storage) const {
    const Storage& s = storages_[static_cast<std::size_t>(storage)];
    return reinterpret_cast<Element*>(s.lives[s.present].base);
  }

  std::vector<StepCost> costs() const;  // since the last reset
  void reset_costs() {
    seconds_.assign(steps_.size(), 0);
    runs_ = 0;
  }

 private:
  struct Life {
    int first = -1, last = -1;  // indices of steps
    bool sliced = false;
    Buffer buffer = {};
    char* base = nullptr;
  };
  struct Storage {
    std::string what;
    std::int64_t bytes = 0;  // per sample, or for all samples
    bool per_sample = false, lasting = false;
    Life lives[2] = {};                                // the second life begins where the values are recomputed
    std::size_t present = 0;                           // the present life
    std::size_t again = static_cast<std::size_t>(-1);  // segment where the second life begins; -1: none
  };
  struct Segment {
    std::size_t begin, end;         // indices of steps
    std::int64_t slice;             // samples per slice; of a whole step: all
    std::vector<int> revives = {};  // storages whose second life begins here
  };
  int append(Storage storage);
  std::vector<std::size_t> segments_of_steps() const;
  void find_lifetimes();
  // Plans the memory of all storages, in the order in which they were made or in the opposite order.
  ArenaPlan place_storages(bool last_first);
  void insert_recomputation();
  std::int64_t choose_slice(const Segment& segment) const;

  std::int64_t samples_;
  int threads_, slots_;
  std::vector<Storage> storages_;
  std::vector<Step> steps_, waiting_;
  std::vector<Segment> segments_;
  std::vector<std::int64_t> watermarks_;  // by step
  std::vector<double> seconds_;           // by step
  std::int64_t runs_ = 0;
  int block_ = -1;
  std::size_t backward_ = static_cast<std::size_t>(-1);  // first step of the backward pass
  ArenaPlan arena_;
};

}  // namespace ringtrain::cpu
