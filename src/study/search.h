// Computes the searches of a study with search: halving from its trials.
#pragma once

#include <string>
#include <vector>

#include "study/halving.h"
#include "study/trials.h"

namespace ringtrain {

// The trials that are compared with each other. A study has one search, or one for each value of budget.within.
struct TrialSearch {
  std::string value;                // of budget.within; "": the study's only search
  std::string name;                 // "global-128", part of the names of its files; "": the study's only search
  std::vector<std::size_t> places;  // of its trials in Trials::list
  std::vector<std::string> points;  // of these trials. Trials that differ only in the seed are one point
  std::vector<Rung> rungs;
};

// Returns the searches in the order of their first trials. Throws Error if the study has no budget, if an experiment
// has no validation data, if the trials have different numbers of ranks, if the trials of one search have different
// samples, or if budget.first is not smaller than they are.
std::vector<TrialSearch> searches_of(const Study& study, const Trials& trials);

// Returns the samples of all trials of the searches together, with every seed.
double samples_of_searches(const Study& study, const Trials& trials);

// Returns, for study.json: {"kind": "halving", "factor": 3, "rungs": [{"rung": 1, "samples": 1000, "trials": 9}, ...]}.
// With budget.within: {"kind": "halving", "factor": 3, "within": "batch.global", "searches": [{"value": "128",
// "names": [names of its trials], "rungs": [...]}, ...]}.
std::string search_json(const Study& study, const Trials& trials);

// Returns a table of the rungs for the user. It ends with the samples of the searches, and their share of the samples
// that all points would need without halving.
std::string describe_rungs(const Study& study, const Trials& trials);

}  // namespace ringtrain
