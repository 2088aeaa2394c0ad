// This file has forward convolutions and data gradients from CUTLASS 4.2 for Hopper. Each is an implicit matrix product
// with wgmma, Hopper's matrix instructions. The copy engine (TMA, im2col mode) brings the operands to shared memory.
// The fused operations are a tree of CUTLASS's epilogue nodes (cutlass/epilogue/fusion/sm90_visitor_*). The rows of a
// product are the pixels of all samples, its columns are channels. Each tile writes one partial sum per channel;
// sums.cuh adds the partial sums up in a fixed order.
#pragma once

#include "backend/cuda/hopper/cutlass_headers.h"
#include "backend/cuda/hopper/instance.h"
#include "backend/cuda/hopper/sums.cuh"

namespace ringtrain::cuda::hopper {

// Makes TileSums a node of CUTLASS's epilogue trees. The node has two inputs: a value and its factor. It adds the
// value to one sum and the product of both to the other sum, and passes the value on.
//
// CUTLASS's Sm90RowReduction computes one such sum. Two of those nodes would keep 64 more registers alive and would put
// arrays into local memory.
template <int rows, int columns>
struct ColumnSums {
  using Sums = on_device::TileSums<rows, columns>;
  using SharedStorage = typename Sums::Shared;
  struct Arguments {
    float *sum = nullptr, *other = nullptr;  // [tiles of rows][tiles of columns x columns]
  };
  using Params = Arguments;

  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static std::size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE ColumnSums() {}
  CUTLASS_HOST_DEVICE ColumnSums(const Params& given, const SharedStorage& storage)
      : params(given), shared(const_cast<SharedStorage*>(&storage)) {}
  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }
  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const cutlass::epilogue::fusion::detail::ProducerLoadArgs<Args...>&) {
    return cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks{};
  }

  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    Sums sums;
    SharedStorage* shared;
    float *sum, *other;  // sums of this tile
    int thread, rows_left;
    bool inside;  // false for a tile of a cluster that lies beyond the last tile

    // The operands of the product lie in the same shared memory. All warps must have read them before a warp writes
    // there.
    CUTLASS_DEVICE bool begin_sync_needed() const { return true; }
    CUTLASS_DEVICE void begin_loop(int step_m, int) { sums.begin(step_m); }

    template <class Accumulator, class A, class B, int count>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Accumulator, count>&, int, int step_m, int,
                              const cutlass::Array<A, count>& a, const cutlass::Array<B, count>& b) {
      static_assert(count == Sums::held, "a thread holds 16 elements of a step");
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < count; ++i)
        if (step_m * Sums::step_rows + Sums::row_of(i) < rows_left)
          sums.add(i, static_cast<float>(a[i]), static_cast<float>(b[i]));
      return a;
    }

    CUTLASS_DEVICE void end_loop(int step_m, int step_n) { sums.end(thread, step_m, step_n, *shared); }

    CUTLASS_DEVICE void end() {
      cutlass::arch::NamedBarrier::sync(Sums::warps * 32, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
      if (!inside) return;
      for (int i = thread; i < 2 * columns; i += Sums::warps * 32)
        (i < columns ? sum : other)[i % columns] = Sums::total(*shared, i / columns, i % columns);
    }
  };

  template <bool reference_source, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...>& args) {
    // The epilogue of CUTLASS holds its elements in the order that sums.cuh describes. These lines check it.
    using Held = decltype(args.tCcD(cute::_, cute::_, cute::_, cute::_0{}, cute::_0{}).layout());
    static_assert(decltype(cute::size(Held{}))::value == Sums::held);
    cute::for_each(cute::make_seq<Sums::held>{}, [](auto i) {
      using At = decltype(Held{}(i));
      static_assert(decltype(cute::get<0>(At{}))::value == Sums::row_of(decltype(i)::value));
      static_assert(decltype(cute::get<1>(At{}))::value == Sums::column_of(decltype(i)::value));
    });
    const int m = static_cast<int>(cute::get<0>(args.tile_coord_mnkl));
    const int n = static_cast<int>(cute::get<1>(args.tile_coord_mnkl));
    const int tiles = (static_cast<int>(cute::size(cute::get<1>(args.problem_shape_mnkl))) + columns - 1) / columns;
    const std::int64_t at = (static_cast<std::int64_t>(m) * tiles + n) * columns;
    ConsumerStoreCallbacks callbacks;
    callbacks.shared = shared;
    callbacks.sum = params.sum + at;
    callbacks.other = params.other + at;
    callbacks.thread = args.thread_idx;
    callbacks.rows_left = static_cast<int>(cute::get<0>(args.residue_tCcD));
    callbacks.inside = static_cast<int>(cute::get<0>(args.residue_cD)) > 0;
    return callbacks;
  }

  Params params;
  SharedStorage* shared = nullptr;
};

