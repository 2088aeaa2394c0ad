#include "backend/cuda/program/range_norms.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

std::vector<NormRange> norm_ranges(std::span<const ElementRange> ranges) {
  expect_ranges(ranges);
  std::vector<NormRange> result;
  for (const ElementRange& range : ranges) result.push_back({.begin = range.begin, .count = range.end - range.begin});
  return result;
}

}  // namespace

DeviceRangeNorms::DeviceRangeNorms(Device& device, std::function<void()> poll, std::span<const ElementRange> ranges,
                                   std::shared_ptr<std::int64_t> bytes)
    : device_(device),
      poll_(std::move(poll)),
      ranges_(norm_ranges(ranges)),
      blocks_(range_blocks(ranges_)),
      table_(device, size_in_bytes<NormRange>(std::ssize(ranges_)), "the ranges of norms"),
      partial_(device, size_in_bytes<double>(blocks_), "partial sums of norms"),
      norms_(device, size_in_bytes<double>(std::ssize(ranges_)), "norms"),
      host_(device, std::ssize(ranges_)),
      bytes_(std::move(bytes)),
      stream_(device.compute_stream()),
      done_(device.make_event()) {
  *bytes_ += taken();
  for (const NormRange& range : ranges_) end_ = std::max(end_, range.begin + range.count);
  device_.copy(table_.data(), ranges_.data(), table_.bytes(), CopyKind::to_device, stream_);
  device_.record(done_, stream_);
  device_.synchronize(done_, poll_);  // after this wait any stream may measure
}

// Waits for the newest work, because it may still use the memory.
DeviceRangeNorms::~DeviceRangeNorms() {
  *bytes_ -= taken();
  try {
    device_.synchronize(done_, {});
  } catch (const Error&) {  // the device is lost, and the next call to it reports that
  }
}

DeviceRangeNorms::Parts DeviceRangeNorms::parts() {
  stream_ = device_.compute_stream();
  return {table_.data<const NormRange>(), static_cast<int>(size()), partial_.data<double>(), blocks_};
}

void DeviceRangeNorms::measure(const Vector& values, std::uintptr_t stream) {
  expect_within(end_, values.size());
  launch(values, nullptr, true, stream);
}

void DeviceRangeNorms::measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t stream) {
  expect_within(end_, std::min(values.size(), before.size()));
  launch(values, &before, first, stream);
}

// Without `before`, the values themselves are measured.
void DeviceRangeNorms::launch(const Vector& values, Vector* before, bool first, std::uintptr_t stream) {
  const auto [ranges, count, partial, blocks] = parts();
  if (stream != 0) stream_ = Stream{stream};
  device_.launch(launch_of(SquaredNormPartsArguments{.values = values.data(),
                                                     .ranges = ranges,
                                                     .partial = partial,
                                                     .count = count,
                                                     .blocks = blocks,
                                                     .before = before == nullptr ? nullptr : before->data(),
                                                     .first = first}),
                 stream_);
  add_parts(!first);
}

void DeviceRangeNorms::add_parts(bool add) {
  device_.launch(launch_of(SquaredNormsArguments{.partial = partial_.data<const double>(),
                                                 .ranges = table_.data<const NormRange>(),
                                                 .norms = norms_.data<double>(),
                                                 .count = static_cast<int>(size()),
                                                 .blocks = blocks_,
                                                 .add = add}),
                 stream_);
  device_.record(done_, stream_);
  fetched_ = false;
}

void DeviceRangeNorms::fetch() {
  device_.copy(host_.data(), norms_.data(), norms_.bytes(), CopyKind::to_host, stream_);
  device_.record(done_, stream_);
  fetched_ = true;
}

std::span<const double> DeviceRangeNorms::values() {
  if (!fetched_) fetch();
  device_.synchronize(done_, poll_);
  return {host_.data(), ranges_.size()};
}

DeviceNormTotal::DeviceNormTotal(Device& device, std::shared_ptr<std::int64_t> bytes)
    : device_(device),
      total_(device, size_in_bytes<double>(1), "a sum of norms"),
      done_(device.make_event()),
      bytes_(std::move(bytes)) {
  *bytes_ += total_.bytes();
}

DeviceNormTotal::~DeviceNormTotal() {
  *bytes_ -= total_.bytes();
  try {
    device_.synchronize(done_, {});
  } catch (const Error&) {  // the device is lost, as above
  }
}

void DeviceNormTotal::launch(const NormTotalArguments& arguments, std::uintptr_t handle) {
  const Stream stream = handle != 0 ? Stream{handle} : device_.compute_stream();
  device_.launch(launch_of(arguments), stream);
  device_.record(done_, stream);
}

void DeviceNormTotal::add(const RangeNorms& norms, bool first, std::uintptr_t stream) {
  launch(
      {.norms = norms.data(), .total = total_.data<double>(), .count = static_cast<int>(norms.size()), .first = first},
      stream);
}

void DeviceNormTotal::store(Vector& values, std::int64_t at, std::uintptr_t stream) {
  launch({.norms = nullptr, .total = total_.data<double>(), .count = 0, .first = false, .to = values.data() + at},
         stream);
}

}  // namespace ringtrain::cuda
