// All ranks of a job compute with the same CPU instruction set: the lowest that any of them has. Copies of the model on
// processors of two kinds would otherwise differ by rounding, and the comparison of the copies (train/replica_check.h)
// would end the job.
#pragma once

#include "cluster/rank_group.h"

namespace ringtrain {

// Collective over the job. Call it before anything computes.
void agree_on_instruction_sets(const RankGroup& job);

// Warns, once and on rank 0 of the job, if some ranks compute with a lower instruction set than their processors have.
// The warning names the instruction set, and the rank and host whose processor has no higher one. Call this function
// only if the CPU computes.
void report_lower_instruction_sets();

}  // namespace ringtrain
