#include "backend/cuda/hopper/interface.h"

#include <limits>

#include "base/cat.h"
#include "base/rounding.h"

namespace ringtrain::cuda::hopper {

namespace {

// As on an H100 or H200; a constant, so that every machine computes the same bits.
constexpr std::int64_t multiprocessors = 132;
constexpr std::int64_t most_splits = 132;
constexpr std::int64_t fewest_steps = 8;  // steps of a split; with fewer, writing the part costs more than computing it
constexpr std::int64_t alignment = 256;

const char* name_of(Element type) {
  return type == Element::bf16 ? "bf16" : type == Element::fp16 ? "fp16" : "fp32";
}

std::int64_t pixels(const Problem& p) {
  return p.n * out_height(p) * out_width(p);
}

std::string refused_shape(const Problem& p) {
  if (p.n < 1 || p.c < 1 || p.k < 1 || p.r < 1 || p.stride < 1 || p.padding < 0 || out_height(p) < 1 ||
      out_width(p) < 1)
    return "a convolution without elements";
  if (p.groups < 1 || p.n % p.groups != 0) return cat(p.n, " samples are not ", p.groups, " equal groups");
  if (p.c % 8 != 0 || p.k % 8 != 0)
    return cat("channels must be multiples of 8, 16 bytes for the copy engine; these are ", p.c, " and ", p.k);
  const std::int64_t depth = p.work == Work::forward_sums ? p.c : p.work == Work::weight_gradient ? 64 : p.k;
  if (depth < 32) return cat(depth, " channels, expected at least 32, half of a step of 64");
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (p.n * p.h * p.w > most || pixels(p) > most) return "more pixels than 32 bits count";
  return "";
}

}  // namespace

std::int64_t steps_per_split(const Problem& p, std::int64_t depth, std::int64_t splits) {
  return tiles_of(tiles_of(pixels(p), depth), splits);
}

std::int64_t weight_gradient_splits(const Problem& p, const Description& instance) {
  const std::int64_t tiles = tiles_of(p.k, instance.tile_rows) * tiles_of(p.c, instance.tile_columns) * p.r * p.r;
  const std::int64_t steps = tiles_of(pixels(p), instance.tile_depth);
  std::int64_t best = 1;
  double best_busy = 0;
  for (std::int64_t splits = 1; splits <= most_splits; ++splits) {
    const std::int64_t each = tiles_of(steps, splits);
    if (splits > 1 && each < fewest_steps) break;
    if (tiles_of(steps, each) != splits) continue;  // the last split would have no step
    const std::int64_t blocks = tiles * splits;
    const double busy = static_cast<double>(blocks) / static_cast<double>(round_up(blocks, multiprocessors));
    if (busy > best_busy) {
      best = splits;
      best_busy = busy;
    }
    if (busy > 0.9) break;
  }
  return best;
}

Workspace workspace_of(const Problem& p, const Description& instance) {
  Workspace space;
  if (p.work == Work::weight_gradient) {
    space.bytes = round_up(weight_gradient_splits(p, instance) * p.k * p.r * p.r * p.c * 4, alignment);
    return space;
  }
  space.sum_columns = round_up(result_channels(p), instance.tile_columns);
  const std::int64_t tiles = p.groups * tiles_per_group(p, instance.tile_rows);
  space.sum_other = round_up(tiles * space.sum_columns * 4, alignment);
  space.bytes = 2 * space.sum_other;
  return space;
}

std::string refusal(const Problem& p, const Description& instance) {
  if (p.work != instance.work || p.type != instance.type)
    return cat("the instance ", instance.name, " computes something else");
  if (std::string why = refused_shape(p); !why.empty()) return why;
  if (p.work == Work::weight_gradient) {
    if (p.result != Element::fp32 && p.result != p.type)
      return cat("a weight gradient of ", name_of(p.type), " in ", name_of(p.result));
    return p.groups == 1 ? "" : "a weight gradient has no groups";
  }
  if (p.work != Work::forward_sums && p.stride != 1) return "a data gradient with a stride: left to cuDNN";
  if (p.work != Work::forward_sums && 2 * p.padding != p.r - 1)
    return cat("a data gradient with padding ", p.padding, ", expected (r - 1) / 2, which keeps the size of the map");
  const std::int64_t rows = result_rows(p) / p.groups;
  if (p.groups > 1 && rows % instance.tile_rows != 0)
    return cat("a group of ", p.n / p.groups, " samples is ", rows, " pixels, which end inside a tile of ",
               instance.tile_rows, " rows");
  return "";
}

}  // namespace ringtrain::cuda::hopper
