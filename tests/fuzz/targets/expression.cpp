// Reads the rules and conditions of studies, one a line.
#include "study/expression.h"

#include <sstream>

#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

double value_of(const Expression::Name& name) {
  return static_cast<double>(name.name.size());
}

void read(std::string_view input) {
  std::istringstream lines{std::string(input)};
  for (std::string line; std::getline(lines, line);) {
    const TextPlace place{"study.yaml", 1, 1};
    error_of([&] { Expression::parse(line, place).evaluate(value_of); });
    error_of([&] { Comparison::parse(line, place).holds(value_of); });
  }
}

const Registered registered("expression", read);

}  // namespace
}  // namespace ringtrain::fuzz
