// Computes which symbols or which image each row of each global batch reads. The functions depend only on the plan, so
// that every rank, thread and resumed run finds the same rows.
//
// data.share keeps a part of the training set. The part is a pure function of the seed, so all ranks and resumed runs
// have the same part. It is nested: a smaller share of the same data set has no other samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/loader.h"

namespace ringtrain {

// The global order of samples. It depends on (seed, epoch) only, never on rank, thread or shard. It is a pseudo-random
// permutation of [0, count) that needs no memory: a Feistel network over the next power of four with cycle walking
// (Black and Rogaway 2002), keyed by (seed, epoch).
class EpochOrder {
 public:
  EpochOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t count);
  std::int64_t operator()(std::int64_t position) const;  // position in [0, count)

 private:
  std::uint64_t key_ = 0;
  std::int64_t count_ = 0;
  int half_bits_ = 1;
};

// Returns the number of samples, or of characters of running text, that a plan reads: all of them in an evaluation,
// otherwise share x total, rounded, and at least 1.
std::int64_t used_of(const DatasetIndex& index, const LoaderPlan& plan);

// Returns the first character of the kept window of `used` characters, u (total - used) with u in (0, 1] from the seed.
// A shorter window lies in a longer one.
std::int64_t first_used(std::uint64_t seed, std::int64_t total, std::int64_t used);

// Returns the record with number `position` of the fixed random order of all `total` records. A share keeps the first
// ones of this order.
std::int64_t used_record(std::uint64_t seed, std::int64_t total, std::int64_t position);

// Returns the samples that are kept of images with these labels, `used` of them, in increasing order. Each class has
// its part of them, to within one. All samples have one order: a sample whose place in a random order of its class of n
// is r comes at (r + u) / n, with u in (0, 1] drawn for the class. The first `used` of this order are kept.
std::vector<std::uint32_t> used_images(std::uint64_t seed, std::span<const std::int32_t> labels, std::int64_t used);

// Gives the plan the samples of its share, if the data set has images and the plan does not use all of them. Reads all
// labels. The samples take 4 bytes each; 20 bytes for each image of the data set are needed meanwhile. Throws Error if
// there are more images than 32 bits can count.
void choose_images(const Dataset& dataset, LoaderPlan& plan);

// The rows of this rank in a global batch of `batch` rows. If ranks share workers, `first` is the first row of all
// these ranks.
struct RowRange {
  std::int64_t first = 0, count = 0;
};
inline RowRange rows_of_rank(const LoaderPlan& plan, std::int64_t batch) {
  return {plan.first_row * batch / plan.global_batch, plan.rows * batch / plan.global_batch};
}

// Returns the first row of a micro-batch of these rows, in the global batch.
inline std::int64_t first_row_of_pass(const LoaderPlan& plan, const RowRange& own, std::int64_t micro_step) {
  return own.first + (micro_step * plan.span + plan.member) * plan.micro_batch;
}

// Returns how many of the text's characters (without the first one, which nothing predicts) are no target in a training
// epoch with this global batch.
std::int64_t targets_not_read(const DatasetIndex& index, const LoaderPlan& plan);

// The samples of a step, for N samples or T characters (of the share that is used), a batch of B and sequences of L:
// - Training with rows or windows: the step at offset o of epoch e takes the positions [o, o + B) of
//   EpochOrder(seed, e, N).
//   A rest that does not fill a batch is dropped. For another B on the run's course, each rank has the same share,
//   B / global_batch x (first_row, rows), in more micro-batches.
// - course.keeps_rest: the rest at the end of an epoch is filled up to a batch with rows that do not count. For text
//   these are padding rows. For images they are the first images of the epoch, so that batch norm sees no padding.
// - Windows: N = (T - L) / L windows of L + 1 characters at stride L. They begin at a phase in [0, L), which depends
//   on (seed, epoch).
// - Streams: row j of the B global rows reads its own contiguous piece of (T - 1) / B characters, L per step. An epoch
//   has piece / L steps.
// - Evaluation: rows and windows in natural order (windows at phase 0; the last one is shorter and masked). Streams
//   have B rows of ceil((T - 1) / B) characters.
//   Every target occurs exactly once on any number of ranks.
std::int64_t samples_per_epoch(const DatasetIndex& index, const LoaderPlan& plan);  // N (streams: B x steps)
// Returns the steps for global_batch. Throws Error if the plan contradicts itself or the data set, or if N < B in
// training.
std::int64_t steps_per_epoch(const DatasetIndex& index, const LoaderPlan& plan);

// The rows of the global batch at `offset` in the epoch. Row j of a global batch reads `targets` + 1 symbols (input 0
// to target `targets` - 1), or one image (`targets` is 1).
class StepRows {
 public:
  struct Row {
    std::int64_t first = 0;    // order rows: the sample; other orders: the first character
    std::int64_t targets = 0;  // 0: a padding row
    bool counts = true;        // false: an image that only fills the last batch of a training epoch
  };
  StepRows(const DatasetIndex& index, const LoaderPlan& plan, std::int64_t epoch, std::int64_t offset);
  Row operator()(std::int64_t global_row) const;
  bool resets_state() const { return plan_.order == TextOrder::streams && offset_ == 0; }

 private:
  std::int64_t record_at(std::int64_t position) const;

  const LoaderPlan& plan_;
  std::int64_t offset_, total_, characters_, samples_, first_character_ = 0, phase_ = 0;
  bool is_image_;
  EpochOrder order_;
};

}  // namespace ringtrain
