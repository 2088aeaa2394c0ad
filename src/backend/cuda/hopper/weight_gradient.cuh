// Computes weight gradients on Hopper GPUs with CUTLASS's mainloop (wgmma, and TMA's im2col mode for x). The result is
// small, so it gives few blocks, and the sum over pixels is long. Therefore a kernel of this program divides the pixels
// into splits (blockIdx.z). Each split writes its part of dw in fp32. sums.cuh adds the parts in a fixed order. The
// rows of the product are output channels. Its columns are input channels at one tap (position of the convolution's
// kernel).
#pragma once

#include "backend/cuda/hopper/cutlass_headers.h"
#include "backend/cuda/hopper/instance.h"

namespace ringtrain::cuda::hopper {

template <class Mainloop, class Shape>
struct WeightGradientKernel {
  using Tile = typename Mainloop::TileShape;
  using TiledMma = typename Mainloop::TiledMma;
  using Pipeline = typename Mainloop::MainloopPipeline;
  using MatrixShape = decltype(Mainloop::get_problem_shape_MNKL(Shape{}));
  static constexpr int rows = decltype(cute::size<0>(Tile{}))::value;
  static constexpr int columns = decltype(cute::size<1>(Tile{}))::value;
  static constexpr std::uint32_t MaxThreadsPerBlock = 256, MinBlocksPerMultiprocessor = 1;
  static_assert(decltype(cute::size(TiledMma{}))::value == 128, "one warp group multiplies, one brings the operands");

  struct SharedStorage {
    typename Mainloop::TensorStorage tensors;
    alignas(16) typename Mainloop::PipelineStorage pipeline;
  };
  static constexpr int SharedStorageSize = sizeof(SharedStorage);

  struct Params {
    MatrixShape shape;  // (k, (c, s, r), pixels, 1)
    typename Mainloop::Params mainloop;
    float* parts;  // [splits][k][r][s][c]
    int k, c, taps, steps_per_split;
  };

  CUTLASS_DEVICE void operator()(const Params& params, char* memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    auto& shared = *reinterpret_cast<SharedStorage*>(memory);
    const int thread = static_cast<int>(threadIdx.x) % cutlass::NumThreadsPerWarpGroup;
    const int warp = cutlass::canonical_warp_idx_sync();
    const bool producer = cutlass::canonical_warp_group_idx() == 0;
    const bool loads = producer && warp % cutlass::NumWarpsPerWarpGroup == 0;
    if (warp == 0 && cute::elect_one_sync()) Mainloop::prefetch_tma_descriptors(params.mainloop);

    typename Pipeline::Params pipes;
    if (loads) pipes.role = Pipeline::ThreadCategory::Producer;
    if (!producer) pipes.role = Pipeline::ThreadCategory::Consumer;
    pipes.is_leader = thread == 0;
    pipes.num_consumers = cutlass::NumThreadsPerWarpGroup;
    pipes.transaction_bytes = params.mainloop.tma_transaction_bytes;
    Pipeline pipeline(shared.pipeline, pipes, typename Mainloop::DispatchPolicy::ClusterShape{});
    __syncthreads();  // the barriers are initialised

    Mainloop mainloop;
    const auto operands = mainloop.load_init(params.shape, params.mainloop);
    const auto a = cute::get<0>(operands);  // (rows, depth, tiles, steps)
    const auto b = cute::get<1>(operands);
    const auto m = cute::idx2crd(static_cast<int>(blockIdx.x), cute::shape<2>(a));
    const auto n = cute::idx2crd(static_cast<int>(blockIdx.y), cute::shape<2>(b));
    const auto place = cute::make_coord(m, n, cute::_, cute::Int<0>{});
    const int all_steps = static_cast<int>(cute::size<3>(a));
    const int first = static_cast<int>(blockIdx.z) * params.steps_per_split;
    const int steps = cute::min(params.steps_per_split, all_steps - first);

    if (loads) {
      const auto iterator = cute::make_coord_iterator(cute::idx2crd(first, cute::shape<3>(a)), cute::shape<3>(a));
      auto state = cutlass::make_producer_start_state<Pipeline>();
      mainloop.load(params.mainloop, pipeline, state, operands, place, iterator, steps, cutlass::canonical_lane_idx(),
                    0, shared.tensors);
      state.advance(steps);
      mainloop.load_tail(pipeline, state);
    } else if (!producer) {
      TiledMma product;
      auto sums = cute::partition_fragment_C(product, cute::take<0, 2>(Tile{}));
      typename Mainloop::PipelineState state;
      mainloop.mma(pipeline, state, sums, steps, thread, shared.tensors, params.mainloop);
      mainloop.mma_tail(pipeline, state, steps);
      write(params, product, sums, thread);
    }
#endif
  }

