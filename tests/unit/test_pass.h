// The input and the options of a single pass.
#pragma once

#include "backend/backend.h"

namespace ringtrain {

struct TestPass : PassInput, PassContext {};

inline LossSums run(Program& program, const TestPass& pass) {
  return program.run(pass, pass);
}

}  // namespace ringtrain
