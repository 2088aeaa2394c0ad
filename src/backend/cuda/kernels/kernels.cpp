#include "backend/cuda/kernels/kernels.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/kernels/compiled.h"
#include "backend/cuda/kernels/tiles.h"
#include "base/error.h"

namespace ringtrain::cuda {

const char* kernel_name(Kernel kernel) {
  switch (kernel) {
#define RINGTRAIN_KERNEL_NAME(name, ...) \
  case Kernel::name:                     \
    return #name;
    RINGTRAIN_KERNEL_LIST(RINGTRAIN_KERNEL_NAME)
#undef RINGTRAIN_KERNEL_NAME
    case Kernel::count:
      break;
  }
  return "no kernel";
}

namespace {

constexpr std::int64_t most_x = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t waves = 2048;  // number of blocks that keeps any GPU busy to the end

std::int64_t ceiling(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0);
}

// Checks sizes, so that an error names the size that was too large.
class Shape {
 public:
  explicit Shape(Kernel kernel, unsigned block = tile_threads) : kernel_(kernel) { shape_.block = block; }

  // Checks a size that must be at least 1 and fit the kernel's 32-bit arithmetic.
  Shape& size(const char* what, std::int64_t n, std::int64_t most = most_x) {
    if (n < 1 || n > most)
      throw Error(cat("kernel ", kernel_name(kernel_), ": ", what, " is ", n, "; it must be 1 to ", most),
                  n > most ? "use a smaller batch.micro" : "");
    return *this;
  }
  Shape& elements(const char* what, std::int64_t n) { return size(what, n, std::numeric_limits<std::int64_t>::max()); }
  Shape& x(std::int64_t n) { return axis(shape_.grid_x, "x", n, most_x); }
  Shape& y(std::int64_t n) { return axis(shape_.grid_y, "y", n, image_rows); }
  Shape& z(std::int64_t n) { return axis(shape_.grid_z, "z", n, image_rows); }

  // Makes a grid for octets of channels in tiles. Blocks in x loop over the rows, and blocks in y cover the channels.
  Shape& rows(std::int64_t n, std::int64_t octets, std::int64_t groups = 1) {
    elements("rows", n).size("channels", octets);
    const int width = static_cast<int>(octets);
    const std::int64_t columns = ceiling(octets, tile_columns(width)), tiles = ceiling(n, tile_rows(width));
    std::int64_t at_once = 16;  // rows per thread; a thread loads the values of its channels once for all of them
    while (at_once > 2 && ceiling(tiles, at_once) * columns * groups < waves) at_once /= 2;
    x(ceiling(tiles, at_once)).y(columns).z(groups);
    shape_.most_x = static_cast<unsigned>(std::min(ceiling(tiles, 2), most_x));
    return *this;
  }
  // Makes a grid for sums over rows. Blocks in x share the rows, and blocks in y cover the channels or columns
  // (`what`).
  Shape& sums(const char* what, int width, std::int64_t rows, std::int64_t blocks, std::int64_t groups) {
    const int octets = octets_of(width);
    return size(what, width).elements("rows", rows).x(blocks).y(ceiling(octets, tile_columns(octets))).z(groups);
  }
  // Makes a grid for kernels that add the partial sums of `blocks` blocks up.
  Shape& finalize(std::int64_t groups, std::int64_t blocks, std::int64_t rows, int channels) {
    return size("groups", groups).size("blocks", blocks).elements("rows", rows).x(ceiling(channels, finalize_channels));
  }
  // Makes a grid with a thread for each octet of `n` elements.
  Shape& octets(std::int64_t n) { return elements("count", n).x(ceiling(ceiling(n, 8), tile_threads)); }
  // Makes a grid with a thread for each octet of a pixel. x covers pixels, y images and z channels.
  Shape& pixels(std::int64_t n, std::int64_t images, int channels) {
    size("pixels", n).elements("samples", images).size("channels", channels);
    const int octets = octets_of(channels);
    return x(ceiling(n, tile_rows(octets)))
        .y(std::min<std::int64_t>(images, image_rows))
        .z(ceiling(octets, tile_columns(octets)));
  }

