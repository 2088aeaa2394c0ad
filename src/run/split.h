// Divides the work of a run among its ranks: parameter servers with ranks of their own, the stages of a pipeline, and
// the shares of a batch. Also the part of each rank.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "run/plan.h"

namespace ringtrain {

// Returns nothing if all ranks do the same. Throws Error if there are too few ranks, if the workers do not divide the
// batch, or if ranks compute on GPUs.
std::optional<ServerPlan> server_plan(const Experiment& experiment, int ranks, bool on_device);

// With async, returns an experiment in which a step is one update, so its batches are one worker's share. Otherwise
// returns the same experiment. Throws Error if the workers do not divide a batch.
Experiment experiment_of_update(const Experiment& experiment, const std::optional<ServerPlan>& servers);

// Plans how `ranks` ranks share batches of `batch` and the model. Throws Error if the stages do not divide the ranks,
// if a named layer does not exist, if the ranks cannot share a batch (batch_shares()), if they would share the workers
// of batch norm although there are servers with ranks of their own or a pipeline, or if test.slow_rank or
// test.flip_bit_rank is not one of them.
RunSplit plan_split(const Experiment& experiment, const BatchConfig& batch, const Graph& model, int ranks,
                    const std::optional<ServerPlan>& servers);

// Plans how any number of ranks share an evaluation with these batches. Every rank has the whole model.
RunSplit plan_evaluation_split(const BatchConfig& batch, const Graph& model, int ranks);

// Returns the number of stages that the experiment asks for. 1 if every rank computes the whole model.
std::int64_t stages_of(const ParallelConfig& parallel);

// Returns the number of values in a bucket of gradients, which is summed over the ranks by itself. If the experiment
// does not set it, buckets grow with the number of ranks, because every rank sums one piece of a bucket. They do not
// grow in a fixed order, because the small-batch norms are added bucket by bucket.
std::int64_t bucket_elements(const CommunicationConfig& communication, bool on_device, std::int64_t ranks);
inline std::int64_t bucket_elements(const RunPlan& plan, bool on_device) {
  return bucket_elements(plan.experiment.communication, on_device, plan.batch.ranks);
}

// The part of the model that a rank computes: the whole model, or one stage of a pipeline.
struct ModelPart {
  Graph graph;
  ParameterTable parameters;
  std::int64_t stage = 0, stages = 1;
  std::int64_t slots = 1;  // number of micro-batches in flight
  bool is_whole() const { return stages == 1; }
  bool is_last() const { return stage + 1 == stages; }
};

// The nodes [first, last) of the whole model that a stage of a pipeline computes.
struct StageNodes {
  int first = 0, last = 0;
};
StageNodes nodes_of(const RunPlan& plan, std::int64_t stage);

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

}  // namespace ringtrain
