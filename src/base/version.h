// Describes the build: the source, the compiler and the options. `--version`, run.json and checkpoints contain these
// texts.
#pragma once

#include <string>

namespace ringtrain {

std::string build_commit();            // from `git describe --always --dirty`; "unknown" outside git
std::string build_compiler();          // such as "GCC 12.2.0"
std::string build_flags();             // command line of the compiler, without include paths
std::string build_instruction_sets();  // those of the CPU kernels: "baseline avx2 avx512 avx512_bf16"

}  // namespace ringtrain