  template <class Arguments>
  KernelLaunch launch(Type type, const Arguments& arguments) const {
    static_assert(std::is_trivially_copyable_v<Arguments>);
    KernelLaunch result;
    static_assert(sizeof(Arguments) <= sizeof(result.arguments));
    result.kernel = kernel_;
    result.type = type;
    result.shape = shape_;
    Arguments bytes = arguments;
#if __has_builtin(__builtin_clear_padding)  // launches are compared byte by byte; only GCC can clear the padding
    __builtin_clear_padding(&bytes);
#endif
    std::memcpy(result.arguments.data(), &bytes, sizeof(bytes));
    result.argument_bytes = sizeof(bytes);
    return result;
  }
  // This overload is for kernels without a type of their own.
  template <class Arguments>
  KernelLaunch launch(const Arguments& arguments) const {
    return launch(Type::fp32, arguments);
  }

 private:
  Shape& axis(unsigned& to, const char* name, std::int64_t n, std::int64_t most) {
    if (n < 1 || n > most)
      throw Error(cat("kernel ", kernel_name(kernel_), ": ", n, " blocks in ", name, "; a grid takes 1 to ", most),
                  n > most ? "use a smaller batch.micro" : "");
    to = static_cast<unsigned>(n);
    return *this;
  }
  Kernel kernel_;
  LaunchShape shape_;
};

void check_sum(Kernel kernel, int which, int sums_per_block) {
  if (which < 1 || which >= sums_per_block)
    throw Error(
        cat("kernel ", kernel_name(kernel), ": sum ", which, " was asked for, expected 1 to ", sums_per_block - 1));
}

[[noreturn]] void wrong_kernel(Kernel kernel, const char* arguments) {
  throw Error(cat("kernel ", kernel_name(kernel), " does not take ", arguments));
}

}  // namespace

int norm_blocks(const GpuSize& gpu, Kernel sums, Type type, std::int64_t rows_per_group, int groups, int channels) {
  const int octets = octets_of(channels);
  const std::int64_t others = std::int64_t{groups} * ceiling(octets, tile_columns(octets));
  const std::int64_t useful = ceiling(rows_per_group, 4 * tile_rows(octets));
  const std::int64_t resident = resident_blocks(gpu, sums, type, tile_threads);
  return static_cast<int>(whole_waves(resident, ceiling(resident, others), others, useful));
}
std::int64_t norm_pool_places(Type type, const PoolWindow& window, std::int64_t rows) {
  return type != Type::fp32 && is_usual(window) ? ceiling(rows, 4) : rows;
}
int loss_blocks(const GpuSize& gpu, Type type, std::int64_t rows) {
  const std::int64_t resident = resident_blocks(gpu, Kernel::cross_entropy, type, tile_threads);
  return static_cast<int>(whole_waves(resident, resident, 1, ceiling(rows, tile_threads / 32)));
}
int column_sum_blocks(std::int64_t rows, int columns) {
  constexpr std::int64_t grid = 4 * 132;   // four blocks for each multiprocessor of an H100
  constexpr std::int64_t fewest_rows = 8;  // rows per thread; with fewer, adding the partial sums up costs more
  const int octets = octets_of(columns);
  const std::int64_t most = grid / ceiling(octets, tile_columns(octets));
  const std::int64_t useful = ceiling(rows, fewest_rows * tile_rows(octets));
  return static_cast<int>(std::max<std::int64_t>(1, std::min(most, useful)));
}

namespace {
std::int64_t blocks_of(const TensorPlace& p, int number) {
  if (p.outer < 1 || p.inner < 1 || p.padded < p.inner || p.taps < 1 || p.taps > copy_tile)
    throw Error(cat("copy of tensor ", number, ": outer ", p.outer, ", inner ", p.inner, ", padded ", p.padded,
                    ", taps ", p.taps, "; expected 1 <= inner <= padded and at most ", copy_tile, " taps"));
  if (p.windows) {
    if (p.taps == 1 || p.padded < p.inner * p.taps || p.inner * p.taps > copy_tile)
      throw Error(cat("copy of tensor ", number, ": inner ", p.inner, " x ", p.taps, " taps, padded ", p.padded,
                      "; expected several taps, and inner x taps <= padded and at most ", copy_tile));
    return p.outer;
  }
  return p.taps == 1 ? ceiling(p.outer * p.padded, copy_chunk) : p.outer * ceiling(p.padded, copy_width(p.taps));
}
}  // namespace

