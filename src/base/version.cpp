#include "base/version.h"

#include "build_info.h"  // written by the Makefile

namespace ringtrain {

std::string build_commit() {
  return RINGTRAIN_COMMIT;
}

std::string build_compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GCC " __VERSION__;
#else
  return "unknown compiler";
#endif
}

std::string build_flags() {
  return RINGTRAIN_FLAGS;
}

std::string build_instruction_sets() {
  return RINGTRAIN_INSTRUCTION_SETS;
}

}  // namespace ringtrain
