// The time of a rank's steps, split into input, passes, communication and update, and the bytes that it sent.
#pragma once

#include <vector>

#include "cluster/communicator.h"
#include "cluster/sent_bytes.h"

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

// Collective. Both return the values of every rank on rank 0, and nothing on other ranks.
std::vector<StepTimes> gather_times(const StepTimes& mine, Communicator& communicator);
std::vector<SentBytes> gather_bytes(const SentBytes& mine, Communicator& communicator);

}  // namespace ringtrain