std::int64_t place_blocks(TensorPlace* places, int count) {
  std::int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    places[i].first_block = blocks;
    blocks += blocks_of(places[i], i);
  }
  return blocks;
}
std::int64_t place_blocks(UpdatePlace* places, int count) {
  std::int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    places[i].tensor.first_block = blocks;
    blocks += blocks_of(places[i].tensor, i);
  }
  return blocks;
}

std::int64_t range_blocks(std::span<NormRange> ranges) {
  std::int64_t blocks = 0;
  for (NormRange& range : ranges) {
    range.first_block = blocks;
    blocks += ceiling(range.count, norm_chunk);
  }
  return blocks;
}

KernelLaunch launch_of(Type type, const ImageInputArguments& a) {
  Shape shape(Kernel::image_input);
  shape.size("channels", a.channels, 4).size("padded channels", a.padded).elements("pixels", a.pixel_count);
  if (a.padded < a.channels)
    throw Error(cat("kernel image_input: ", a.channels, " channels do not fit into ", a.padded));
  const ImageWindows& w = a.windows;
  if (w.kernel == 0) return shape.x(ceiling(a.pixel_count, tile_threads)).launch(type, a);
  const std::int64_t windows = std::int64_t{w.out_height} * w.out_width;
  shape.size("octets of an image's windows", windows * (a.padded / 8), std::int64_t{1} << 30)
      .size("bytes of an image", std::int64_t{w.height} * w.width * a.channels, std::int64_t{1} << 30);
  if (a.padded % 8 != 0 || a.padded < w.kernel * w.kernel * a.channels || a.padded > widest_image_window || windows < 1)
    throw Error(cat("kernel image_input: windows of ", w.kernel, " x ", w.kernel, " pixels with ", a.channels,
                    " channels do not fit into ", a.padded, " channels; at most ", widest_image_window));
  constexpr int at_once = 16;  // octets per thread; a block fills its table once for all of them
  return shape.x(ceiling(windows * (a.padded / 8), at_once * tile_threads))
      .y(std::min<std::int64_t>(a.pixel_count / windows, image_rows))
      .launch(type, a);
}
KernelLaunch launch_of(Type type, const OneHotArguments& a) {
  return Shape(Kernel::one_hot)
      .elements("samples", a.samples)
      .size("padded", a.padded)
      .rows(a.samples * a.length, octets_of(static_cast<int>(a.padded)))
      .launch(type, a);
}

KernelLaunch launch_of(Type type, const NormSumsArguments& a) {
  return Shape(Kernel::norm_sums).sums("channels", a.channels, a.rows_per_group, a.blocks, a.groups).launch(type, a);
}
KernelLaunch launch_of(const NormJoinChannelsArguments& a) {
  check_sum(Kernel::norm_join_channels, a.which, a.sums_per_block);
  const std::int64_t warps = std::int64_t{a.groups} * ceiling(a.channels, a.together);
  return Shape(Kernel::norm_join_channels)
      .size("groups", a.groups)
      .size("blocks", a.blocks)
      .size("channels that are together", a.together, a.channels)
      .x(ceiling(warps, tile_threads / 32))
      .launch(a);
}
KernelLaunch launch_of(Type type, const NormFinalizeArguments& a) {
  return Shape(Kernel::norm_finalize, finalize_channels * finalize_parts)
      .finalize(a.groups, a.blocks, a.rows_per_group, a.channels)
      .launch(type, a);
}
KernelLaunch launch_of(const NormInferenceArguments& a) {
  return Shape(Kernel::norm_inference).x(ceiling(a.channels, tile_threads)).launch(a);
}
KernelLaunch launch_of(Type type, const NormApplyArguments& a) {
  return Shape(Kernel::norm_apply).rows(a.rows_per_group, octets_of(a.channels), a.groups).launch(type, a);
}
KernelLaunch launch_of(Type type, const NormBackwardSumsArguments& a) {
  return Shape(Kernel::norm_backward_sums)
      .sums("channels", a.channels, a.rows_per_group, a.blocks, a.groups)
      .launch(type, a);
}
KernelLaunch launch_of(const NormBackwardFinalizeArguments& a) {
  check_sum(Kernel::norm_backward_finalize, a.which, a.sums_per_block);
  return Shape(Kernel::norm_backward_finalize, finalize_channels * finalize_parts)
      .finalize(a.groups, a.blocks, a.rows_per_group, a.channels)
      .launch(a);
}
KernelLaunch launch_of(Type type, const NormBackwardApplyArguments& a) {
  return Shape(Kernel::norm_backward_apply).rows(a.rows_per_group, octets_of(a.channels), a.groups).launch(type, a);
}

