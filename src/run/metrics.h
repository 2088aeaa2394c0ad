// Writes metrics.jsonl and reads it back. Shows the progress bar or the lines of a batch log. Rank 0 only.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/batch_course.h"
#include "run/progress_display.h"
#include "run/reports.h"

namespace ringtrain {

// Adds validation_loss, validation_accuracy, validation_accuracy5 (images only) and validation_targets to the object.
void put(Json& json, const Evaluation& evaluation);

// A field of a step's line in metrics.jsonl. results/README.md says what each key means, and in which unit.
struct StepField {
  const char* key;
  Json (*value)(const StepReport& report);                 // called only for a line that has the field
  bool (*is_written)(const StepReport& report) = nullptr;  // null: every line has the field
};
// Returns all fields that a step's line may have, in their order in a line.
std::span<const StepField> step_fields();

struct EvaluationRecord {
  Position position = {};
  double epoch = 0;  // finished epochs, with a fraction
  Evaluation result = {};
  bool best = false;
};

// The treatment of the records of steps after the step from which a run continues. `drop`: the same steps are computed
// again with the same result, so the records are deleted. `keep`: the steps may have another result or may not be
// reached again, so the old records move to metrics-steps-<first>-to-<last>.jsonl (-2, ... if that name is taken), and
// a line says so.
enum class LaterRecords { drop, keep };

class Recorder {
 public:
  // Appends to <run_dir>/metrics.jsonl. Before that, it removes records of steps after `resume_step`, and a broken last
  // line, which a killed process leaves. `total_steps` is for the ETA; 0: unknown. `log_every_steps` is the number of
  // steps between lines if stdout is not a terminal. A terminal gets a progress bar with ETA, samples/s and loss.
  Recorder(const std::string& run_dir, std::int64_t resume_step, std::int64_t total_steps, std::int64_t log_every_steps,
           LaterRecords later = LaterRecords::drop);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  void step(const StepReport& report);
  void evaluation(const EvaluationRecord& record);
  // Writes a line for the user without damaging the progress bar. log_info and log_warning do not damage it either.
  void note(const std::string& line);
  void finish();  // shows the last step and ends the bar's line; call it before the last lines of a run
  // Returns the last validation accuracies (up to five) of this folder, oldest first, including those before a resume.
  // Goyal et al. 2017 (section 5) report the median over the last five epochs.
  std::vector<double> last_accuracies() const;
  void flush();  // syncs metrics.jsonl to disk; called with each checkpoint
  // Returns whether metrics.jsonl was removed, moved or replaced since it was opened. What is written then is lost.
  bool is_lost() const;
  void require_file() const;  // throws Error if is_lost()

 private:
  void append(const std::string& line);

  const std::string path_;
  int file_ = -1;
  ProgressDisplay progress_;
  std::mutex mutex_;
};

// Calls `action` with each record in <run_dir>/metrics.jsonl, in order: those of steps and those of evaluations. A line
// that a kill has cut off, or that is no object, is left out. No file: there are no records.
void for_each_record(const std::string& run_dir, const std::function<void(const Json& record)>& action);

// What <run_dir>/metrics.jsonl says about the steps of a run.
struct RecordedSteps {
  std::int64_t last = 0;  // the step of the newest complete step record; 0: there is none
  std::string missing;    // "step 4, steps 7 to 8"; empty: no record is missing
};
// Reads the file once. `missing` is about the steps after `before` up to `last`, and about the evaluation after step
// `evaluated` (0: there was none).
RecordedSteps recorded_steps(const std::string& run_dir, std::int64_t before, std::int64_t last,
                             std::int64_t evaluated);

}  // namespace ringtrain
