// Computes which symbols or which image each row of each global batch reads. The functions depend only on the plan, so
// that every rank, thread and resumed run finds the same rows.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "data/sampler.h"

namespace ringtrain {

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

// Throws Error if the plan contradicts itself or the data set.
void check_loader_plan(const DatasetIndex& index, const LoaderPlan& plan);

// Returns how many of the text's characters (without the first one, which nothing predicts) are no target in a training
// epoch with this global batch.
std::int64_t targets_not_read(const DatasetIndex& index, const LoaderPlan& plan);

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
