// The status of a rank after a step: what it asks of all ranks, and how it spent its time.
#pragma once

namespace ringtrain {

// What a rank asks of all ranks after a step.
//
// Each member is 1 on a rank that asks, and the number of ranks that ask once it is summed. The step's counters include
// the requests and are summed over all ranks, so all ranks act on them at the same step, without a collective operation
// of their own. A signal that arrives during step k is read before step k + 1, and all ranks act on it after step
// k + 1. With servers that have ranks of their own, server 0 sums the requests, and the ranks act on them when they
// meet.
struct MeetingRequests {
  double signal = 0;    // this rank was asked to stop
  double save = 0;      // a checkpoint is due, by rank 0's clock
  double stop = 0;      // the run's time is over, by rank 0's clock
  double fail = 0;      // rank 0 could not write its last checkpoint
  double diverged = 0;  // the loss has been too high for too long, by rank 0's LossWatch

  bool operator==(const MeetingRequests&) const = default;
  MeetingRequests& operator+=(const MeetingRequests& other) {
    signal += other.signal;
    save += other.save;
    stop += other.stop;
    fail += other.fail;
    diverged += other.diverged;
    return *this;
  }
};

// The requests of a step of the trainer. Servers with ranks of their own compare no copies between their meetings, so
// their messages have no `check`.
struct Requests : MeetingRequests {
  double check = 0;  // the next step must compare the copies, by rank 0's clock
};

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