// Returns the gradient where the ReLU's output is positive, else 0.
template <class V>
struct Gate {
  CUTLASS_DEVICE V operator()(V gradient, V output) const { return on_device::gated(gradient, output); }
};
template <class V, int count>
struct Gate<cutlass::Array<V, count>> {
  using Values = cutlass::Array<V, count>;
  CUTLASS_DEVICE Values operator()(const Values& gradient, const Values& output) const {
    Values result;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < count; ++i) result[i] = on_device::gated(gradient[i], output[i]);
    return result;
  }
};

namespace fusion = cutlass::epilogue::fusion;
using Operator = cutlass::conv::Operator;
template <int value>
using Size = cute::Int<value>;

// Broadcasts one value per column (channel) from the group of the tile's rows. `values` is [groups][channels] in fp32.
template <class Tile>
struct GroupRow : fusion::Sm90RowBroadcast<0, Tile, float, float, cute::Stride<cute::_0, cute::_1, cute::_0>> {
  using Base = fusion::Sm90RowBroadcast<0, Tile, float, float, cute::Stride<cute::_0, cute::_1, cute::_0>>;
  using SharedStorage = typename Base::SharedStorage;
  struct Arguments {
    const float* values = nullptr;
    int tiles_per_group = 1, groups = 1, channels = 0;
  };
  using Params = Arguments;
  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static std::size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  CUTLASS_HOST_DEVICE GroupRow() {}
  CUTLASS_HOST_DEVICE GroupRow(const Params& params, const SharedStorage& shared)
      : Base(typename Base::Params{params.values}, shared), own(params) {}
  template <bool reference_source, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const int group =
        on_device::group_of_tile(static_cast<int>(cute::get<0>(args.tile_coord_mnkl)), own.tiles_per_group, own.groups);
    this->params.ptr_row = own.values + static_cast<std::int64_t>(group) * own.channels;
    return Base::template get_consumer_store_callbacks<reference_source>(args);
  }
  Params own;
};

// Words gives short names to the nodes of epilogue trees. `T` is the type of activations, `Tile` has rows, columns and
// depth.
template <class T, class Tile>
struct Words {
  static constexpr auto rounding = cutlass::FloatRoundStyle::round_to_nearest;
  using Product = fusion::Sm90AccFetch;
  using Source = fusion::Sm90SrcFetch<T>;
  using Given = fusion::Sm90SplitTreeFetch;  // the result of the tree's first part
  template <template <class> class Op, class... Children>
  using Fp32 = fusion::Sm90EVT<fusion::Sm90Compute<Op, float, float, rounding>, Children...>;
  template <template <class> class Op, class... Children>
  using Stored = fusion::Sm90EVT<fusion::Sm90Compute<Op, T, float, rounding>, Children...>;  // rounded as it is stored
  // Computes the sum of A and the sum of A x B, per tile and column.
  template <class A, class B>
  using Sums =
      fusion::Sm90EVT<ColumnSums<decltype(cute::get<0>(Tile{}))::value, decltype(cute::get<1>(Tile{}))::value>, A, B>;
};

// Returns the strides of NHWC: (column, row, sample), channels, and 0.
inline auto packed_rows(std::int64_t height, std::int64_t width, std::int64_t channels) {
  return cute::make_stride(cute::make_stride(channels, width * channels, height * width * channels), cute::_1{},
                           cute::_0{});
}

