// Where a branch leaves the run that it goes on from.
#pragma once

#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "run/plan.h"

namespace ringtrain {

// Of a checkpoint that branch.from names; its header suffices.
BranchPoint branch_point_at(const Checkpoint& source);

// Every checkpoint of a branch keeps its own; nothing: the checkpoint is of no branch.
void store_branch_point(Checkpoint& checkpoint, const BranchPoint& point);
std::optional<BranchPoint> stored_branch_point(const Checkpoint& checkpoint);

std::string source_text(const BranchPoint& point);  // 16 hexadecimal digits

// Of an experiment that is planned and not run: the header of the checkpoint that branch.from names. Nothing where the
// experiment is no branch, or names a point of a run that is not there yet.
std::optional<Checkpoint> planned_source(const Experiment& experiment);

}  // namespace ringtrain
