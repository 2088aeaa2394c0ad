#include "backend/cpu/vector_operations.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "backend/cpu/onednn.h"
#include "base/rounding.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

// Sums of_piece(piece) over the pieces of each range. Pieces are added in order, so the result does not depend on the
// number of threads. `sums` has one element per piece, and `of_ranges` has one per range.
template <class Sum, class OfPiece>
void sum_pieces(int threads, std::span<const RangePiece> pieces, std::vector<Sum>& sums, std::vector<Sum>& of_ranges,
                const OfPiece& of_piece) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::size_t i = 0; i < pieces.size(); ++i) sums[i] = of_piece(pieces[i]);
  std::fill(of_ranges.begin(), of_ranges.end(), Sum{0});
  for (std::size_t i = 0; i < pieces.size(); ++i) of_ranges[pieces[i].range] += sums[i];
}

std::uint64_t checksum(const float* values, const RangePiece& piece) {
  std::uint64_t sum = 0;
  for (std::int64_t at = piece.begin; at < piece.begin + piece.count; at += 2) {
    std::uint64_t word;
    std::memcpy(&word, values + at, sizeof word);
    sum += checksum_term(word, static_cast<std::uint64_t>(at / 2));
  }
  return sum;
}

// Checksums of ranges in host memory.
class CpuChecksums : public Checksums {
 public:
  CpuChecksums(int threads, std::span<const ChecksumRange> ranges)
      : threads_(threads),
        ranges_(ranges.begin(), ranges.end()),
        pieces_(pieces_of(ranges)),
        sums_(pieces_.size()),
        values_(ranges.size()) {
    expect_checksum_ranges(ranges_);
  }

  void start() override {
    sum_pieces(threads_, pieces_, sums_, values_,
               [&](const RangePiece& piece) { return checksum(ranges_[piece.range].values->data(), piece); });
  }
  std::span<const std::uint64_t> values() override { return values_; }

 private:
  int threads_;
  std::vector<ChecksumRange> ranges_;
  std::vector<RangePiece> pieces_;
  std::vector<std::uint64_t> sums_, values_;  // sums of the pieces; checksums of the ranges
};

class CpuNormTotal : public NormTotal {
 public:
  void add(const RangeNorms& norms, bool first, std::uintptr_t) override {
    if (first) total_ = 0;
    for (std::int64_t i = 0; i < norms.size(); ++i) total_ += norms.data()[i];
  }
  void store(Vector& values, std::int64_t at, std::uintptr_t) override {
    values.data()[at] = static_cast<float>(total_);
  }

 private:
  double total_ = 0;
};

class CpuRangeNorms : public RangeNorms {
 public:
  CpuRangeNorms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges)
      : threads_(threads), kernels_(kernels), pieces_(pieces_of(ranges)), sums_(pieces_.size()), norms_(ranges.size()) {
    expect_ranges(ranges);
    for (const ElementRange& range : ranges) end_ = std::max(end_, range.end);
  }
  std::int64_t size() const override { return std::ssize(norms_); }
  void measure(const Vector& values, std::uintptr_t) override {
    expect_within(end_, values.size());
    sum_pieces(threads_, pieces_, sums_, norms_, [&](const RangePiece& piece) {
      return kernels_.squared_norm(piece.count, values.data() + piece.begin);
    });
  }

  void measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t) override {
    expect_within(end_, std::min(values.size(), before.size()));
    const std::vector<double> held = first ? std::vector<double>(norms_.size(), 0.0) : norms_;
    sum_pieces(threads_, pieces_, sums_, norms_, [&](const RangePiece& piece) {
      const float* from = values.data() + piece.begin;
      float* then = before.data() + piece.begin;
      if (!first) return kernels_.squared_change(piece.count, from, then);
      std::copy_n(from, piece.count, then);
      return kernels_.squared_norm(piece.count, from);
    });
    for (std::size_t i = 0; i < norms_.size(); ++i) norms_[i] += held[i];
  }

  const double* data() const override { return norms_.data(); }
  void fetch() override {}
  std::span<const double> values() override { return norms_; }

 private:
  int threads_;
  const Kernels& kernels_;
  std::int64_t end_ = 0;  // the largest end of a range
  std::vector<RangePiece> pieces_;
  std::vector<double> sums_, norms_;  // sums of the pieces; squared norms of the ranges
};

