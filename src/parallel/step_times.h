// The time of a rank's steps, split into input, passes, communication and update.
#pragma once

namespace ringtrain {

// Seconds of one step or of many steps of one rank. These parts do not overlap; the rest of a step is bookkeeping.
struct StepTimes {
  double input = 0, forward = 0, backward = 0;
  double bubble = 0, boundary = 0;  // only in a pipeline; see StageWaits
  double communication = 0;         // waiting for other ranks and for sums; a parameter server also sends and receives
  double update = 0;
  double server = 0;   // the part of `communication` in which this rank waited for parameter servers
  double workers = 0;  // the part of `communication` in which this parameter server had no work from workers
  StepTimes& operator+=(const StepTimes& other);
  StepTimes operator/(double divisor) const;
  double counted() const { return input + forward + backward + bubble + boundary + communication + update; }
};

// One of these times, with its name in run.json.
struct StepPart {
  const char* name;
  double StepTimes::*seconds;
  bool in_every_run;  // false: run.json has it where it is above 0
};
inline constexpr StepPart step_parts[] = {
    {"input", &StepTimes::input, true},        {"forward", &StepTimes::forward, true},
    {"backward", &StepTimes::backward, true},  {"communication", &StepTimes::communication, true},
    {"update", &StepTimes::update, true},      {"bubble", &StepTimes::bubble, false},
    {"boundary", &StepTimes::boundary, false}, {"server", &StepTimes::server, false},
    {"workers", &StepTimes::workers, false}};

inline StepTimes& StepTimes::operator+=(const StepTimes& other) {
  for (const StepPart& part : step_parts) this->*part.seconds += other.*part.seconds;
  return *this;
}

inline StepTimes StepTimes::operator/(double divisor) const {
  StepTimes quotient = *this;
  for (const StepPart& part : step_parts) quotient.*part.seconds /= divisor;
  return quotient;
}

}  // namespace ringtrain
