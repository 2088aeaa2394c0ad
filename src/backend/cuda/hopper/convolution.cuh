// This file has forward convolutions and data gradients from CUTLASS 4.2 for Hopper. Each is an implicit matrix product
// with wgmma, Hopper's matrix instructions. The copy engine (TMA, im2col mode) brings the operands to shared memory.
// The fused operations are a tree of CUTLASS's epilogue nodes (cutlass/epilogue/fusion/sm90_visitor_*). The rows of a
// product are the pixels of all samples, its columns are channels. Each tile writes one partial sum per channel;
// sums.cuh adds the partial sums up in a fixed order.
#pragma once

#include "backend/cuda/hopper/column_sums.cuh"
#include "backend/cuda/hopper/cutlass_headers.h"
#include "backend/cuda/hopper/instance.h"

namespace ringtrain::cuda::hopper {

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

// The next types compute the forward convolution, sum(y) and sum(y^2).

template <class T, class Tile>
struct ForwardTree {
  using W = Words<T, Tile>;
  using Type = fusion::Sm90SplitTreeVisitor<
      typename W::template Stored<cutlass::epilogue::thread::Identity, typename W::Product>, typename W::Given,
      typename W::template Sums<typename W::Given, typename W::Given>>;
};

template <class T, int rows, int columns, int cluster, int stages, int blocks>
struct ForwardSums {
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
  static bool can_implement(const Problem& p) { return Conv::Kernel::can_implement(arguments(p, {}, {})); }
  static cudaError_t launch(const Problem& p, const Tensors& t, const Partials& partials, cudaStream_t stream) {
    return Conv::launch(arguments(p, t, partials), stream);
  }
  static Instance instance(const char* name) {
    return {Conv::describe(name, Work::forward_sums), &can_implement, &launch};
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
struct GradientSums {
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
  static bool can_implement(const Problem& p) { return Conv::Kernel::can_implement(arguments(p, {}, {})); }
  static cudaError_t launch(const Problem& p, const Tensors& t, const Partials& partials, cudaStream_t stream) {
    return Conv::launch(arguments(p, t, partials), stream);
  }
  static Instance instance(const char* name) {
    return {Conv::describe(name, Work::gradient_sums), &can_implement, &launch};
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
struct GradientAddSums {
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
  static bool can_implement(const Problem& p) { return Conv::Kernel::can_implement(arguments(p, {}, {})); }
  static cudaError_t launch(const Problem& p, const Tensors& t, const Partials& partials, cudaStream_t stream) {
    return Conv::launch(arguments(p, t, partials), stream);
  }
  static Instance instance(const char* name) {
    return {Conv::describe(name, Work::gradient_add_sums), &can_implement, &launch};
  }
};

}  // namespace ringtrain::cuda::hopper
