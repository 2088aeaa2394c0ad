// Writes run.json, which says what ran, where, with which versions, and how it ended. The file keeps every start of a
// resumed run. Rank 0 only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/communicator.h"
#include "optim/noise_scale.h"
#include "parallel/rank_status.h"
#include "run/plan.h"
#include "run/run_end.h"
#include "run/step_bound.h"

namespace ringtrain {

// One start of the program. The plan has the rest; what it does not know is left out of the file.
struct RunRecord {
  RunPlan plan = {};
  std::vector<std::string> command_line = {};
  std::vector<std::string> hosts = {};  // host of every rank, in rank order; stored as host -> ranks
  std::string launcher = {};            // see launcher_name()
  std::int64_t threads = 0;             // per rank
  std::string backend = {}, communicator = {};
  std::int64_t resumed_from_step = 0;   // 0: from the start
  std::vector<MemoryItem> memory = {};  // of one rank
};

struct RunOutcome {
  // "finished", "paused after 9000 samples", "stopped by SIGTERM", "stopped by a signal to another rank", or the text
  // of the error after "error: ".
  std::string outcome = "finished";
  RunProgress progress = {};
  std::string end = "";        // of a finished run: end_word() of run_end.h; "": not finished
  std::string thrown_at = "";  // for an error: the place in the code; "": no error
  std::optional<NoiseSummary> noise = std::nullopt;
  std::map<std::string, double> energy_joules = {};     // rank 0's node in this start, by part; see EnergyMeter
  std::map<std::int64_t, std::int64_t> staleness = {};  // asynchronous runs: updates by staleness, over all starts
  std::vector<StepTimes> rank_times = {};               // times of this start's steps, in rank order
  std::vector<SentBytes> rank_bytes = {};               // bytes sent in these steps; not written if there is one rank
};

// Adds this start to "starts" in <run_dir>/run.json, with the time (UTC), the process id, and Slurm's SLURM_* ids if
// they are set. The top level of the file repeats "name" and "outcome" of the newest start. The outcome is "not ended"
// while the run goes on, and after it was killed. The lock of the folder tells which. A run.json that cannot be read is
// moved to run.json.damaged with a warning; the run still starts.
void record_start(const std::string& run_dir, const RunRecord& record);

// Returns whether the newest start has finished the run.
bool has_finished(const std::string& run_dir);

void record_stop_cost(const std::string& run_dir, const StopCost& cost);  // stored in the last start
// Returns the newest stop cost that a start has recorded. Empty if there is none.
std::optional<StopCost> recorded_stop_cost(const std::string& run_dir);

// Stores the parts of the bound in the last start.
void record_bound(const std::string& run_dir, const StepBound& bound);

// Completes the last start. It may be called while an exception is handled. Throws Error if the file cannot be written.
void record_end(const std::string& run_dir, const RunOutcome& outcome);

// Returns the current time in UTC: "2026-11-21T10:30:59Z".
std::string utc_time();

}  // namespace ringtrain
