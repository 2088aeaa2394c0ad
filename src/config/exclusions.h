// The table of pairs of keys that exclude each other. A row says when it is broken, and has the feature, the key that
// does not go with it, and what the feature needs instead, with the reason.
//
// Two things stay outside of the table. A key that has an effect only with certain values of another key says so in
// schema.cpp (only_with), because the id of a run and the printed experiment depend on that, too. A check that is no
// pair with a sentence of its two values is code in contradictions.cpp, such as a list that is out of order, or three
// keys of which one must be given.
#pragma once

#include <optional>

#include "config/contradictions.h"
#include "config/experiment.h"

namespace ringtrain {

// Each of these functions returns the first broken row of a part of the table, as wrong_pair(). Which error a user sees
// first depends on the order of all checks. The table has these parts because find_contradiction() has other checks
// between them, and some rows need what an earlier check has found right.

// Most rows.
std::optional<Contradiction> find_exclusion(const Experiment& experiment);
// model.norm_momentum.
std::optional<Contradiction> find_momentum_exclusion(const Experiment& experiment);
// evaluate.norm_statistics, of a model with batch norm.
std::optional<Contradiction> find_statistics_exclusion(const Experiment& experiment);
// The scaling and the warm-up of the learning rate.
std::optional<Contradiction> find_scaling_exclusion(const Experiment& experiment);
// A schedule of the learning rate without its milestones or points.
std::optional<Contradiction> find_schedule_exclusion(const Experiment& experiment);
// Milestones or points that do not fit stop.epochs. They must be in increasing order.
std::optional<Contradiction> find_end_exclusion(const Experiment& experiment);
// stop.target_metric and stop.target_value.
std::optional<Contradiction> find_target_exclusion(const Experiment& experiment);

}  // namespace ringtrain
