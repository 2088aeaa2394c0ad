// The plan of a run. Begin reading here, and then read make_run_plan() in plan.cpp. The plan is computed from the
// experiment, the data sets' headers and the number of ranks, before any memory is allocated. It is a row of stages.
// Each stage is a struct that a pure function makes once, whole, from the stages before it:
//   RunTask    what is trained on what
//   RunCourse  course.h: batch, steps and rate, on any number of ranks
//   RunSplit   split.h: servers, stages, and how the ranks divide a batch
//   RunPasses  passes.h: the micro-batch and the reason for it, the blocks that are computed again, the loaders
//   memory     memory.h: the bytes of a rank, which differ from rank to rank
// `ringtrain plan` prints the plan in this order, and `ringtrain train` carries it out. The other files of this folder
// (src/run) do everything in a run that is not training: machine.h chooses devices and communicators, folder.h makes
// and locks the run's folder, and metrics.h and run_record.h write metrics.jsonl and run.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/batch_course.h"
#include "config/batch_plan.h"
#include "config/experiment.h"
#include "data/loader.h"
#include "nn/graph.h"
#include "optim/schedule.h"

namespace ringtrain {

// The point at which a branch leaves its source run (branch.from).
struct BranchPoint {
  Position position;
  std::uint64_t source = 0;  // hash of the source run's deciding keys (config/schema.h), data and step; 0: not known
};

std::string source_text(const BranchPoint& point);  // BranchPoint::source, 16 hexadecimal digits

// The ranks of a run whose parameter servers have their own ranks. The first ranks are servers, the others are workers.
struct ServerPlan {
  int servers = 1;  // each holds a range of the weights
  int workers = 1;
  bool async = false;  // true: an update uses one worker's share of the batch; false: the shares that arrive first
};

// What is trained on what.
struct RunTask {
  Experiment experiment = {};
  DatasetIndex train = {}, validation = {};
  bool has_validation = false;
  ParameterTable parameters = {};
  Precision precision = Precision::fp32;
  bool carries_state = false;  // whether an LSTM's hidden state is carried from step to step
};

// What the run computes, on any number of ranks. With asynchronous servers, a step is an update with the share of one
// worker. An evaluation has only `batches`.
struct RunCourse {
  std::int64_t samples_per_epoch = 0;
  std::vector<std::int64_t> batches = {};  // all batches that the run may have, in increasing order
  BatchCourse course = {};                 // the batch over the run; only the first batch if it follows the noise
  BranchPoint branch = {};                 // the beginning of a branch; otherwise the beginning of the data
  ScheduleContext schedule = {};           // the run's schedule; in a branch, that of the run that it leaves
  std::int64_t updates = 0;            // updates of the run by stop.epochs, stop.steps and branch.samples; 0: not known
  double adascale_times = 0;           // AdaScale's S = batch.global / learning_rate.base_batch; 0: it is off
  ScheduleContext base_schedule = {};  // AdaScale: the schedule in steps of base_batch
  double noise_half_life = 0;          // samples
  std::int64_t patience = 0;           // samples of patience, for batch.follow_noise
  std::int64_t norm_samples = 0;       // samples for recomputing batch norm's statistics; 0: not recomputed
};

// How the ranks share the work.
struct RunSplit {
  std::optional<ServerPlan> servers = {};  // none: all ranks do the same work
  std::vector<int> cuts = {};  // pipeline: the first node of each stage after the first; the ranks of `shares`
                               // are then replicas, each with stages() ranks
  std::int64_t stages() const { return std::ssize(cuts) + 1; }
  BatchShares shares = {};      // async: of the batch of one update, on one rank
  std::int64_t norm_group = 0;  // samples that batch norm normalises together, on shares.span ranks; 0: none
};

// A micro-batch and who decides it.
struct MicroBatchChoice {
  std::int64_t samples = 0;
  std::string reason;    // a text such as "batch.micro" or "the largest that fits below memory.limit_gib"
  bool is_open = false;  // whether another one may be chosen if this one does not fit
};

// The passes of a step.
struct RunPasses {
  Graph graph;  // the model, in which the blocks that a pass computes again are marked
  MicroBatchChoice micro_batch_choice;
  BatchPlan batch;
  bool measures_noise = false;                 // whether some steps measure the gradient noise scale
  LoaderPlan train_loader, validation_loader;  // those of rank 0; for_rank() makes those of other ranks
  LoaderPlan norm_loader;                      // passes over norm_samples; each rank reads some of the passes
};

struct RunPlan : RunTask, RunCourse, RunSplit, RunPasses {};

// Returns how the ranks share the largest batch that the run may have.
inline BatchPlan largest_batch(const RunPlan& plan) {
  return resized(plan.batch, plan.batches.back());
}

// The micro-batch of an earlier start or of a branch's source; 0: none.
inline MicroBatchChoice micro_batch_of_checkpoint(std::int64_t samples) {
  return {samples, "that of the checkpoint"};
}

// Makes the plan of a run. `known` (0 samples: none) is the micro-batch if batch.micro is 0 and it divides the rank's
// rows. `branch` is where a branch begins; without it the run begins at the beginning of the data. Throws
// Error if experiment, data and ranks do not fit together.
RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, const MicroBatchChoice& known = {},
                      const std::optional<BranchPoint>& branch = std::nullopt);

