// The plan of a run. Begin reading here, and then read make_run_plan() in plan.cpp. The plan is computed from the
// experiment, the data sets' headers and the number of ranks, before any memory is allocated. It is a row of stages.
// Each stage is a struct that a function makes once, whole, from the stages before it. The passes also depend on what
// the backend says of their memory and speed:
//   RunTask    task.h: what is trained on what
//   RunCourse  course.h: batch, steps and rate, on any number of ranks
//   RunSplit   split.h: servers, stages, and how the ranks divide a batch
//   RunPasses  passes.h: the micro-batch and the reason for it, the loaders. fitting_passes.h: if these do not fit, a
//              smaller micro-batch or blocks that are computed again
//   memory     memory.h: the bytes of a rank, which differ from rank to rank
// The file of a stage calls those of earlier stages only, but for fitting_passes.cpp, which asks memory.h for the bytes
// of each plan that it tries. With asynchronous servers, a step of the course is one worker's share of a batch, so
// make_run_plan() asks split.h for the servers (server_plan()) before it plans the course.
//
// `ringtrain plan` prints the plan (plan_text.h), and `ringtrain train` carries it out. The other files of this folder
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

// Returns a name for the experiment. It depends on everything that decides the result and on nothing else: every key
// that decides what is learned, and the identity of both data sets (uuid and split, not the path). It has 16
// hexadecimal digits and is the same on any machine, with any number of ranks, folder or file name. If servers have
// ranks of their own, the name depends on the number of workers. The name of a branch depends on the point at which it
// leaves its source run. If a data set is
// not on this machine and the experiment gives its size (stated_index()), its identity is unknown. The name then
// differs from the name of the run, and describe_run() says so.
std::string experiment_id(const RunPlan& plan);

// Returns a text that is equal for two models if the weights of one fit the other. It contains every tensor's name and
// shape, and the vocabulary of its rows.
std::string model_fingerprint(const RunPlan& plan);

}  // namespace ringtrain
