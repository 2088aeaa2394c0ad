#include "backend/cuda/program/checksums.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {
namespace {

std::vector<NormRange> word_ranges(std::span<const ChecksumRange> ranges) {
  expect_checksum_ranges(ranges);
  std::vector<NormRange> words;
  for (const ChecksumRange& range : ranges)
    words.push_back({.begin = range.begin / 2, .count = (range.end - range.begin) / 2});
  return words;
}

}  // namespace

DeviceChecksums::DeviceChecksums(Device& device, std::function<void()> poll, std::span<const ChecksumRange> ranges,
                                 std::shared_ptr<std::int64_t> bytes)
    : device_(device),
      poll_(std::move(poll)),
      ranges_(word_ranges(ranges)),
      launches_([&] {
        std::vector<Launch> launches;
        for (std::size_t i = 0; i < ranges.size(); ++i) {
          if (launches.empty() || launches.back().values != ranges[i].values)
            launches.push_back({.values = ranges[i].values, .first = i, .count = 0, .first_block = 0, .blocks = 0});
          ++launches.back().count;
        }
        return launches;
      }()),
      blocks_([&] {
        std::int64_t blocks = 0;
        for (Launch& launch : launches_) {
          launch.first_block = blocks;
          launch.blocks = range_blocks(std::span(ranges_).subspan(launch.first, launch.count));
          blocks += launch.blocks;
        }
        return blocks;
      }()),
      table_(device, std::ssize(ranges_) * static_cast<std::int64_t>(sizeof(NormRange)), "the ranges of checksums"),
      partial_(device, blocks_ * static_cast<std::int64_t>(sizeof(std::uint64_t)), "partial sums of checksums"),
      host_(device, blocks_),
      values_(ranges.size()),
      bytes_(std::move(bytes)),
      done_(device.make_event()) {
  *bytes_ += taken();
  device_.copy(table_.data(), ranges_.data(), table_.bytes(), CopyKind::to_device, device_.compute_stream());
  device_.record(done_, device_.compute_stream());
  device_.synchronize(done_, poll_);
}

// Waits for the newest work, because it may still use the memory.
DeviceChecksums::~DeviceChecksums() {
  *bytes_ -= taken();
  try {
    device_.synchronize(done_, {});
  } catch (const Error&) {  // the device is lost, and the next call to it reports that
  }
}

void DeviceChecksums::start() {
  const Stream stream = device_.compute_stream();
  for (const Launch& launch : launches_)
    if (launch.blocks > 0)
      device_.launch(
          launch_of(ChecksumPartsArguments{.words = reinterpret_cast<const std::uint64_t*>(launch.values->data()),
                                           .ranges = table_.data<const NormRange>() + launch.first,
                                           .partial = partial_.data<std::uint64_t>() + launch.first_block,
                                           .count = static_cast<int>(launch.count),
                                           .blocks = launch.blocks}),
          stream);
  device_.copy(host_.data(), partial_.data(), partial_.bytes(), CopyKind::to_host, stream);
  device_.record(done_, stream);
}

std::span<const std::uint64_t> DeviceChecksums::values() {
  device_.synchronize(done_, poll_);
  std::ranges::fill(values_, 0);
  for (const Launch& launch : launches_)
    for (std::size_t i = launch.first; i < launch.first + launch.count; ++i) {
      const bool is_last = i + 1 == launch.first + launch.count;
      const std::int64_t end = is_last ? launch.blocks : ranges_[i + 1].first_block;
      for (std::int64_t block = ranges_[i].first_block; block < end; ++block)
        values_[i] += host_.data()[launch.first_block + block];
    }
  return values_;
}

}  // namespace ringtrain::cuda
