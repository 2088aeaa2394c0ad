// The error that the training itself has failed: its numbers are no longer finite. The program and the machine are not
// at fault.
#pragma once

#include "base/error.h"

namespace ringtrain {

class Diverged : public Error {
 public:
  using Error::Error;
};

}  // namespace ringtrain
