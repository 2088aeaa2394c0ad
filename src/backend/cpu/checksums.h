// Checksums of ranges in host memory.
#pragma once

#include <vector>

#include "backend/checksums.h"

namespace ringtrain::cpu {

class CpuChecksums : public Checksums {
 public:
  CpuChecksums(int threads, std::span<const ChecksumRange> ranges);
  void start() override;
  std::span<const std::uint64_t> values() override { return values_; }

 private:
  struct Piece {
    std::int64_t begin, end;  // bounds, in elements of the vector
    std::size_t range;
  };

  int threads_;
  std::vector<ChecksumRange> ranges_;
  std::vector<Piece> pieces_;
  std::vector<std::uint64_t> sums_, values_;  // sums of the pieces; checksums of the ranges
};

}  // namespace ringtrain::cpu
