// The trials of a study.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/study_file.h"

namespace ringtrain {

struct Trial {
  // Usable as a folder. It says in what the trial differs from the experiment's file, rules and limits apart, so it
  // stays as it is when the study gets more values, keys or seeds: "ranks-4_global-16384_seed-2".
  std::string name;
  std::string point;                   // the name without its seed
  std::vector<std::string> also;       // names of other choices that make the same trial
  std::vector<std::string> overrides;  // of the experiment's file: what is varied, rules, limits; "key=value"
  std::int64_t ranks = 1;
  Experiment experiment;  // checked, with these overrides and the command line's
};

struct Trials {
  std::vector<Trial>
      list;  // in the study's order: the last key of `vary` before the draws and the seeds, which are last
  std::size_t choices = 0;  // of which some are left out, and some make the same trial
  std::size_t left_out = 0;
};

inline constexpr std::size_t most_trials = 10000;

// Throws Error that names file, line and column, and the trial: for a value or a result of a rule that its key does not
// take, for keys that contradict each other, and where ranks_per_trial would change batch.global and no rule says so.
Trials make_trials(const Study& study);

// Places in `trials` that share K of N works on, in their order: 1/N to N/N, and 0/N is N/N, so that arrays may count
// from 0 or from 1. Shares are disjoint and complete, their sizes differ by at most one, and each has some of
// everything: trials are dealt in the order of a hash of their names. Throws Error.
std::vector<std::size_t> share_of(const Trials& trials, std::int64_t k, std::int64_t n);

}  // namespace ringtrain