  // Writes two neighbouring elements at a time. A thread holds such pairs, and c is even.
  template <class Sums>
  CUTLASS_DEVICE static void write(const Params& params, const TiledMma& product, const Sums& sums, int thread) {
    const auto inside = cute::make_identity_tensor(cute::make_shape(cute::Int<rows>{}, cute::Int<columns>{}));
    const auto places = product.get_thread_slice(thread).partition_C(inside);
    const int column_tiles = (params.c + columns - 1) / columns;
    const int column_tile = static_cast<int>(blockIdx.y) % column_tiles;
    const int tap = static_cast<int>(blockIdx.y) / column_tiles;  // s + r x width of the kernel
    const std::int64_t row_stride = static_cast<std::int64_t>(params.taps) * params.c;
    float* const to = params.parts + static_cast<std::int64_t>(blockIdx.z) * params.k * row_stride +
                      static_cast<std::int64_t>(tap) * params.c;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(sums); i += 2) {
      const int k = static_cast<int>(blockIdx.x) * rows + static_cast<int>(cute::get<0>(places(i)));
      const int c = column_tile * columns + static_cast<int>(cute::get<1>(places(i)));
      if (k < params.k && c < params.c)
        *reinterpret_cast<float2*>(to + k * row_stride + c) = make_float2(sums(i), sums(i + 1));
    }
  }
};

template <class T, int rows, int columns>
struct WeightGradient {
  using Tile = cute::Shape<cute::Int<rows>, cute::Shape<cute::Int<columns>>, cute::Shape<cute::_64>>;
  using Layout = cutlass::layout::TensorNHWC;
  static constexpr auto op = cutlass::conv::Operator::kWgrad;
  using Mainloop = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, op, T, Layout, 8, T, Layout, 8, float, Tile,
      cute::Shape<cute::_1, cute::_1, cute::_1>, cutlass::conv::collective::StageCount<6>,
      cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  using Shape = cutlass::conv::ConvProblemShape<op, Mainloop::NumSpatialDimensions>;
  using Kernel = WeightGradientKernel<Mainloop, Shape>;

  static Description description(const char* name) {
    return described(name, Work::weight_gradient, element_of<T>, rows, columns, 64, 1, Kernel::MaxThreadsPerBlock,
                     Kernel::SharedStorageSize);
  }
  static typename Mainloop::Arguments operands(const Tensors& t) {
    return {static_cast<const T*>(t.weight), static_cast<const T*>(t.activation)};  // dy, x
  }
  static bool can_implement(const Problem& p) { return Mainloop::can_implement(conv_shape<op>(p), operands({})); }
  static cudaError_t launch(const Problem& p, const Tensors& t, const Partials& partials, cudaStream_t stream) {
    const auto shape = conv_shape<op>(p);
    const std::int64_t splits = weight_gradient_splits(p, description(""));
    typename Kernel::Params params{Mainloop::get_problem_shape_MNKL(shape),
                                   Mainloop::to_underlying_arguments(shape, operands(t), nullptr),
                                   partials.splits,
                                   static_cast<int>(p.k),
                                   static_cast<int>(p.c),
                                   static_cast<int>(p.r * p.r),
                                   static_cast<int>(steps_per_split(p, 64, splits))};
    const dim3 grid(static_cast<unsigned>(tiles_of(p.k, rows)),
                    static_cast<unsigned>(tiles_of(p.c, columns) * p.r * p.r), static_cast<unsigned>(splits));
    return launch_clusters(reinterpret_cast<const void*>(cutlass::device_kernel<Kernel>), grid,
                           Kernel::MaxThreadsPerBlock, 1, Kernel::SharedStorageSize, &params, stream);
  }
  static Instance instance(const char* name) { return {description(name), &can_implement, &launch}; }
};

}  // namespace ringtrain::cuda::hopper
