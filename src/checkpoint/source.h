// Finds the checkpoint that a user means by a name.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

enum class WhichCheckpoint { best_or_newest, best, newest };

// Returns the path of the checkpoint that `source` stands for. `source` is a checkpoint file, a run's folder, or an
// experiment file. The experiment.yaml in a run's folder stands for that run. Another experiment file stands for the
// newest run of its name, or for its run.dir or run.id. `overrides` change keys of the experiment file. The name of a
// .h5 file is returned unchecked. Throws Error if there is no checkpoint.
std::string checkpoint_of(const std::string& source, const std::vector<std::string>& overrides = {},
                          WhichCheckpoint which = WhichCheckpoint::best_or_newest);

bool is_experiment_file(const std::string& source);  // tested by the end of the name

}  // namespace ringtrain
