#include "parallel/step_times.h"

namespace ringtrain {

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (const StepPart& part : step_parts) this->*part.seconds += other.*part.seconds;
  return *this;
}

StepTimes StepTimes::operator/(double divisor) const {
  StepTimes quotient = *this;
  for (const StepPart& part : step_parts) quotient.*part.seconds /= divisor;
  return quotient;
}

}  // namespace ringtrain