namespace {
void check_window(Kernel kernel, int size, int stride, int padding, int widest) {
  if (stride < 1 || size < 1 || size > widest || padding < 0 || padding >= size)
    throw Error(cat("kernel ", kernel_name(kernel), ": window ", size, ", stride ", stride, ", padding ", padding,
                    "; a window is 1 to ", widest, " wide and wider than its padding"));
}
void check_window(Kernel kernel, const PoolWindow& w) {
  check_window(kernel, w.kernel, w.stride, w.padding, widest_joined_window);
}
}  // namespace

KernelLaunch launch_of(Type type, const NormPoolArguments& a) {
  check_window(Kernel::norm_pool, a.window);
  if (a.samples_per_group < 1 || a.samples % a.samples_per_group != 0)
    throw Error(cat("kernel norm_pool: ", a.samples, " samples are not whole groups of ", a.samples_per_group));
  return Shape(Kernel::norm_pool)
      .pixels(std::int64_t{a.window.out_height} * a.window.out_width, a.samples, a.channels)
      .launch(type, a);
}
KernelLaunch launch_of(Type type, const NormPoolBackwardSumsArguments& a) {
  check_window(Kernel::norm_pool_backward_sums, a.window);
  return Shape(Kernel::norm_pool_backward_sums)
      .sums("channels", a.channels, a.rows_per_group, a.blocks, a.groups)
      .launch(type, a);
}
KernelLaunch launch_of(Type type, const NormPoolBackwardApplyArguments& a) {
  check_window(Kernel::norm_pool_backward_apply, a.window);
  const std::int64_t places = norm_pool_places(type, a.window, a.rows_per_group);
  return Shape(Kernel::norm_pool_backward_apply).rows(places, octets_of(a.channels), a.groups).launch(type, a);
}

KernelLaunch launch_of(Type type, const ActivateArguments& a) {
  return Shape(Kernel::activate).rows(a.rows, octets_of(a.channels)).launch(type, a);
}
KernelLaunch launch_of(Type type, const ActivateBackwardArguments& a) {
  return Shape(Kernel::activate_backward).rows(a.rows, octets_of(a.channels)).launch(type, a);
}
KernelLaunch launch_of(Type type, const ColumnSumPartsArguments& a) {
  if (a.stride < a.columns)
    throw Error(
        cat("kernel column_sum_parts: ", a.columns, " columns do not fit into rows of ", a.stride, " elements"));
  return Shape(Kernel::column_sum_parts).sums("columns", a.columns, a.rows, a.blocks, 1).launch(type, a);
}
KernelLaunch launch_of(const ColumnSumsArguments& a) {
  return Shape(Kernel::column_sums, finalize_channels * finalize_parts)
      .size("blocks", a.blocks)
      .x(ceiling(a.columns, finalize_channels))
      .launch(a);
}
KernelLaunch launch_of(Type type, const AddArguments& a) {
  return Shape(Kernel::add).octets(a.count).launch(type, a);
}

KernelLaunch launch_of(Type type, Kernel pool, const PoolArguments& a) {
  Shape shape(pool);
  const std::int64_t inside = std::int64_t{a.height} * a.width;
  if (pool == Kernel::average_pool) {
    const int octets = octets_of(a.channels);
    return shape.size("pixels", inside)
        .size("channels", a.channels)
        .elements("samples", a.samples)
        .x(ceiling(a.samples, tile_rows(octets)))
        .z(ceiling(octets, tile_columns(octets)))
        .launch(type, a);
  }
  if (pool == Kernel::average_pool_backward) return shape.pixels(inside, a.samples, a.channels).launch(type, a);
  if (pool != Kernel::max_pool && pool != Kernel::max_pool_backward) wrong_kernel(pool, "the arguments of pooling");
  check_window(pool, a.kernel, a.stride, a.padding, 16);
  return shape
      .pixels(pool == Kernel::max_pool ? std::int64_t{a.out_height} * a.out_width : inside, a.samples, a.channels)
      .launch(type, a);
}