std::int64_t padded_bytes(std::int64_t elements) {
  return round_up(elements * static_cast<std::int64_t>(sizeof(float)), 64);
}

void scale(std::int64_t n, float factor, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// y = alpha x + beta y.
void blend(std::int64_t n, float alpha, const float* __restrict x, float beta, float* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = alpha * x[i] + beta * y[i];
}

// Newton-Schulz orthogonalisation with oneDNN. One thread does a whole matrix, so that no sum depends on the number of
// threads.
class CpuOrthogonalizer : public Orthogonalizer {
 public:
  CpuOrthogonalizer(int threads, const Kernels& kernels, std::span<const MatrixRange> matrices, MemoryCount count)
      : kernels_(kernels),
        matrices_(matrices.begin(), matrices.end()),
        workers_(std::min(static_cast<std::size_t>(threads), matrices.size())),
        count_(std::move(count)) {
    expect_matrices(matrices);
    std::ranges::stable_sort(matrices_, std::greater<>(), &MatrixRange::cost);
    std::int64_t scratch = 0;
    for (Worker& worker : workers_)
      for (const MatrixRange& m : matrices_) {
        auto [products, is_new] = worker.products.try_emplace({m.rows, m.columns});
        if (is_new) products->second = make_products(m);
        scratch = std::max(scratch, products->second.scratch_bytes());
        largest_ = std::max(largest_, m.count());
        largest_gram_ = std::max(largest_gram_, m.small() * m.small());
      }
    worker_bytes_ = padded_bytes(largest_) + 2 * padded_bytes(largest_gram_) + scratch;
  }

  std::int64_t bytes() const override { return std::ssize(workers_) * worker_bytes_; }

  void allocate() override {
    memory_ = Memory(bytes(), count_);
    char* at = memory_.data();
    const auto take = [&at](std::int64_t elements) {
      auto* const values = reinterpret_cast<float*>(at);
      at += padded_bytes(elements);
      return values;
    };
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      at = memory_.data() + static_cast<std::int64_t>(i) * worker_bytes_;
      worker.product = take(largest_);
      worker.gram = take(largest_gram_);
      worker.square = take(largest_gram_);
      for (auto& [shape, products] : worker.products)
        for (Gemm* gemm : {&products.gram, &products.square, &products.apply}) gemm->bind(nullptr, at);
    }
  }

  void run(Vector& values) override {
    if (matrices_.empty()) return;
#pragma omp parallel num_threads(static_cast <int>(workers_.size()))
    {
      Worker& worker = workers_[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic, 1)
      for (std::size_t i = 0; i < matrices_.size(); ++i)
        orthogonalize(matrices_[i], values.data() + matrices_[i].begin, worker);
    }
  }

 private:
  // The three products for one shape.
  struct Products {
    Gemm gram, square, apply;
    std::int64_t scratch_bytes() const {
      return std::max({gram.scratch_bytes(), square.scratch_bytes(), apply.scratch_bytes()});
    }
  };
  // The memory of one thread.
  struct Worker {
    std::map<std::pair<std::int64_t, std::int64_t>, Products> products;  // by rows and columns
    float *product = nullptr, *gram = nullptr, *square = nullptr;
  };

  // The Gram matrix [small, small] is X X^T for a wide matrix and X^T X for a tall one.
  static Products make_products(const MatrixRange& m) {
    const std::int64_t s = m.small();
    const bool wide = m.rows <= m.columns;
    const GemmShape gram{.m = s,
                         .n = s,
                         .k = std::max(m.rows, m.columns),
                         .a_transposed = !wide,
                         .b_transposed = wide,
                         .lda = m.columns,
                         .ldb = m.columns,
                         .ldc = s};
    const GemmShape square{.m = s, .n = s, .k = s, .lda = s, .ldb = s, .ldc = s};
    const GemmShape apply{.m = m.rows,
                          .n = m.columns,
                          .k = s,
                          .lda = wide ? s : m.columns,
                          .ldb = wide ? m.columns : s,
                          .ldc = m.columns};
    return {Gemm(gram, 1, 1), Gemm(square, 1, 1), Gemm(apply, 1, 1)};
  }

  void orthogonalize(const MatrixRange& m, float* x, Worker& worker) const {
    using N = NewtonSchulz;
    const std::int64_t gram_count = m.small() * m.small();
    const bool wide = m.rows <= m.columns;
    auto& [gram, square, apply] = worker.products.at({m.rows, m.columns});
    const float norm = static_cast<float>(std::sqrt(kernels_.squared_norm(m.count(), x)));
    scale(m.count(), 1 / std::max(norm, N::epsilon), x);
    for (int step = 0; step < N::steps; ++step) {
      gram.run(0, x, x, worker.gram);
      square.run(0, worker.gram, worker.gram, worker.square);
      blend(gram_count, N::b, worker.gram, N::c, worker.square);
      if (wide)
        apply.run(0, worker.square, x, worker.product);
      else
        apply.run(0, x, worker.square, worker.product);
      blend(m.count(), 1, worker.product, N::a, x);
    }
  }

  const Kernels& kernels_;
  std::vector<MatrixRange> matrices_;  // the ones that take longest come first
  std::vector<Worker> workers_;
  std::int64_t largest_ = 0, largest_gram_ = 0, worker_bytes_ = 0;  // the first two count elements
  MemoryCount count_;
  Memory memory_;
};

