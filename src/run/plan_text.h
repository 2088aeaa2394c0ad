// What `ringtrain plan` and `train` say of a plan: tables (plan_tables.cpp, and those of the ranks in rank_tables.cpp)
// and warnings (plan_warnings.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

namespace cuda {
struct Traffic;
}

// Returns the table that `plan` and `train` print of the whole plan. Its rows are in the order of the plan's stages
// (plan.h), but the row `batch` already says how ranks and passes divide a batch. `backend` is Backend::describe().
// `memory` is rank_memory().
std::string describe_run(const RunPlan& plan, const std::string& backend, const std::vector<MemoryItem>& memory);
std::string describe_parameters(const RunPlan& plan);
std::string describe_memory(const std::vector<MemoryItem>& memory);

// Returns a table of the bytes that a training step reads and writes in a GPU's memory, per sample of a pass with
// `micro_batch` samples. The copies of the weights are written once for `rows_per_rank` samples. `sites` is the number
// of places where kernels may be joined. `timed` is the number of places that are joined because a search on such a GPU
// has timed them.
std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed);

// ---- The ranks: servers, owners of weights, stages and the fixed order of sums

// Returns "4 ranks", or for a pipeline "4 ranks = 2 replicas of 2 stages". The ranks that share a batch are then the
// replicas.
std::string describe_ranks(const RunPlan& plan);

// Returns a text such as "1, and 3 workers; asynchronous, an update is 32 samples of one worker; ...". The run has
// servers with ranks of their own.
std::string describe_servers(const RunPlan& plan);

// Returns one line for servers that are workers too or for sharded state; "" for other runs.
std::string describe_owners(const RunPlan& plan);

// Returns a table with a row for each kind of rank: its elements, the bytes of its optimizer state, and its memory. ""
// if all ranks do the same.
std::string owner_table(const RunPlan& plan, Backend& backend);

// Returns the table of the stages for `plan`: layers, parameters, memory of a rank, bytes per micro-batch that cross
// between stages, the predicted share of the time, and the bubble. "" if there is one stage.
std::string describe_stages(const RunPlan& plan, Backend& backend);

// Returns a table with the tree ("8 passes of 32 samples; ...") and the memory and time that it costs a rank. If
// `measures` is true, the time is measured here by adding vectors of that size. With communication.order=any, the
// passes might be larger and therefore faster. A row then says how many samples they would have, because this cost is
// not measured. Returns "" if there is no fixed order.
std::string describe_fixed_order(const RunPlan& plan, Backend& backend, bool measures);

// ---- Warnings

// Warns of experiments that are allowed but probably not what the user wants. Returns one sentence for each of these
// problems, with the keys and what to do:
// - a warm-up that lasts as long as the run, or that ends at the rate it began with;
// - a milestone inside an epoch of a rate that changes only between epochs;
// - a rate that is scaled linearly to 8 times the base batch or more and has no warm-up, which often diverges early
//   (Goyal et al. 2017, section 2.2, for ResNet-50). The transition from RMSprop to SGD counts as a warm-up;
// - an average of the weights that begins after the end of the run;
// - decoupled weight decay that takes away whole weights in a step;
// - classes without training pictures, in the data set or in its data.share;
// - raw pictures whose sides are less than half of data.image_size (the sizes of JPEG files are not known here);
// - checkpoints (weights, statistics and optimizer state, 4 bytes each) that do not fit the disk of the run's folder.
std::vector<std::string> plan_warnings(const RunPlan& plan);

}  // namespace ringtrain
