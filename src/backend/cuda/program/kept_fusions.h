// The timed choices of earlier searches, beside cuDNN's plans in the folder that keeps those: one search serves every
// later run on the same type of GPU with the same cuDNN, as its plans do.
#pragma once

#include <string>

#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

// Nothing where `folder` is "" or has no such file; a damaged file counts as none, with a warning.
void load_kept_fusions(const std::string& folder, FusionTable& table);
// Adds the table's timed choices to the file. A choice by bytes alone is not kept: a later run may have time to search.
// A folder that cannot be written costs later runs a search, nothing else.
void keep_fusions(const std::string& folder, const FusionTable& table);

}  // namespace ringtrain::cuda
