// Makes TileSums a node of CUTLASS's epilogue trees. The node has two inputs: a value and its factor. It adds the
// value to one sum and the product of both to the other sum, and passes the value on.
//
// CUTLASS's Sm90RowReduction computes one such sum. Two of those nodes would keep 64 more registers alive and would put
// arrays into local memory.
#pragma once

#include "backend/cuda/hopper/cutlass_headers.h"
#include "backend/cuda/hopper/sums.cuh"

namespace ringtrain::cuda::hopper {

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

}  // namespace ringtrain::cuda::hopper
