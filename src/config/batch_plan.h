// The only place with batch arithmetic.
//   global = workers x worker = ranks x accumulation x micro_batch
// Where there are more ranks than batch norm's workers can be dealt out to, a power of two of ranks share each worker
// (span): the members of a team take equal parts of one worker after the other, a part in each pass.
//   global = (ranks / span) teams x accumulation x worker,   worker = span x micro_batch
#pragma once

#include <cstdint>
#include <string>

#include "config/experiment.h"

namespace ringtrain {

struct BatchPlan {
  std::int64_t global = 0;   // samples per optimizer step
  std::int64_t worker = 0;   // samples per virtual worker
  std::int64_t workers = 0;  // global / worker
  std::int64_t ranks = 0;
  std::int64_t span = 1;           // ranks that share a virtual worker: a power of two, 1 without batch norm
  std::int64_t rows_per_rank = 0;  // global / ranks; team t owns global rows [t, t+1) x span x rows_per_rank
  std::int64_t micro_batch = 0;    // samples per device pass
  std::int64_t accumulation = 0;   // device passes per step and rank
  std::int64_t small_batch = 0;    // samples whose gradient the noise scale measures; whole passes
  std::int64_t small_batches() const { return rows_per_rank / small_batch; }  // per step and rank
  std::int64_t passes_of_small_batch() const { return small_batch / micro_batch; }
};

// Of the run's first batch. `preferred_micro_batch` (at least 1): what the backend runs fastest; used where batch.micro
// is 0 (auto): the divisor of rows_per_rank nearest to it in ratio, so that a prime 4099 near 256 becomes one pass of
// 4099 and not 4099 passes of 1. `whole_workers`: in a model with batch norm a pass may not split a virtual worker, so
// micro_batch is then a multiple of batch.worker, or a worker's part where ranks share it. The span is the smallest
// power of two that divides ranks and batch.worker and leaves as many teams as divide the workers. Throws Error when
// worker does not divide global, ranks do not divide the workers and cannot share them, or batch.micro does not divide
// the rank's rows; the hint lists values that work. `small_batch`: as
// stated, a multiple of batch.worker and of batch.micro, which must divide the rank's rows; micro_batch then divides
// it. 0: a micro-batch. All this holds for every batch that the run may have (batches_on_course()), with the same
// micro_batch and small_batch.
BatchPlan batch_plan(const BatchConfig& batch, std::int64_t ranks, std::int64_t preferred_micro_batch,
                     bool whole_workers, std::int64_t small_batch = 0);

// The span of batch_plan() for a model with batch norm; 0: the ranks can neither divide the workers nor share them.
std::int64_t ranks_per_worker(const BatchConfig& batch, std::int64_t ranks);

// The same ranks, worker, span, micro_batch and small_batch with another batch on the run's course: more or fewer
// passes.
BatchPlan resized(const BatchPlan& plan, std::int64_t batch);

// For a hint: 1 and the eight divisors of `number` nearest to `wanted`, in increasing order: "1, 192, 256, 384".
std::string nearest_divisors(std::int64_t number, std::int64_t wanted);

// The arithmetic in one line, with numbers: "4096 = 16 workers x 256 = 2 ranks x 8 micro-steps x 256".
std::string to_string(const BatchPlan& plan);

}  // namespace ringtrain