// `Tree` is the epilogue's tree, made for the tile. `blocks` is the number of blocks that a multiprocessor holds at
// once.
template <Operator op, class T, class Source, class Tree, class Tile, int cluster, int stages, int blocks>
struct Convolution {
  using Rows = decltype(cute::get<0>(Tile{}));
  using Columns = decltype(cute::get<1>(Tile{}));
  using Depth = decltype(cute::get<2>(Tile{}));
  using ProductTile = cute::Shape<Rows, Columns, cute::Shape<Depth>>;
  using Cluster = cute::Shape<Size<cluster>, cute::_1, cute::_1>;
  using Layout = cutlass::layout::TensorNHWC;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, ProductTile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, Layout, 8, T, Layout, 8,
      cutlass::epilogue::TmaWarpSpecialized, Tree>::CollectiveOp;
  using Mainloop = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, op, T, Layout, 8, T, Layout, 8, float, ProductTile, Cluster,
      cutlass::conv::collective::StageCount<stages>, cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  using Shape = cutlass::conv::ConvProblemShape<op, Mainloop::NumSpatialDimensions>;
  struct Kernel : cutlass::conv::kernel::ConvUniversal<Shape, Mainloop, Epilogue> {
    static constexpr std::uint32_t MinBlocksPerMultiprocessor = blocks;
  };
  using Arguments = typename Kernel::Arguments;

  template <class Thread>
  static Arguments arguments(const Problem& p, const Tensors& t, const Thread& thread, const void* source) {
    const bool forward = op == Operator::kFprop;
    const auto strides = forward ? packed_rows(out_height(p), out_width(p), p.k) : packed_rows(p.h, p.w, p.c);
    typename Kernel::EpilogueArguments epilogue{thread, static_cast<const T*>(source), strides,
                                                static_cast<T*>(t.result), strides};
    return Arguments(conv_shape<op>(p), {static_cast<const T*>(t.activation), static_cast<const T*>(t.weight)},
                     epilogue);
  }
  static Description describe(const char* name, Work work) {
    return described(name, work, element_of<T>, Rows::value, Columns::value, Depth::value, cluster,
                     Kernel::MaxThreadsPerBlock, Kernel::SharedStorageSize);
  }
  static cudaError_t launch(const Arguments& arguments, cudaStream_t stream) {
    auto params = Kernel::to_underlying_arguments(arguments, nullptr);
    return launch_clusters(reinterpret_cast<const void*>(cutlass::device_kernel<Kernel>),
                           Kernel::get_grid_shape(params), Kernel::MaxThreadsPerBlock, cluster,
                           Kernel::SharedStorageSize, &params, stream);
  }
};

// The instance of `Own`, which has a Convolution (Conv) and its arguments() for a problem.
template <class Own, Work work>
struct Launched {
  static bool can_implement(const Problem& p) { return Own::Conv::Kernel::can_implement(Own::arguments(p, {}, {})); }
  static cudaError_t launch(const Problem& p, const Tensors& t, const Partials& partials, cudaStream_t stream) {
    return Own::Conv::launch(Own::arguments(p, t, partials), stream);
  }
  static Instance instance(const char* name) { return {Own::Conv::describe(name, work), &can_implement, &launch}; }
};

// The next types compute the forward convolution, sum(y) and sum(y^2).

template <class T, class Tile>
struct ForwardTree {
  using W = Words<T, Tile>;
  using Type = fusion::Sm90SplitTreeVisitor<
      typename W::template Stored<cutlass::epilogue::thread::Identity, typename W::Product>, typename W::Given,
      typename W::template Sums<typename W::Given, typename W::Given>>;
};

template <class T, int rows, int columns, int cluster, int stages, int blocks>
struct ForwardSums : Launched<ForwardSums<T, rows, columns, cluster, stages, blocks>, Work::forward_sums> {
  using Tile = cute::Shape<Size<rows>, Size<columns>, cute::_64>;
  using Tree = typename ForwardTree<T, Tile>::Type;
  using Conv = Convolution<Operator::kFprop, T, void, Tree, Tile, cluster, stages, blocks>;

  static typename Conv::Arguments arguments(const Problem& p, const Tensors& t, const Partials& partials) {
    typename Tree::Arguments tree{
        {{}, {}},                                      // y, rounded
        {{}, {}, {partials.sum, partials.sum_other}},  // y, y, their sums
        {},                                            // the stored result
    };
    return Conv::arguments(p, t, tree, nullptr);
  }
};

// The next types compute the data gradient dr, and the sums sum(dr) and sum(dr x) for the norm before the ReLU.

// Recomputes the ReLU's input, scale x + bias, from the norm's input x, which is the epilogue's source.
template <class T, class Tile>
struct GradientTree {
  using W = Words<T, Tile>;
  using Output =
      typename W::template Fp32<cutlass::homogeneous_multiply_add, GroupRow<Tile>, typename W::Source, GroupRow<Tile>>;
  using Type =
      fusion::Sm90SplitTreeVisitor<typename W::template Stored<Gate, typename W::Product, Output>, typename W::Given,
                                   typename W::template Sums<typename W::Given, typename W::Source>>;
};

