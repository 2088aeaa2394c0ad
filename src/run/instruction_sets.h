// All ranks of a job compute with the same instruction set, the lowest of all. Copies of the model on processors of two
// kinds would otherwise differ by rounding, and the comparison of the copies (train/replica_check.h) would end the job.
#pragma once

#include "cluster/rank_group.h"

namespace ringtrain {

// Collective over the job. Call it before anything computes.
void agree_on_instruction_sets(const RankGroup& job);

// Warns, once and on rank 0 of the job, if some ranks compute with less than their processors have. The warning names
// the instruction set and the rank and host that has no more. Call it where the CPU computes.
void report_lower_instruction_sets();

}  // namespace ringtrain
