// The seconds by which measured steps of several ranks took longer than the scaling model says. A prediction adds these
// seconds, so that a fitted step is predicted as it was measured.
#pragma once

#include <vector>

namespace ringtrain {

// The model leaves out, for example, waits for a rank that is late, or that computes and does not look at its messages.
// A rank alone waits for nobody, so its seconds are 0.
class Unexplained {
 public:
  // Adds the seconds by which a measured step took longer than the model says, on `ranks` ranks (at least 2) with
  // `ranks_on_node` on a node. The seconds are negative if the measured step was faster than the model.
  void add(int ranks, int ranks_on_node, double seconds);

  // Returns the seconds that were added for these ranks. Between two numbers of ranks that were added, it interpolates
  // linearly in sqrt(ln ranks), and one rank has 0 seconds. Beyond the largest number, seconds grow in proportion to
  // sqrt(ln ranks), as the wait for the slowest rank does (step_range()). Negative seconds do not grow.
  double at(int ranks, int ranks_on_node) const;

 private:
  struct Point {
    int ranks, ranks_on_node;
    double seconds;
  };
  std::vector<Point> points_;  // ascending in ranks
};

}  // namespace ringtrain