KernelLaunch launch_of(Type type, const ReorderArguments& a) {
  return Shape(Kernel::reorder)
      .elements("samples", a.samples)
      .x(ceiling(a.spatial, reorder_tile) * ceiling(a.channels, reorder_tile))
      .y(std::min<std::int64_t>(a.samples, image_rows))
      .launch(type, a);
}
KernelLaunch launch_of(Type type, const DropoutArguments& a) {
  return Shape(Kernel::dropout)
      .size("units", a.units)
      .rows(a.samples * a.length, 16 * ceiling(a.units, 128))
      .launch(type, a);
}
KernelLaunch launch_of(Type type, const CrossEntropyArguments& a) {
  if (a.stride < a.classes)
    throw Error(cat("kernel cross_entropy: ", a.classes, " classes in rows of ", a.stride, " elements"));
  return Shape(Kernel::cross_entropy)
      .size("classes", a.classes)
      .elements("rows", a.samples * a.length)
      .x(a.blocks)
      .launch(type, a);
}
KernelLaunch launch_of(Type type, Kernel direction, const CopyTensorsArguments& a, std::int64_t blocks) {
  if (direction != Kernel::copy_tensors_in && direction != Kernel::copy_tensors_home)
    wrong_kernel(direction, "tensors' places");
  return Shape(direction).size("tensors", a.count).x(blocks).launch(type, a);
}
KernelLaunch launch_of(Type type, Kernel direction, const StateArguments& a) {
  if (direction != Kernel::state_in && direction != Kernel::state_out) wrong_kernel(direction, "carried state");
  return Shape(direction)
      .size("hidden", a.hidden)
      .rows(2 * a.layers * a.samples, octets_of(static_cast<int>(a.hidden)))
      .launch(type, a);
}

KernelLaunch launch_of(const CastArguments& a) {
  return Shape(Kernel::cast).octets(a.count).launch(a);
}
KernelLaunch launch_of(const SquaredNormPartsArguments& a) {
  return Shape(Kernel::squared_norm_parts).size("ranges", a.count).x(a.blocks).launch(a);
}
KernelLaunch launch_of(const SquaredNormsArguments& a) {
  return Shape(Kernel::squared_norms).x(a.count).launch(a);
}
KernelLaunch launch_of(const ChecksumPartsArguments& a) {
  return Shape(Kernel::checksum_parts).size("ranges", a.count).x(a.blocks).launch(a);
}
KernelLaunch launch_of(const NormTotalArguments& a) {
  return Shape(Kernel::norm_total).launch(a);
}
KernelLaunch launch_of(const UpdateScalarsArguments& a) {
  return Shape(Kernel::update_scalars).size("ranges", a.count).launch(a);
}
KernelLaunch launch_of(const LambMomentsArguments& a) {
  return Shape(Kernel::lamb_moments).size("ranges", a.count).x(a.blocks).launch(a);
}
KernelLaunch launch_of(const TrustRatiosArguments& a) {
  return Shape(Kernel::trust_ratios).elements("ranges", a.count).x(ceiling(a.count, tile_threads)).launch(a);
}
KernelLaunch launch_of(const MuonDirectionsArguments& a) {
  return Shape(Kernel::muon_directions).size("matrices", a.count).x(a.blocks).launch(a);
}
KernelLaunch launch_of(const NormalizeRangesArguments& a) {
  return Shape(Kernel::normalize_ranges).size("ranges", a.count).x(a.blocks).launch(a);
}
KernelLaunch launch_of(const BlendArguments& a) {
  return Shape(Kernel::blend).elements("count", a.count).x(ceiling(a.count, tile_threads)).launch(a);
}
KernelLaunch launch_of(Type type, const UpdateArguments& a, std::int64_t blocks) {
  return Shape(Kernel::update).size("tensors", a.count).x(blocks).launch(type, a);
}
KernelLaunch launch_of(const AverageArguments& a) {
  return Shape(Kernel::average).elements("count", a.count).x(ceiling(a.count, tile_threads)).launch(a);
}

}  // namespace ringtrain::cuda
