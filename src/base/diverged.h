// The training itself has failed: its numbers are no longer finite. The program and its machine are well.
#pragma once

#include "base/error.h"

namespace ringtrain {

class Diverged : public Error {
 public:
  using Error::Error;
};

}  // namespace ringtrain
