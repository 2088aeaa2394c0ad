// Computes the rungs of a study's search from its trials.
#pragma once

#include <string>
#include <vector>

#include "study/halving.h"
#include "study/trials.h"

namespace ringtrain {

// The points of the trials, in their order: trials that differ in nothing but the seed are one.
std::vector<std::string> points_of(const Trials& trials);

// The rungs of search: halving. Throws Error if the study has no budget, or if an experiment has no validation data.
std::vector<Rung> rungs_of(const Study& study, const Trials& trials);

// For study.json: {"kind": "halving", "factor": 3, "rungs": [{"rung": 1, "samples": 1000, "trials": 9}, ...]}.
std::string search_json(const Study& study, const Trials& trials);

// Each rung with its points and samples, and what is saved.
std::string describe_rungs(const Study& study, const Trials& trials);

}  // namespace ringtrain
