// What a user may name to mean a checkpoint.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

enum class WhichCheckpoint { best_or_newest, best, newest };

// `source`: a checkpoint file, a run's folder, or an experiment file (the newest run of its name, or its run.dir);
// `overrides` are keys of the last.
// Throws Error when there is none.
std::string checkpoint_of(const std::string& source, const std::vector<std::string>& overrides = {},
                          WhichCheckpoint which = WhichCheckpoint::best_or_newest);

bool is_experiment_file(const std::string& source);  // by its name's end

}  // namespace ringtrain
