// What measured steps of several ranks take beyond the scaling model. A prediction adds it, so that it gives the
// measured time where it was fitted.
#pragma once

#include <vector>

namespace ringtrain {

// The model leaves out, for example, the time for which a rank waits because the next one is late, or computes and does
// not look at its messages. One rank waits for nobody.
class Unexplained {
 public:
  // `seconds` of a step on `ranks` ranks, at least 2, with `ranks_on_node` on a node; negative if the model was too
  // slow.
  void add(int ranks, int ranks_on_node, double seconds);

  // On ranks that were added: their seconds. Between two of them, linear in sqrt(ln ranks), and 0 on one rank. Beyond
  // the most ranks, seconds grow in proportion to sqrt(ln ranks), as the wait for the slowest of so many ranks does
  // (step_range()); negative ones stay.
  double at(int ranks, int ranks_on_node) const;

 private:
  struct Point {
    int ranks, ranks_on_node;
    double seconds;
  };
  std::vector<Point> points_;  // ascending in ranks
};

}  // namespace ringtrain
