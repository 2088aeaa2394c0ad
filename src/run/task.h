// The first stage of a plan (plan.h): what is trained on what. Also how a data set is read, which the later stages ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Throws Error if the model, the keys and the data sets do not fit together. `validation` may be null.
void check_data(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation);
// As check_data(), and for another number of samples than data.train_samples states, which only training needs.
void check_training_data(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation);

// Returns the model, with the blocks marked that memory.recompute names. Throws Error for an unknown name.
Graph model_of(const Experiment& experiment, const DatasetIndex& train);
// Returns whether memory.recompute is auto: the blocks are then chosen so that the pass fits (fitting_passes.h).
bool chooses_recomputation(const Experiment& experiment);
// Returns the names in memory.recompute; nothing for none and auto.
std::vector<std::string> named_blocks(const Experiment& experiment);

// `model` is model_of().
RunTask task_of(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                const Graph& model);

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

}  // namespace ringtrain
