// Reads experiment files and overrides. The input is text, then a line "==== overrides", then one override a line.
#include <sstream>

#include "base/error.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const Parts parts = split_parts(input);
  const std::string yaml(parts.first);
  std::vector<std::string> overrides;
  std::istringstream lines{std::string(parts.second)};
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  error_of([&] { parse_experiment(yaml, "stored.yaml", overrides); });
  const std::string resolved = to_yaml(parse_experiment(yaml, "experiment.yaml", overrides));
  const std::string again = error_of([&] {
    expect(to_yaml(parse_experiment(resolved, "resolved.yaml", {})) == resolved,
           "a resolved experiment reads back the same:\n" + resolved);
  });
  expect(again.empty(), "a resolved experiment reads back: " + again);
}

const Registered registered("experiment", read);

}  // namespace
}  // namespace ringtrain::fuzz
