// Makes the list of a study's trials: every combination of its choices, draws and seeds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/study_file.h"

namespace ringtrain {

struct Trial {
  // Usable as a folder's name: "ranks-4_global-16384_seed-2". The name lists the varied values that differ from the
  // experiment's file. It does not list the results of rules and limits. The name therefore stays the same when the
  // study gets more values, keys or seeds.
  std::string name;
  std::string point;                   // the name without its seed
  std::vector<std::string> also;       // names of other choices that make the same trial
  std::vector<std::string> overrides;  // "key=value": varied keys, rules and limits
  std::int64_t ranks = 1;
  std::int64_t samples = 0;  // by limits.samples, before it is rounded up to whole steps; 0: without it
  Experiment experiment;     // checked; has these overrides and those of the command line
};

struct Trials {
  // In the study's order: the first axis changes slowest, then come the other axes, the draws, and the seeds, which
  // change fastest.
  std::vector<Trial> list;
  std::size_t choices = 0;   // combinations, including those that are left out or make an equal trial
  std::size_t left_out = 0;  // combinations that do not fulfil the study's conditions
};

inline constexpr std::size_t most_trials = 10000;

// Throws Error if a value or the result of a rule is not valid for its key, if keys contradict each other, and if
// ranks_per_trial would change batch.global without a rule that says so. Most messages name the file, line and column,
// and the trial.
Trials make_trials(const Study& study);

// Returns the places in `trials` that share K of N works on, in increasing order. K is 1 to N. Share 0 is share N, so
// that a job array may count from 0 or from 1. Every trial is in one share, and the sizes of shares differ by at most
// one. Trials are dealt in the order of a hash of their names, so each share has a mixture of trials. Throws Error if K
// or N is out of range.
std::vector<std::size_t> share_of(const Trials& trials, std::int64_t k, std::int64_t n);

}  // namespace ringtrain
