// Batch norm's work per channel: the statistics of each group of images, the coefficients for the kernels, and the
// gradients of gamma and beta. Sums are kept per image and block and added in a fixed order, so their bits do not
// depend on the threads. If several ranks share a group, they exchange the sums of their images. Every rank adds them
// in the order of the ranks, so that all have the same coefficients, bit for bit.
#pragma once

#include <span>

#include "backend/cpu/image_operation.h"

namespace ringtrain::cpu {

class BatchStatistics {
 public:
  // `x` is the input of the norm.
  BatchStatistics(const ImageContext& context, const BatchNorm& node, const Feature& x);

  // Adds the steps that measure x. The norm must be applied after the next cut of the schedule.
  template <class T>
  void forward_steps();
  Affine affine(std::int64_t image, std::int64_t block) const;
  const float* slope(std::int64_t image, std::int64_t block) const;
  const float* constant(std::int64_t image, std::int64_t block) const;

  // A unit has three sums per lane, at sums + (image x blocks + block) x 3 lanes. The first is dz. The one at `product`
  // (1 or 2) is dz (x - mean). Fills slope and constant, and stores the gradients of gamma, beta and the statistics.
  void finish_backward(const double* sums, int product);

  // Called in statistics mode. Copies the measured statistics into a vector that begins at element `begin` of the flat
  // one.
  void copy_statistics(std::span<float> to, std::int64_t begin) const;

  void set_weights(const float* flat);
  std::vector<int> forward_storages() const { return {coefficients_}; }
  std::vector<int> backward_storages() const {
    if (parts_ < 0) return {coefficients_, slopes_, statistics_};
    return {coefficients_, slopes_, statistics_, parts_};
  }
  std::vector<std::string> parameters() const;
  const std::string& name() const { return name_; }

 private:
  std::int64_t groups() const { return context_.measures ? context_.schedule->images() / context_.group : 1; }
  std::int64_t group_of(std::int64_t image) const { return context_.measures ? image / context_.group : 0; }
  float* coefficient(std::int64_t group, int which) const;  // [padded channels]: 0 mean, 1 scale, 2 1 / deviation
  // The moments over this rank's images of a group. `which` is as in NormKernels::moments().
  struct Moments {
    double mean = 0, squares = 0;  // squares: sum of the squared differences from the mean
  };
  Moments own_moments(std::int64_t group, std::int64_t channel) const;
  Moments joined_moments(std::int64_t group, std::int64_t channel) const;
  // Sums of the backward pass: d of dz, dx of dz (x - mean).
  struct Sums {
    double d = 0, dx = 0;
  };
  Sums own_sums(const double* sums, int product, std::int64_t group, std::int64_t channel) const;
  Sums joined_sums(const Sums& own, std::int64_t channel) const;
  // Gathers the two values per channel that own(channel) returns, from all ranks of the group: [span][2][channels].
  template <class Own>
  void gather_parts(const Own& own);
  double* part(std::int64_t rank, int which) const;
  void finish_forward();

  ImageContext context_;
  const Feature* x_;
  double epsilon_;
  Parameter gamma_, beta_, running_mean_, running_var_;
  std::string name_;
  int moments_ = -1, coefficients_ = -1, slopes_ = -1, affine_weights_ = -1, statistics_ = -1, parts_ = -1;
};

}  // namespace ringtrain::cpu
