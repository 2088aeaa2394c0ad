#include "cluster/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace ringtrain {

GradientReducer::GradientReducer(Communicator& communicator, std::span<float> gradients, std::int64_t bucket_elements,
                                 StartBucket start)
    : communicator_(communicator), gradients_(gradients), bucket_elements_(bucket_elements), start_(std::move(start)) {
  if (bucket_elements < 1)
    throw Error(cat("a gradient bucket has ", bucket_elements, " elements; at least 1 is needed"));
  if (!start_)
    start_ = [this](std::int64_t begin, std::int64_t end, const BeforeSum& before, PendingSums& pending) {
      pending.push_back(communicator_.start_sum(
          gradients_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), before));
    };
}

void GradientReducer::begin(BeforeBucket before) {
  if (!pending_.empty()) throw Error("a step begins before the gradients of the last one were summed");
  launched_ = 0;
  before_ = std::move(before);
}

void GradientReducer::ready(std::int64_t watermark) {
  const std::int64_t total = std::ssize(gradients_);
  if (watermark > total) throw Error(cat("watermark ", watermark, " beyond the ", total, " gradients"));
  while (launched_ < total) {
    const std::int64_t end = std::min(launched_ + bucket_elements_, total);
    if (end > watermark) break;
    BeforeSum before;
    if (before_) before = [this](std::uintptr_t stream) { before_(launched_, stream); };
    start_(launched_, end, before, pending_);
    launched_ = end;
  }
  poll();
}

void GradientReducer::poll() {
  while (!pending_.empty() && pending_.front()->done()) pending_.pop_front();
}

void GradientReducer::finish(std::span<double> counters) {
  const double start = now_seconds();
  ready(std::ssize(gradients_));
  if (!counters.empty()) pending_.push_back(communicator_.start_sum(counters));
  for (; !pending_.empty(); pending_.pop_front()) pending_.front()->finish();
  exposed_seconds_ = now_seconds() - start;
}

}  // namespace ringtrain