// The optimizer's step.

// The vectors that an update reads and writes.
struct Work {
  int threads;
  const Kernels& kernels;
  const Update& update;
  std::vector<RangePiece> pieces;
  float* weights;
  const float* gradients;
  float *first, *second;  // state of the optimizer; null second: the optimizer has one vector
};

bool is_muons(const UpdateRange& range) {
  return range.direction >= 0;
}
// Returns the part of `directions` for a piece of one of Muon's matrices.
float* directions_of(const Work& work, const RangePiece& piece) {
  const UpdateRange& range = work.update.ranges[piece.range];
  return work.update.directions->data() + range.direction + (piece.begin - range.begin);
}

// Returns the part of a state vector for a piece.
float* state_of(const Work& work, float* state, const RangePiece& piece) {
  if (state == nullptr) return nullptr;
  const UpdateRange& range = work.update.ranges[piece.range];
  return state + range.state() + (piece.begin - range.begin);
}

UpdateRule with_decay(UpdateRule rule, const UpdateRange& range) {
  rule.weight_decay = range.weight_decay * rule.decay_factor;
  return rule;
}

// Returns one ratio per range. `gradient_norms` are squared norms. For LAMB, the function also updates the moments.
std::vector<float> trust_ratios(const UpdateRule& rule, const Work& work, std::span<const double> gradient_norms) {
  std::vector<double> sums(work.pieces.size()), weights(work.update.ranges.size()), others(work.update.ranges.size());
  sum_pieces(work.threads, work.pieces, sums, weights, [&](const RangePiece& piece) {
    return work.kernels.squared_norm(piece.count, work.weights + piece.begin);
  });
  if (rule.kind == OptimizerKind::lamb)
    sum_pieces(work.threads, work.pieces, sums, others, [&](const RangePiece& piece) {
      const auto [begin, n, range] = piece;
      return work.kernels.lamb_moments(with_decay(rule, work.update.ranges[range]), n, work.weights + begin,
                                       work.gradients + begin, state_of(work, work.first, piece),
                                       state_of(work, work.second, piece));
    });
  else
    others.assign(gradient_norms.begin(), gradient_norms.end());
  if (work.update.complete_norms) {
    work.update.complete_norms(weights);
    if (rule.kind == OptimizerKind::lamb) work.update.complete_norms(others);
  }
  std::vector<float> ratios(work.update.ranges.size(), 1.0f);
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (work.update.ranges[i].has_trust_ratio)
      ratios[i] = trust_ratio(rule, work.update.ranges[i].weight_decay, weights[i], others[i]);
  return ratios;
}

// Updates Muon's momentum, computes the directions, and orthogonalises them. Each matrix is orthogonalised on one of
// the ranks.
void make_directions(const UpdateRule& rule, const Work& work) {
#pragma omp parallel for num_threads(work.threads) schedule(static)
  for (std::size_t i = 0; i < work.pieces.size(); ++i) {
    const RangePiece& piece = work.pieces[i];
    if (is_muons(work.update.ranges[piece.range]))
      work.kernels.muon_directions(rule, piece.count, work.gradients + piece.begin, state_of(work, work.first, piece),
                                   directions_of(work, piece));
  }
  work.update.orthogonalizer->run(*work.update.directions);
  if (work.update.gather) work.update.gather();
}

