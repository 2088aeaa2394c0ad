// The warnings of `ringtrain plan` and `train` about experiments that are allowed but probably not what the user wants.
#pragma once

#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns one sentence for each of these problems, with the keys and what to do:
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