template <class T, int rows, int columns, int cluster, int stages, int blocks>
struct GradientSums : Launched<GradientSums<T, rows, columns, cluster, stages, blocks>, Work::gradient_sums> {
  using Tile = cute::Shape<Size<rows>, Size<columns>, cute::_64>;
  using Tree = typename GradientTree<T, Tile>::Type;
  using Conv = Convolution<Operator::kDgrad, T, T, Tree, Tile, cluster, stages, blocks>;

  static typename Conv::Arguments arguments(const Problem& p, const Tensors& t, const Partials& partials) {
    const auto factor = [&](const float* values) {
      return typename GroupRow<Tile>::Arguments{values, static_cast<int>(tiles_per_group(p, rows)),
                                                static_cast<int>(p.groups), static_cast<int>(p.c)};
    };
    typename Tree::Arguments tree{
        {{}, {factor(t.scale), {}, factor(t.bias), {}}, {}},  // product; scale, x, bias; gate
        {{}, {}, {partials.sum, partials.sum_other}},
        {},
    };
    return Conv::arguments(p, t, tree, t.norm_input);
  }
};

// Reads a further input as a matrix whose rows are all pixels. The base class would keep the dimensions of the
// problem's shape separate.
template <class Base>
struct RowsLoad : Base {
  using Base::Base;
  template <class Shape>
  static constexpr typename Base::Params to_underlying_arguments(const Shape& shape,
                                                                 const typename Base::Arguments& arguments,
                                                                 void* workspace) {
    const auto rows = cute::make_shape(static_cast<int>(cute::size(cute::get<0>(shape))), cute::get<1>(shape), 1, 1);
    return Base::to_underlying_arguments(rows, arguments, workspace);
  }
};

// The epilogue's source is the shortcut's gradient. The ReLU's output and the norm's input are further inputs.
template <class T, class Tile>
struct GradientAddTree {
  using W = Words<T, Tile>;
  using Epilogue = cutlass::epilogue::collective::detail::EpilogueDescriptor<
      cute::Shape<decltype(cute::get<0>(Tile{})), decltype(cute::get<1>(Tile{})),
                  cute::Shape<decltype(cute::get<2>(Tile{}))>>,
      cutlass::epilogue::collective::EpilogueTileAuto, T, T, cutlass::epilogue::TmaWarpSpecialized>;
  using Further = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Epilogue, cutlass::layout::RowMajor, T>;
  using Load =
      RowsLoad<fusion::Sm90AuxLoad<Further::Stages, typename Further::EpilogueTile, T, typename Further::Stride,
                                   typename Further::SmemLayoutAtom, typename Further::CopyOpS2R>>;
  using Sum = typename W::template Fp32<cutlass::plus, typename W::Product, typename W::Source>;
  using Type = fusion::Sm90SplitTreeVisitor<typename W::template Stored<Gate, Sum, Load>, typename W::Given,
                                            typename W::template Sums<typename W::Given, Load>>;
};

template <class T, int rows, int columns, int cluster, int stages, int blocks>
struct GradientAddSums : Launched<GradientAddSums<T, rows, columns, cluster, stages, blocks>, Work::gradient_add_sums> {
  using Tile = cute::Shape<Size<rows>, Size<columns>, cute::_64>;
  using Made = GradientAddTree<T, Tile>;
  using Tree = typename Made::Type;
  using Conv = Convolution<Operator::kDgrad, T, T, Tree, Tile, cluster, stages, blocks>;

  static typename Conv::Arguments arguments(const Problem& p, const Tensors& t, const Partials& partials) {
    const auto further = [&](const void* values) {
      return typename Made::Load::Arguments{static_cast<const T*>(values), T(0), {p.c, cute::_1{}, 0}};
    };
    typename Tree::Arguments tree{
        {{{}, {}, {}}, further(t.output), {}},  // product + shortcut; output; gate
        {{}, further(t.norm_input), {partials.sum, partials.sum_other}},
        {},
    };
    return Conv::arguments(p, t, tree, t.shortcut);
  }
};

}  // namespace ringtrain::cuda::hopper
