// The ranks that share a group of batch norm which is larger than one rank's pass. A program that is compiled for such
// groups exchanges a few numbers per channel with these ranks during its passes.
#pragma once

#include <functional>
#include <span>

namespace ringtrain {

// The ranks of a group. Each has an equal part of the group's samples.
class GroupRanks {
 public:
  virtual ~GroupRanks() = default;
  virtual int rank() const = 0;  // this rank's place in the order of the group's samples
  virtual int size() const = 0;
  // `parts` is [size][n]. This rank has filled its own part; the call fills the others. It calls `poll`, unless that is
  // empty, while it waits. Collective. Throws the error of another rank.
  virtual void gather(std::span<double> parts, const std::function<void()>& poll) = 0;
};

}  // namespace ringtrain
