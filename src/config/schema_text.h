// Texts that come from the schema: parts of messages, a run's own experiment.yaml, and configs/README.md.
#pragma once

#include <string>
#include <string_view>

#include "config/experiment.h"
#include "config/schema.h"

namespace ringtrain {

// Returns the expected value, for a message: "an integer from 1 to 65536", "one of sgd, adam, adamw".
std::string expected(const Field& field);

// Returns the field's value as in an experiment file: 0.001, true, [30, 60, 80], [norm, bias], "".
std::string value_text(const Field& field, const Experiment& experiment);
// Returns, for example, "optimizer.kind is sgd", or "branch.from is not given" if the text is empty.
std::string statement(std::string_view key, const Experiment& experiment);

// Returns the resolved experiment as YAML with every key, except keys whose place another one takes. Reading the text
// gives the same experiment again.
std::string to_yaml(const Experiment& experiment);

// Returns the text of to_yaml() without keys that have no effect. `data` is as for has_effect_on(). If keys are left
// out, the last line is a comment with their number.
std::string effective_yaml(const Experiment& experiment, std::string_view data);

// Returns the text of configs/README.md: every key with type, unit, default, allowed values and meaning.
std::string schema_markdown();

}  // namespace ringtrain
