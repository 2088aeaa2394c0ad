// Finds and stores the branch point: the point at which a branch leaves the run that it continues.
#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "run/plan.h"

namespace ringtrain {

// Returns the branch point of a checkpoint that branch.from names. The header of the checkpoint suffices.
BranchPoint branch_point_at(const Checkpoint& source);

// Every checkpoint of a branch contains its branch point. stored_branch_point() returns nothing if the checkpoint does
// not belong to a branch.
void store_branch_point(Checkpoint& checkpoint, const BranchPoint& point);
std::optional<BranchPoint> stored_branch_point(const Checkpoint& checkpoint);

std::string source_text(const BranchPoint& point);  // 16 hexadecimal digits

// Returns the header of the checkpoint that branch.from names, for an experiment that is planned but not run. Returns
// nothing if the experiment is not a branch, or if branch.from names a point of a run that does not exist yet.
std::optional<Checkpoint> planned_source(const Experiment& experiment);

}  // namespace ringtrain
