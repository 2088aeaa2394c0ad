// Tells which keys change what a run learns. The id of an experiment is made from these keys (run/plan.h).
#pragma once

#include "config/schema.h"

namespace ringtrain {

// Returns whether the field decides what this experiment learns. Keys for speed, folders or logging
// (Field::how_it_runs()) do not. Keys of the noise scale do if training depends on the measured noise:
// optimizer.adascale computes its gain from noise.small_batch, and batch.follow_noise chooses the batch. Keys
// of parallel decide only with asynchronous servers or backup workers, and keys of branch only in a branch.
bool decides_what_is_learned(const Field& field, const Experiment& experiment);

}  // namespace ringtrain
