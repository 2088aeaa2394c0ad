// The functions that libFuzzer calls. RINGTRAIN_FUZZ names the target (tests/fuzz/run.sh sets it). Without it, the
// targets are listed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/log.h"
#include "tests/fuzz/target.h"

namespace {

ringtrain::fuzz::Read read_input = nullptr;
ringtrain::fuzz::Repair repair_input = nullptr;

[[noreturn]] void report(const char* what) {
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const auto& targets = ringtrain::fuzz::targets();
  const char* wanted = std::getenv("RINGTRAIN_FUZZ");
  const auto found = targets.find(wanted == nullptr ? "" : wanted);
  if (found == targets.end()) {
    for (const auto& [name, read] : targets) std::puts(name.c_str());
    std::exit(wanted == nullptr ? 0 : 2);
  }
  read_input = found->second;
  const auto& repairs = ringtrain::fuzz::repairs();
  if (const auto repair = repairs.find(found->first); repair != repairs.end()) repair_input = repair->second;
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// One mutation in eight is not repaired, because wrong checksums are inputs, too.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  const std::size_t mutated = LLVMFuzzerMutate(data, size, most);
  if (repair_input == nullptr || seed % 8 == 0) return mutated;
  const std::string repaired = repair_input({reinterpret_cast<const char*>(data), mutated});
  std::copy(repaired.begin(), repaired.end(), data);  // a repair keeps the length
  return repaired.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ringtrain::fuzz::run(read_input, {reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    report(error.what());
  }
  return 0;
}
