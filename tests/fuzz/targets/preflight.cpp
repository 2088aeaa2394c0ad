// Reads the measurements of `ringtrain bench --json` and makes predictions from them.
#include "bench/preflight.h"

#include "bench/forecast.h"
#include "config/reader.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

constexpr const char* kExperiment = R"(
name: small
model: {hidden: 16}
data: {train: names, validation: names}
batch: {global: 8192, worker: 2}
learning_rate: {base: 0.01}
stop: {steps: 10}
)";

// A prediction needs an experiment with the measured model. The experiment is fixed, and its model takes the place of
// the input's.
const Experiment& experiment() {
  static const Experiment small = parse_experiment(kExperiment, "small.yaml", {});
  return small;
}

void read(std::string_view input) {
  Preflight preflight = parse_preflight(std::string(input), "preflight.json");
  const std::string json = preflight.to_json();
  const std::string again = error_of(
      [&] { expect(parse_preflight(json, "again.json").to_json() == json, "a preflight file reads back the same"); });
  expect(again.empty(), "a preflight file that was written is read: " + again);

  preflight.step.model = model_keys(experiment());
  const Forecast forecast(experiment(), {preflight}, {});
  for (const int ranks : {1, 2, 16, 4096})
    for (const Scaling scaling : {Scaling::strong, Scaling::weak})
      for (const Topology topology : {Topology::flat, Topology::hierarchical})
        error_of([&] { forecast.row(scaling, topology, ranks); });
  forecast.compare(preflight.step);
}

const Registered registered("preflight", read);

}  // namespace
}  // namespace ringtrain::fuzz
