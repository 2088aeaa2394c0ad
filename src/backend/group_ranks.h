// The ranks that share a group of batch norm which is larger than one rank's pass. A program that is compiled for such
// groups exchanges a few numbers per channel with these ranks during its passes.
#pragma once

#include <functional>
#include <span>

namespace ringtrain {

// Each holds an equal part of the group's samples.
class GroupRanks {
 public:
  virtual ~GroupRanks() = default;
  virtual int rank() const = 0;  // this one's place among them, in the order of the group's samples
  virtual int size() const = 0;
  // `parts`: [size][n]. This rank has filled its own; all are there when it returns. Collective. It calls `poll`, where
  // it is not empty, while it waits. Throws what has gone wrong on another rank.
  virtual void gather(std::span<double> parts, const std::function<void()>& poll) = 0;
};

}  // namespace ringtrain
