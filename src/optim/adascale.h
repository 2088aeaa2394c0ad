// The state that AdaScale SGD keeps between steps: its averages, and how far the schedule has advanced.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "backend/backend.h"

namespace ringtrain {

class AdaScale {
 public:
  // `times` is S = batch / base batch, at least 1. `batch` and `small_batch` are numbers of samples. At S = 1 nothing
  // is measured.
  AdaScale(double times, double batch, double small_batch) : times_(times), batch_(batch), small_batch_(small_batch) {}

  bool measures() const { return times_ > 1; }
  // Returns the scale-invariant steps so far (tau). Each applied update counts by its gain.
  double steps() const { return state_[tau]; }
  // Returns the input for the next update. It is empty if S is 1, because every gain is then 1. See AdaScaleStep for
  // `small_norms`.
  std::optional<AdaScaleStep> next(std::int64_t small_norms) const {
    if (!measures()) return std::nullopt;
    return AdaScaleStep{.times = times_,
                        .batch = batch_,
                        .small_batch = small_batch_,
                        .averages = {state_[variance], state_[gradient], state_[count]},
                        .small_norms = small_norms};
  }
  // Call this after the update. A skipped update changes nothing.
  void add(const UpdateResult& result) {
    if (!result.applied) return;
    state_ = {state_[tau] + result.gain, result.adascale.variance, result.adascale.gradient, result.adascale.steps};
  }

  // The state that checkpoints store.
  static constexpr std::array<std::string_view, 4> state_names = {"scale_invariant_steps", "adascale_variance",
                                                                  "adascale_gradient", "adascale_steps"};
  using State = std::array<double, state_names.size()>;
  const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 private:
  enum Place { tau, variance, gradient, count };
  double times_, batch_, small_batch_;
  State state_{};
};

}  // namespace ringtrain
