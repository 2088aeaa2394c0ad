// The key branch: of a study file. Its trials continue from checkpoints of a run, with multiples of that run's batch
// (Merrill et al. 2025, "Critical Batch Size Revisited", arXiv:2505.23971, section 3.1).
#pragma once

#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "study/vary.h"

namespace ringtrain {

// Reads branch: {from: RUN, at: [2, 500 steps], batch: [x1, x2, x4], samples: 100000, rate: sqrt}.
class BranchTrials {
 public:
  // `path` is the path of the study file. Throws Error for unknown or missing keys and for invalid values. The Error
  // names file, line and column.
  BranchTrials(const Entry& branch, const std::string& path);

  void expect_run() const;                     // throws Error if the run does not exist
  std::string experiment() const;              // the run's own experiment.yaml
  std::vector<std::string> overrides() const;  // overrides that clear the keys which belong only to the old run

  // The axis "at" has one case for each point and batch, for example 2_x4 or 500steps_x4. A case sets the keys
  // branch.* and batch.global, and batch.largest if the run has it. For a batch that is k times as large, the rate's
  // factor is k with SGD and LARS and sqrt k with other optimizers. The study's key rate overrides this choice. Throws
  // Error if the run exists but has no checkpoint at a point.
  Axis axis(const Experiment& experiment) const;

 private:
  struct Point {
    RunPoint point;
    Entry entry;
  };
  void read_run(const Entry& entry);
  void read_points(const Entry& entry);
  void read_batches(const Entry& entry);

  std::string path_, run_, run_place_;
  bool is_there_ = false;
  std::vector<Point> points_;
  std::vector<std::pair<std::string, double>> factors_;  // text and value: "x4", 4
  Setting samples_;
  std::string rate_, place_;
};

}  // namespace ringtrain
