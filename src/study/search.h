// Computes the rungs of a study's search from its trials.
#pragma once

#include <string>
#include <vector>

#include "study/halving.h"
#include "study/trials.h"

namespace ringtrain {

// Returns the points of the trials, in the order of the trials. Trials that differ only in the seed are one point.
std::vector<std::string> points_of(const Trials& trials);

// Returns the rungs of search: halving. Throws Error if the study has no budget, if an experiment has no validation
// data, or if the trials have different numbers of ranks.
std::vector<Rung> rungs_of(const Study& study, const Trials& trials);

// Returns the samples of all trials of the search together, with every seed.
double samples_of_search(const Study& study, const Trials& trials);

// Returns, for study.json: {"kind": "halving", "factor": 3, "rungs": [{"rung": 1, "samples": 1000, "trials": 9}, ...]}.
std::string search_json(const Study& study, const Trials& trials);

// Returns a table of the rungs for the user. It ends with the samples of the search, and their share of the samples
// that all points would need without halving.
std::string describe_rungs(const Study& study, const Trials& trials);

}  // namespace ringtrain
