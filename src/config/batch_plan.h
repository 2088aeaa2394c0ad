// Divides the global batch into virtual workers, ranks and micro-batches. A virtual worker is a group of
// batch.worker samples over which batch norm computes its statistics.
//   global = workers x worker = ranks x accumulation x micro_batch
// A model with batch norm may have more ranks than whole workers. A team of ranks then shares each worker. The size of
// the team (span) is a power of two. The team processes one worker in each pass, and every member takes an equal part
// of it.
//   global = (ranks / span) teams x accumulation x worker,   worker = span x micro_batch
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

struct BatchPlan {
  std::int64_t global = 0;   // samples per optimizer step
  std::int64_t worker = 0;   // samples per virtual worker
  std::int64_t workers = 0;  // global / worker
  std::int64_t ranks = 0;
  std::int64_t span = 1;           // ranks that share a virtual worker: a power of two, 1 without batch norm
  std::int64_t rows_per_rank = 0;  // global / ranks; team t owns span x this many rows, from t x span x this on
  std::int64_t micro_batch = 0;    // samples per device pass
  std::int64_t accumulation = 0;   // device passes per step and rank
  std::int64_t small_batch = 0;    // samples whose gradient is measured for the noise scale; a multiple of micro_batch
  std::int64_t small_batches() const { return rows_per_rank / small_batch; }  // per step and rank
  std::int64_t passes_of_small_batch() const { return small_batch / micro_batch; }
};

// How the ranks divide every batch of a run, before a micro-batch is chosen.
struct BatchShares {
  std::int64_t global = 0;  // the first batch
  std::int64_t worker = 0;
  std::int64_t ranks = 0;
  std::int64_t span = 1;                    // as in BatchPlan
  std::int64_t small_batch = 0;             // noise.small_batch; 0: a pass
  std::int64_t stated = 0;                  // batch.micro, if it is set; 0: one of `micro_batches` is chosen
  std::vector<std::int64_t> micro_batches;  // the possible ones, in increasing order; at least one
};

// Returns the shares of the ranks.
// `whole_workers` is true for a model with batch norm. A pass must not split a virtual worker then, so a micro-batch is
// a multiple of batch.worker. If ranks share a worker, it is one rank's part of it. The span is the smallest power of
// two that divides both ranks and batch.worker and for which the number of teams divides the workers.
// `small_batch` must be a multiple of batch.worker and of batch.micro, and must divide the rank's rows. A micro-batch
// then divides small_batch.
// These rules hold for every batch that the run may have (batches_on_course()), with one micro-batch and small_batch.
// Throws Error if worker does not divide global, if ranks can neither divide the workers nor share them, or if
// batch.micro or small_batch does not divide the rank's rows. The hint lists values that work.
BatchShares batch_shares(const BatchConfig& batch, std::int64_t ranks, bool whole_workers,
                         std::int64_t small_batch = 0);

// Returns the possible micro-batch whose ratio to `preferred`, the one that the backend runs fastest, is nearest to 1.
// For example, 4099 is a prime number. If a rank has 4099 rows and 256 is preferred, it is 4099 and not 1. Throws Error
// if `preferred` is below 1.
std::int64_t nearest_micro_batch(const BatchShares& shares, std::int64_t preferred);

// Returns the plan for the first batch of the run with this micro-batch: shares.stated, or one that is possible. If
// shares.small_batch is 0, the plan's small_batch is the micro-batch.
BatchPlan batch_plan(const BatchShares& shares, std::int64_t micro_batch);
// Returns the plan of these shares with batch.micro or, if it is 0, with the nearest micro-batch.
BatchPlan batch_plan(const BatchConfig& batch, std::int64_t ranks, std::int64_t preferred_micro_batch,
                     bool whole_workers, std::int64_t small_batch = 0);

// Returns the span of batch_shares() for a model with batch norm; 0 if ranks can neither divide nor share the workers.
std::int64_t ranks_per_worker(const BatchConfig& batch, std::int64_t ranks);

// Returns the plan for another batch on the run's course. global, workers, rows_per_rank and accumulation change. The
// ranks, worker, span, micro_batch and small_batch stay the same.
BatchPlan resized(const BatchPlan& plan, std::int64_t batch);

// Returns the batch with which any number of ranks evaluates. The result is `batch` if the ranks can divide its virtual
// workers. Otherwise global is rounded up, so that every rank has the same number of passes. A pass then has
// batch.micro samples. If batch.micro is 0, a pass has `recorded_micro_batch` samples (0: batch.worker) or a rank's
// share of the batch, whichever is smaller. Samples must be independent of each other, as images, names and windows of
// text are.
BatchConfig evaluation_batch(BatchConfig batch, std::int64_t ranks, std::int64_t recorded_micro_batch);

// Returns the largest number of ranks, at most `ranks`, that divides the virtual workers and gives each rank whole
// passes of batch.micro samples.
std::int64_t dividing_ranks(const BatchConfig& batch, std::int64_t ranks);

// Returns 1 and the eight divisors of `number` nearest to `wanted`, in increasing order, for a hint. For 768 and 256,
// this is "1, 48, 64, 96, 128, 192, 256, 384, 768".
std::string nearest_divisors(std::int64_t number, std::int64_t wanted);

// Returns the arithmetic in one line: "4096 = 16 workers x 256 = 2 ranks x 8 micro-steps x 256".
std::string to_string(const BatchPlan& plan);

}  // namespace ringtrain
