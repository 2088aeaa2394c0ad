// The plan of a run. Begin reading here. A RunPlan is computed from the experiment, the data set's headers and the
// number of ranks, before any memory is allocated. `ringtrain plan` prints the plan, and `ringtrain train` carries it
// out. The other files of this room (src/run) do the rest of a run that is not training: course.h gives the batch and
// the rate at a position, memory_plan.h keeps a rank below its memory limit, machine.h chooses devices and
// communicators, folder.h owns the run's folder, and recorder.h and record.h write metrics.jsonl and run.json.
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
  Position position;         // an epoch below 0: the checkpoint of an earlier version does not say
  std::uint64_t source = 0;  // a hash of that run's deciding keys, its data and the place; 0: not known
};

// The ranks of a run whose parameter servers have their own ranks. The first ranks are servers, the others are workers.
struct ServerPlan {
  int servers = 1;   // ranges of the weights
  int replicas = 1;  // servers that hold each range
  int workers = 1;
  int ranks() const { return servers * replicas; }  // of the servers
  bool async = false;  // an update is one worker's share of the batch; else a step takes the workers that come first
};

// The part of the model that a rank computes: the whole model, or one stage of a pipeline.
struct ModelPart {
  Graph graph;
  ParameterTable parameters;
  std::int64_t stage = 0, stages = 1;
  std::int64_t slots = 1;  // micro-batches in flight
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
  std::vector<int> cuts;  // of a pipeline: the first node of each stage after the first; the ranks of `batch` are then
                          // replicas, each of stages() ranks
  std::int64_t stages() const { return std::ssize(cuts) + 1; }
  BatchPlan batch;                    // async: of one update, on one rank
  std::optional<ServerPlan> servers;  // none: all ranks do the same
  std::int64_t norm_group = 0;        // samples that batch norm normalises together, on batch.span ranks; 0: none
  BatchCourse course;                 // of the batch over the run; where it follows the noise, its beginning
  std::vector<std::int64_t> batches;  // that the run may have, in increasing order
  BranchPoint branch;                 // a branch's; else the beginning of the data
  ScheduleContext schedule;           // of a branch: that of the run that it leaves
  double adascale_times = 0;          // AdaScale's S = batch.global / learning_rate.base_batch; 0: it is off
  ScheduleContext base_schedule;      // AdaScale's: of steps of base_batch
  std::int64_t updates = 0;           // of the whole run by stop.epochs and stop.steps; 0: not known
  std::int64_t samples_per_epoch = 0;
  LoaderPlan train_loader, validation_loader;  // of rank 0; for_rank() gives the others
  std::int64_t norm_samples = 0;  // on which batch norm's statistics are recomputed for evaluations; 0: they are not
  LoaderPlan norm_loader;         // of one rank's passes over them, from any multiple of its batch on
  bool carries_state = false;     // running text in streams
  bool measures_noise = false;    // some steps measure the gradient noise scale
  double noise_half_life = 0;     // samples
  std::int64_t patience = 0;      // samples, of batch.follow_noise
};

// `recorded_micro_batch` (0: none) is kept where batch.micro is auto and it still divides the rank's rows. Throws Error
// for every contradiction between experiment, data and ranks. `branch`: where a branch begins; without it at the
// beginning of the data. memory.* is carried out here (run/memory_plan.h).
RunPlan make_run_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                      int ranks, Backend& backend, std::int64_t recorded_micro_batch = 0,
                      const std::optional<BranchPoint>& branch = std::nullopt);

// Makes a plan for an evaluation on any number of ranks. It needs neither a learning rate nor enough samples for a
// step. Each row of a batch of streams is a stream of its own, so that their number must stay: ranks beyond batch.ranks
// then have no rows.
RunPlan make_evaluation_plan(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                             int ranks, Backend& backend, std::int64_t recorded_micro_batch = 0);

// Stands for a data set of images that is not here (a cluster's, seen from a laptop), as the experiment states it:
// data.train_samples or data.validation_samples, and data.classes. Throws Error when it does not.
DatasetIndex stated_index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);

// Names the experiment by all that decides its result, and by nothing else: every key that decides what is learned, and
// the identity of both data sets (uuid and split, not the path). 16 hexadecimal digits, the same for any machine,
// number of ranks, folder or file name. Where a data set is not here and the experiment states its size
// (stated_index()), its identity is unknown: the id is then another than the run's will be, and describe_run() says so.
std::string experiment_id(const RunPlan& plan);

// Steps of the whole run by stop.epochs and stop.steps, whichever ends first, where all have the first batch; 0:
// neither is given. Not with AdaScale, whose epochs are those of RunPlan::base_schedule.
std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch);

// Values in a range of gradients that is reduced by itself. Where the experiment does not say it, ranges grow with the
// ranks, which each sum a piece; not in a fixed order, where the small batches' norms are added range by range.
std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks);

// Of rank `rank` of all: what it computes, and its loader: a pipeline's stages share their replica's rows, and only the
// first one needs pixels.
ModelPart part_of(const RunPlan& plan, int rank);
LoaderPlan for_rank(const RunPlan& plan, LoaderPlan loader, int rank);
LoaderPlan for_rank(LoaderPlan plan, int rank);
// The first rank that computes gradients and evaluates.
inline int first_worker(const RunPlan& plan) {
  return plan.servers ? plan.servers->ranks() : 0;
}
// The loader that a rank uses in training.
LoaderPlan train_loader_of(const RunPlan& plan, int rank);
// Compiles the program of this part for a micro-batch.
std::unique_ptr<Program> compile_part(const RunPlan& plan, const ModelPart& part, Backend& backend, PassMode mode,
                                      std::int64_t micro_batch);

// Text that is equal for two models if the weights of one fit the other: every tensor's name and shape, and the
// vocabulary that its rows stand for.
std::string model_fingerprint(const RunPlan& plan);

// The exact bytes of memory that one rank needs, item by item: vectors, programs, loaders and the data set.
std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank = 0);

// Whether the update from `before` to `position` made something due that happens `every_epochs` (a fraction is allowed)
// or `every_steps`; 0 = never. `offset_epochs` above 0: for the first time after so many epochs, then every_epochs
// apart.
bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs = 0);

}  // namespace ringtrain
