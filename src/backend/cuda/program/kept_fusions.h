// Keeps the timed choices of earlier searches in the folder of cuDNN's plans. One search then serves every later run on
// the same type of GPU with the same cuDNN.
#pragma once

#include <string>

#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

// Loads the kept choices. Does nothing when `folder` is "" or has no such file. A damaged file is ignored with a
// warning.
void load_kept_fusions(const std::string& folder, FusionTable& table);
// Adds the table's timed choices to the file, at once and after each site that is timed from now on. So a search that
// is killed leaves what it has found. A choice that was made by bytes alone is not kept, because a later run may have
// time to search. Does nothing when `folder` is "". Prints one warning when the file cannot be written; later runs then
// search again.
void keep_fusions(const std::string& folder, FusionTable& table);

}  // namespace ringtrain::cuda
