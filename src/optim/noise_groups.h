// The noise scales of the parts of a model. A part is a kind of parameter or a single tensor (noise.groups). tr(Sigma)
// and |G|^2 are sums over elements. The values of the parts therefore add up to the values of the whole model.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "nn/parameters.h"
#include "optim/noise_scale.h"

namespace ringtrain {

class NoiseGroups {
 public:
  // `by` is kind or tensor. The trained tensors are grouped by it. `half_life` is the half-life of NoiseScale.
  NoiseGroups(const ParameterTable& parameters, const std::string& by, double half_life);

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::size_t group) const { return names_[group]; }  // such as "norm" or "conv1.weight"
  const NoiseScale& scale(std::size_t group) const { return scales_[group]; }
  NoiseScale& scale(std::size_t group) { return scales_[group]; }

  // Sums the values of each group's tensors. `by_tensor` has one value per trained tensor, in the order of the table.
  // Returns [size()] sums.
  std::vector<double> by_group(std::span<const double> by_tensor) const;
  // Adds a step. `whole` describes the step; its estimate is replaced for each group by an estimate from the group's
  // two squared norms. `small_batch` and the norms are as in NoiseMeasurement, with the loss scale removed.
  void add(const NoiseScale::Step& whole, double small_batch, std::span<const double> squared_norms,
           std::span<const double> small_squared_norms);

 private:
  std::vector<std::string> names_;
  std::vector<std::size_t> group_of_;  // the group of each trained tensor
  std::vector<NoiseScale> scales_;
};

}  // namespace ringtrain
