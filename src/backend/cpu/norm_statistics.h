// A norm's work per channel: the statistics of each group, the coefficients for the kernels, and the gradients of gamma
// and beta. A group of batch norm is one channel of several images. A group of group norm is several channels of one
// image. There is one sum per image and block of channels. These sums are added in a fixed order, so the result has the
// same bits on any number of threads. If several ranks share a group of batch norm, they exchange the sums of their
// images. Every rank adds them in the order of the ranks, so all ranks get the same bits.
#pragma once

#include <algorithm>
#include <span>

#include "backend/cpu/operations.h"
#include "base/rounding.h"

namespace ringtrain::cpu {

// Its steps measure x, directly after the steps that make x. The norm is applied by another operation (make_norm()).
class NormStatistics : public CpuOperation {
 public:
  // `x` is the input of the norm, which is a map.
  NormStatistics(const ImageContext& context, const Norm& node, const Feature& x);

  // Returns whether the norm uses the statistics of the pass, not the running ones.
  bool measures() const { return by_sample_ || context_.measures; }

  void forward_steps() override;  // a step that uses affine() must come after the next cut
  void backward_steps() override {}
  Affine affine(std::int64_t image, std::int64_t block) const;
  const float* slope(std::int64_t image, std::int64_t block) const {
    return context_.schedule->at<float>(slopes_) + group_of(image) * 2 * context_.padded_channels(*x_) +
           block * context_.lanes();
  }
  const float* constant(std::int64_t image, std::int64_t block) const {
    return slope(image, block) + context_.padded_channels(*x_);
  }

  // Fills slope() and constant() from `sums` [images][blocks][3][lanes], the results of NormKernels::backward_sums().
  // Sum 0 is that of dz, and sum `product` (1 or 2) is that of dz (x - mean). Stores the gradients of gamma and beta,
  // and statistic_scale x batch norm's statistics, in the flat gradient vector, or adds them to it
  // (Pass::accumulate).
  void finish_backward(const double* sums, int product);

  void copy_statistics(std::span<float> to, std::int64_t begin) const override;  // group norm has none
  void set_weights(const float* flat) override;
  std::vector<int> forward_storages() const { return {measures() ? coefficients_ : -1}; }
  std::vector<int> backward_storages() const { return {coefficients_, slopes_, statistics_, parts_}; }
  std::vector<std::string> parameters() const;
  const std::string& name() const { return name_; }

 private:
  // Images that are normalised together on this rank, and ranks that share such a group of images.
  std::int64_t group() const { return by_sample_ ? 1 : context_.group; }
  std::int64_t span() const { return by_sample_ ? 1 : context_.span; }
  std::int64_t groups() const { return measures() ? context_.schedule->samples() / group() : 1; }
  std::int64_t group_of(std::int64_t image) const { return measures() ? image / group() : 0; }
  // Groups of channels, with those of the padding.
  std::int64_t channel_groups() const { return divide_up(context_.padded_channels(*x_), together_); }
  std::int64_t channels_end(std::int64_t channel_group) const {
    return std::min((channel_group + 1) * together_, context_.padded_channels(*x_));
  }
  double values() const { return static_cast<double>(x_->pixels() * group() * span() * together_); }  // of a group
  // [padded channels]. `which` is 0 for the mean, 1 for gamma / deviation, and 2 for 1 / deviation.
  float* coefficient(std::int64_t group, int which) const {
    return context_.schedule->at<float>(coefficients_) + (group * 3 + which) * context_.padded_channels(*x_);
  }
  // The moments of one channel of a group: own_moments() over this rank's images, joined_moments() over all ranks'.
  // Those of a group of channels: moments().
  struct Moments {
    double mean = 0, squares = 0;  // squares: sum of the squared differences from the mean
  };
  Moments own_moments(std::int64_t group, std::int64_t channel) const;
  Moments joined_moments(std::int64_t group, std::int64_t channel) const;
  Moments moments(std::int64_t group, std::int64_t channel_group) const;
  // The sums of one channel of a group in the backward pass. `product`: the index of the sum of dz (x - mean) in
  // `sums`.
  struct Sums {
    double d = 0, dx = 0;  // d: sum of dz; dx: sum of dz (x - mean)
  };
  Sums own_sums(const double* sums, int product, std::int64_t group, std::int64_t channel) const;
  Sums joined_sums(const Sums& own, std::int64_t channel) const;
  // Gathers the two values per channel that own(channel) returns on each rank of the group into parts_, which is
  // [span][2][padded channels].
  template <class Own>
  void gather_parts(const Own& own);
  double* part(std::int64_t rank, int which) const {
    return context_.schedule->at<double>(parts_) + (rank * 2 + which) * context_.padded_channels(*x_);
  }
  template <class T>
  void measure(const Slice& slice) const;
  void finish_forward();

  ImageContext context_;
  const Feature* x_;
  bool by_sample_;         // group norm
  std::int64_t together_;  // channels that are normalised together
  double epsilon_;
  Parameter gamma_, beta_, running_mean_, running_var_;  // the last two are batch norm's
  std::string name_;
  int moments_ = -1, coefficients_ = -1, slopes_ = -1, affine_weights_ = -1, statistics_ = -1, parts_ = -1;
};

}  // namespace ringtrain::cpu
