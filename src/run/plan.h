// The plan of a run. Begin reading here. A RunPlan is computed from the experiment, the data set's headers and the
// number of ranks, before any memory is allocated. `ringtrain plan` prints the plan, and `ringtrain train` carries it
// out. The other files of this folder (src/run) do everything in a run that is not training: course.h gives the batch
// and the rate at a position, memory_plan.h keeps a rank below its memory limit, machine.h chooses devices and
// communicators, folder.h makes and locks the run's folder, and recorder.h and record.h write metrics.jsonl and
// run.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/batch_course.h"
#include "config/batch_plan.h"
#include "config/experiment.h"
#include "data/loader.h"
#include "nn/graph.h"
#include "optim/learning_rate.h"

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

// The part of the model that a rank computes: the whole model, or one stage of a pipeline.
struct ModelPart {
  Graph graph;
  ParameterTable parameters;
  std::int64_t stage = 0, stages = 1;
  std::int64_t slots = 1;  // number of micro-batches in flight
  bool is_whole() const { return stages == 1; }
  bool is_last() const { return stage + 1 == stages; }
};

struct RunPlan {
  Experiment experiment;
  DatasetIndex train, validation;
  bool has_validation = false;
  Graph graph;
  ParameterTable parameters;
  Precision precision = Precision::fp32;
  std::vector<int> cuts;  // pipeline: the first node of each stage after the first; the ranks of `batch` are then
                          // replicas, each with stages() ranks
  std::int64_t stages() const { return std::ssize(cuts) + 1; }
  BatchPlan batch;                    // async: the batch of one update, on one rank
  std::optional<ServerPlan> servers;  // none: all ranks do the same work
  std::int64_t norm_group = 0;        // samples that batch norm normalises together, on batch.span ranks; 0: none
  BatchCourse course;                 // the batch over the run; only the first batch if it follows the noise
  std::vector<std::int64_t> batches;  // all batches that the run may have, in increasing order
  BranchPoint branch;                 // the beginning of a branch; otherwise the beginning of the data
  ScheduleContext schedule;           // the run's schedule; in a branch, that of the run that it leaves
  double adascale_times = 0;          // AdaScale's S = batch.global / learning_rate.base_batch; 0: it is off
  ScheduleContext base_schedule;      // AdaScale: the schedule in steps of base_batch
  std::int64_t updates = 0;           // updates of the run by stop.epochs, stop.steps and branch.samples; 0: not known
  std::int64_t samples_per_epoch = 0;
  LoaderPlan train_loader, validation_loader;  // the loaders of rank 0; for_rank() makes those of other ranks
  std::int64_t norm_samples = 0;               // samples for recomputing batch norm's statistics; 0: not recomputed
  LoaderPlan norm_loader;                      // passes over these samples; each rank reads some of the passes
  bool carries_state = false;                  // whether an LSTM's hidden state is carried from step to step
  bool measures_noise = false;                 // whether some steps measure the gradient noise scale
  double noise_half_life = 0;                  // samples
  std::int64_t patience = 0;                   // samples of patience, for batch.follow_noise
};

// Makes the plan of a run. `recorded_micro_batch` (0: none) is kept if batch.micro is auto and the value still divides
// the rank's rows. `branch` is where a branch begins; without it the run begins at the beginning of the data. memory.*
// is applied here too (run/memory_plan.h). Throws Error if experiment, data and ranks do not fit together.
RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, std::int64_t recorded_micro_batch = 0,
                      const std::optional<BranchPoint>& branch = std::nullopt);

// Makes a plan for an evaluation on any number of ranks. It needs neither a learning rate nor enough samples for a
// step. Each row of a batch of streams is a stream of its own, so the number of rows must stay the same. Ranks beyond
// batch.ranks then have no rows.
RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch = 0);

// Returns the index of a data set of images that is not on this machine, for example a cluster's data set on a laptop.
// It is made from data.train_samples or data.validation_samples and from data.classes. Throws Error if the experiment
// does not give them.
DatasetIndex stated_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);

// Returns a name for the experiment. It depends on everything that decides the result and on nothing else: every key
// that decides what is learned, and the identity of both data sets (uuid and split, not the path). It has 16
// hexadecimal digits and is the same on any machine, with any number of ranks, folder or file name. If servers have
// ranks of their own, the name depends on the number of workers. The name of a branch depends on the point at which it
// leaves its source run. If a data set is
// not on this machine and the experiment gives its size (stated_index()), its identity is unknown. The name then
// differs from the name of the run, and describe_run() says so.
std::string experiment_id(const RunPlan& plan);

// Returns the steps of the whole run by stop.epochs and stop.steps, whichever ends first, if all steps have the first
// batch. 0: neither is given. Not for AdaScale, whose epochs are those of RunPlan::base_schedule.
std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch);

// Returns the number of values in a bucket of gradients, which is summed over the ranks by itself. If the experiment
// does not set it, buckets grow with the number of ranks, because every rank sums one piece of a bucket. They do not
// grow in a fixed order, because the small-batch norms are added bucket by bucket.
std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks);

// part_of() returns the part of the model that rank `rank` computes. for_rank() returns the loader of that rank. The
// stages of a pipeline share the rows of their replica, and only the first stage needs pixels.
ModelPart part_of(const RunPlan& plan, int rank);
LoaderPlan for_rank(const RunPlan& plan, LoaderPlan loader, int rank);
LoaderPlan for_rank(LoaderPlan plan, int rank);
// Returns the first rank that computes gradients and evaluates.
inline int first_worker(const RunPlan& plan) {
  return plan.servers ? plan.servers->servers : 0;
}
// Returns the loader that a rank uses in training.
LoaderPlan train_loader_of(const RunPlan& plan, int rank);
// Compiles the program of this part for a micro-batch.
std::unique_ptr<Program> compile_part(const RunPlan& plan, const ModelPart& part, Backend& backend, PassMode mode,
                                      std::int64_t micro_batch);

// Returns a text that is equal for two models if the weights of one fit the other. It contains every tensor's name and
// shape, and the vocabulary of its rows.
std::string model_fingerprint(const RunPlan& plan);

// Returns the bytes of the arrays in a checkpoint of the run, in memory and nearly in the file: weights, statistics,
// optimizer state and carried hidden state.
std::int64_t checkpoint_bytes(const RunPlan& plan);

// Returns the exact bytes of memory that one rank needs, item by item: vectors, programs, loaders and the data set.
std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank = 0);

// Returns whether the update from `before` to `position` reaches a multiple of `every_epochs` (may be a fraction) or
// `every_steps`; 0 = never. If `offset_epochs` is above 0, the first time is after `offset_epochs`, and the next times
// follow `every_epochs` apart.
bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs = 0);

}  // namespace ringtrain