// Makes a plan for an evaluation on any number of ranks. It needs neither a learning rate nor enough samples for a
// step. Each row of a batch of streams is a stream of its own, so the number of rows must stay the same. Ranks beyond
// batch.ranks then have no rows.
RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch = 0);

// Returns how the samples of a data set become passes of `batch`, for rank 0. `sequence` is Graph::sequence().
LoaderPlan loader_plan(const Experiment& experiment, const DatasetIndex& index, std::int64_t sequence,
                       const BatchPlan& batch, bool evaluation);

// Returns the index of a data set of images that is not on this machine, for example a cluster's data set on a laptop.
// It is made from data.train_samples or data.validation_samples and from data.classes. Throws Error if the experiment
// does not give them.
DatasetIndex stated_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);
// Reads the headers of the data set's shards. If there are no shards, the result is stated_index(), with a warning. So
// a run for a cluster can be planned on a laptop.
DatasetIndex planned_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);

// Returns a name for the experiment. It depends on everything that decides the result and on nothing else: every key
// that decides what is learned, and the identity of both data sets (uuid and split, not the path). It has 16
// hexadecimal digits and is the same on any machine, with any number of ranks, folder or file name. If servers have
// ranks of their own, the name depends on the number of workers. The name of a branch depends on the point at which it
// leaves its source run. If a data set is
// not on this machine and the experiment gives its size (stated_index()), its identity is unknown. The name then
// differs from the name of the run, and describe_run() says so.
std::string experiment_id(const RunPlan& plan);

// Returns the steps of the whole run by stop.epochs and stop.steps, whichever ends first, if all steps have the first
// batch. 0: neither is given. Not for AdaScale, whose epochs are those of RunCourse::base_schedule.
std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch);

// Returns the number of values in a bucket of gradients, which is summed over the ranks by itself. If the experiment
// does not set it, buckets grow with the number of ranks, because every rank sums one piece of a bucket. They do not
// grow in a fixed order, because the small-batch norms are added bucket by bucket.
std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks);
inline std::int64_t bucket_elements(const RunPlan& plan, bool on_device) {
  return bucket_elements(plan.experiment.communication, on_device, plan.batch.ranks);
}

// Returns a text that is equal for two models if the weights of one fit the other. It contains every tensor's name and
// shape, and the vocabulary of its rows.
std::string model_fingerprint(const RunPlan& plan);

// Returns whether the update from `before` to `position` reaches a multiple of `every_epochs` (may be a fraction) or
// `every_steps`; 0 = never. If `offset_epochs` is above 0, the first time is after `offset_epochs`, and the next times
// follow `every_epochs` apart.
bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs = 0);

}  // namespace ringtrain
