// Reads the measurements of `ringtrain bench --json` and makes predictions from them.
#include "bench/preflight.h"

#include "tests/fuzz/target.h"

namespace ringtrain::fuzz {
namespace {

void read(std::string_view input) {
  const Preflight preflight = parse_preflight(std::string(input), "preflight.json");
  const std::string json = preflight.to_json();
  const std::string again = error_of(
      [&] { expect(parse_preflight(json, "again.json").to_json() == json, "a preflight file reads back the same"); });
  expect(again.empty(), "a preflight file that was written is read: " + again);
}

const Registered registered("preflight", read);

}  // namespace
}  // namespace ringtrain::fuzz
