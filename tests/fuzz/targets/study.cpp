// Reads study files and makes their trials. Overrides are given as for experiments.
#include <algorithm>
#include <sstream>

#include "study/study_file.h"
#include "study/trials.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

constexpr std::string_view experiment = R"(name: pets
model: {kind: char_lstm, hidden: 64, layers: 2}
data: {train: data/pets-train, validation: data/pets-validation}
batch: {global: 256, worker: 64}
optimizer: {kind: adam}
learning_rate: {base: 0.001}
stop: {epochs: 2}
)";

void read(std::string_view input) {
  static const std::string base = write_input("experiment.yaml", experiment);
  const Parts parts = split_parts(input);
  std::vector<std::string> overrides;
  std::istringstream lines{std::string(parts.second)};
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  const Study study = parse_study(std::string(parts.first), in_folder("study.yaml"), overrides);
  // Every choice is an experiment that is read and checked. Thousands of them would exceed the fuzzer's time limit.
  // make_trials() also runs for more than most_trials choices, because it refuses them at once.
  double choices =
      std::max<double>(study.draws.count, 1) * std::max<double>(static_cast<double>(study.seeds.size()), 1);
  for (const Axis& axis : study.axes) choices *= static_cast<double>(axis.choices.size());
  if (choices < 500 || choices > most_trials) make_trials(study);
}

const Registered registered("study", read);

}  // namespace
}  // namespace ringtrain::fuzz