// `ratios` has one element per range, or none.
void update_weights(const UpdateRule& rule, const Work& work, const std::vector<float>& ratios) {
#pragma omp parallel for num_threads(work.threads) schedule(static)
  for (std::size_t i = 0; i < work.pieces.size(); ++i) {
    const auto [begin, n, range] = work.pieces[i];
    UpdateRule own = with_decay(rule, work.update.ranges[range]);
    if (!ratios.empty()) own.learning_rate *= ratios[range];
    const bool muons = is_muons(work.update.ranges[range]);
    if (muons) make_muons(own, work.update.ranges[range].matrix_factor);
    work.kernels.update(own, n, work.weights + begin,
                        muons ? directions_of(work, work.pieces[i]) : work.gradients + begin,
                        state_of(work, work.first, work.pieces[i]), state_of(work, work.second, work.pieces[i]));
    if (work.update.average != nullptr)
      work.kernels.average_weights(own, n, work.weights + begin,
                                   state_of(work, work.update.average->data(), work.pieces[i]));
  }
}

}  // namespace

std::unique_ptr<Checksums> make_checksums(int threads, std::span<const ChecksumRange> ranges) {
  return std::make_unique<CpuChecksums>(threads, ranges);
}
std::unique_ptr<NormTotal> make_norm_total() {
  return std::make_unique<CpuNormTotal>();
}
std::unique_ptr<RangeNorms> make_range_norms(int threads, const Kernels& kernels,
                                             std::span<const ElementRange> ranges) {
  return std::make_unique<CpuRangeNorms>(threads, kernels, ranges);
}
std::unique_ptr<Orthogonalizer> make_orthogonalizer(int threads, const Kernels& kernels,
                                                    std::span<const MatrixRange> matrices, MemoryCount count) {
  return std::make_unique<CpuOrthogonalizer>(threads, kernels, matrices, std::move(count));
}

UpdateResult run_update(int threads, const Kernels& kernels, const Update& update, Vector& weights,
                        const Vector& gradients, std::span<const std::unique_ptr<Vector>> state) {
  const double unscale = 1.0 / static_cast<double>(update.loss_scale);
  std::vector<double> norms;
  if (update.gradient_norms != nullptr) {
    update.gradient_norms->measure(gradients);
    const std::span<const double> measured = update.gradient_norms->values();
    norms.assign(measured.begin(), measured.end());
  }
  const double sum =
      update.complete_norms ? update.complete_norms(norms) : std::accumulate(norms.begin(), norms.end(), 0.0);
  const double norm = std::sqrt(sum) * unscale;
  if (!std::isfinite(norm)) return {.gradient_norm = norm, .applied = false};
  UpdateRule rule = update.rule;
  const double clipping = update.clip_norm > 0 && norm > update.clip_norm ? update.clip_norm / norm : 1;
  rule.gradient_scale = static_cast<float>(clipping * unscale);
  UpdateResult result{.gradient_norm = norm, .applied = true};
  if (update.adascale) {
    const auto small = static_cast<double>(gradients.data()[update.adascale->small_norms]);
    result.adascale = with_step(*update.adascale, norm * norm, small * unscale * unscale);
    result.gain = adascale_gain(result.adascale, update.adascale->times);
    rule.learning_rate *= static_cast<float>(result.gain);
  }

  const Work work{.threads = threads,
                  .kernels = kernels,
                  .update = update,
                  .pieces = pieces_of(update.ranges),
                  .weights = weights.data(),
                  .gradients = gradients.data(),
                  .first = state[0]->data(),
                  .second = state.size() > 1 ? state[1]->data() : nullptr};
  std::vector<float> ratios;
  if (has_trust_ratio(rule.kind)) ratios = trust_ratios(rule, work, norms);
  if (update.directions != nullptr) make_directions(rule, work);
  update_weights(rule, work, ratios);
  for (std::int64_t i = update.trained; i < weights.size(); ++i)
    weights.data()[i] = (1 - update.norm_momentum) * weights.data()[i] + update.norm_momentum * gradients.data()[i];
  if (update.program != nullptr) update.program->set_weights(weights);
  if (update.reports_trust) result.trust_ratios = std::move(ratios);
  return result;
}

}  // namespace ringtrain::cpu
