#include "backend/cpu/checksums.h"

#include <algorithm>
#include <cstring>

#include "backend/backend.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

std::uint64_t checksum(const float* values, std::int64_t begin, std::int64_t end) {
  std::uint64_t sum = 0;
  for (std::int64_t at = begin; at < end; at += 2) {
    std::uint64_t word;
    std::memcpy(&word, values + at, sizeof word);
    sum += checksum_term(word, static_cast<std::uint64_t>(at / 2));
  }
  return sum;
}

}  // namespace

CpuChecksums::CpuChecksums(int threads, std::span<const ChecksumRange> ranges)
    : threads_(threads), ranges_(ranges.begin(), ranges.end()), values_(ranges.size()) {
  constexpr std::int64_t most = 1 << 16;
  expect_checksum_ranges(ranges_);
  for (std::size_t i = 0; i < ranges_.size(); ++i)
    for (std::int64_t begin = ranges_[i].begin; begin < ranges_[i].end; begin += most)
      pieces_.push_back({begin, std::min(begin + most, ranges_[i].end), i});
  sums_.resize(pieces_.size());
}

void CpuChecksums::start() {
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    sums_[i] = checksum(ranges_[pieces_[i].range].values->data(), pieces_[i].begin, pieces_[i].end);
  std::ranges::fill(values_, 0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) values_[pieces_[i].range] += sums_[i];
}

}  // namespace ringtrain::cpu
