#include "backend/cuda/program/group_launches.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/program/operation.h"
#include "backend/cuda/program/rates.h"

namespace ringtrain::cuda {
namespace {
constexpr double launch_seconds = 3e-6;  // from a kernel's last block until the next kernel fills the GPU
constexpr double tile = 128;             // rows and columns of a block's tile of the product

// Holds the sizes of the implicit matrix product: [rows, inner] x [inner, columns].
struct Product {
  double rows, columns, inner;
};
Product product_of(const DnnOperation& o) {
  const auto taps = static_cast<double>(o.r * o.r), n = static_cast<double>(o.n);
  if (o.kind == DnnKind::data_gradient)
    return {n * static_cast<double>(o.h * o.w), static_cast<double>(o.c), static_cast<double>(o.k) * taps};
  return {n * static_cast<double>(o.out_h() * o.out_w()), static_cast<double>(o.k), static_cast<double>(o.c) * taps};
}

double seconds_of(const DnnOperation& operation, const Rates& rates, double multiprocessors) {
  const Product p = product_of(operation);
  const double tiles = std::ceil(p.rows / tile) * std::ceil(p.columns / tile);
  const double tile_seconds = 2 * tile * std::min(tile, p.columns) * p.inner / (rates.flops / multiprocessors);
  return launch_seconds +
         std::max(tensor_bytes(operation) / rates.bytes, std::ceil(tiles / multiprocessors) * tile_seconds);
}

}  // namespace

double bytes_lost_to_groups(const DeviceFacts& device, const DnnOperation& group, std::int64_t launches) {
  if (launches <= 1) return 0;
  const Rates rates = rates_of(device.compute_capability, group.math);
  const double multiprocessors = std::max(1, device.multiprocessors);
  DnnOperation all = group;
  all.n *= launches;
  const double lost = static_cast<double>(launches) * seconds_of(group, rates, multiprocessors) -
                      seconds_of(all, rates, multiprocessors);
  return std::max(0.0, lost) * rates.bytes;
}

}  // namespace ringtrain::cuda
