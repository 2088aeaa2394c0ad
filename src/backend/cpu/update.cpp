
#include <cmath>
#include <numeric>

#include "backend/cpu/vector_operations.h"

namespace ringtrain::cpu {

namespace {

// The vectors that an update reads and writes.
struct Work {
  int threads;
  const Kernels& kernels;
  std::span<const UpdateRange> ranges;
  std::vector<RangePiece> pieces;
  float* weights;
  const float* gradients;
  float *first, *second;  // state of the optimizer; null second: the optimizer has one vector
  float* average;         // of the weights; null: there is none
  const std::function<double(std::span<double>)>& complete_norms;
  float* directions;  // directions of Muon's matrices; null: there are none
};

bool is_muons(const UpdateRange& range) {
  return range.direction >= 0;
}
// Returns the part of `directions` for a piece of one of Muon's matrices.
float* directions_of(const Work& work, const RangePiece& piece) {
  const UpdateRange& range = work.ranges[piece.range];
  return work.directions + range.direction + (piece.begin - range.begin);
}

// Returns the part of a state vector for a piece.
float* state_of(const Work& work, float* state, const RangePiece& piece) {
  if (state == nullptr) return nullptr;
  const UpdateRange& range = work.ranges[piece.range];
  return state + range.state() + (piece.begin - range.begin);
}

UpdateRule with_decay(UpdateRule rule, const UpdateRange& range) {
  rule.weight_decay = range.weight_decay * rule.decay_factor;
  return rule;
}

// Returns one ratio per range. `gradient_norms` are squared norms. For LAMB, the function also updates the moments.
std::vector<float> trust_ratios(const UpdateRule& rule, const Work& work, std::span<const double> gradient_norms) {
  std::vector<double> sums(work.pieces.size()), weights(work.ranges.size()), others(work.ranges.size());
  sum_pieces(work.threads, work.pieces, sums, weights, [&](const RangePiece& piece) {
    return work.kernels.squared_norm(piece.count, work.weights + piece.begin);
  });
  if (rule.kind == OptimizerKind::lamb)
    sum_pieces(work.threads, work.pieces, sums, others, [&](const RangePiece& piece) {
      const auto [begin, n, range] = piece;
      return work.kernels.lamb_moments(with_decay(rule, work.ranges[range]), n, work.weights + begin,
                                       work.gradients + begin, state_of(work, work.first, piece),
                                       state_of(work, work.second, piece));
    });
  else
    others.assign(gradient_norms.begin(), gradient_norms.end());
  if (work.complete_norms) {
    work.complete_norms(weights);
    if (rule.kind == OptimizerKind::lamb) work.complete_norms(others);
  }
  std::vector<float> ratios(work.ranges.size(), 1.0f);
  for (std::size_t i = 0; i < ratios.size(); ++i)
    if (work.ranges[i].has_trust_ratio)
      ratios[i] = trust_ratio(rule, work.ranges[i].weight_decay, weights[i], others[i]);
  return ratios;
}

// Updates Muon's momentum, computes the directions, and orthogonalises them. Each matrix is orthogonalised on one of
// the ranks.
void make_directions(const UpdateRule& rule, const Work& work, const Update& update) {
#pragma omp parallel for num_threads(work.threads) schedule(static)
  for (std::size_t i = 0; i < work.pieces.size(); ++i) {
    const RangePiece& piece = work.pieces[i];
    if (is_muons(work.ranges[piece.range]))
      work.kernels.muon_directions(rule, piece.count, work.gradients + piece.begin, state_of(work, work.first, piece),
                                   directions_of(work, piece));
  }
  update.orthogonalizer->run(*update.directions);
  if (update.gather) update.gather();
}

// `ratios` has one element per range, or none.
void update_weights(const UpdateRule& rule, const Work& work, const std::vector<float>& ratios) {
#pragma omp parallel for num_threads(work.threads) schedule(static)
  for (std::size_t i = 0; i < work.pieces.size(); ++i) {
    const auto [begin, n, range] = work.pieces[i];
    UpdateRule own = with_decay(rule, work.ranges[range]);
    if (!ratios.empty()) own.learning_rate *= ratios[range];
    const bool muons = is_muons(work.ranges[range]);
    if (muons) make_muons(own, work.ranges[range].matrix_factor);
    work.kernels.update(own, n, work.weights + begin,
                        muons ? directions_of(work, work.pieces[i]) : work.gradients + begin,
                        state_of(work, work.first, work.pieces[i]), state_of(work, work.second, work.pieces[i]));
    if (work.average != nullptr)
      work.kernels.average_weights(own, n, work.weights + begin, state_of(work, work.average, work.pieces[i]));
  }
}

}  // namespace

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
                  .ranges = update.ranges,
                  .pieces = pieces_of(update.ranges),
                  .weights = weights.data(),
                  .gradients = gradients.data(),
                  .first = state[0]->data(),
                  .second = state.size() > 1 ? state[1]->data() : nullptr,
                  .average = update.average == nullptr ? nullptr : update.average->data(),
                  .complete_norms = update.complete_norms,
                  .directions = update.directions == nullptr ? nullptr : update.directions->data()};
  std::vector<float> ratios;
  if (has_trust_ratio(rule.kind)) ratios = trust_ratios(rule, work, norms);
  if (update.directions != nullptr) make_directions(rule, work, update);
  update_weights(rule, work, ratios);
  for (std::int64_t i = update.trained; i < weights.size(); ++i)
    weights.data()[i] = (1 - update.norm_momentum) * weights.data()[i] + update.norm_momentum * gradients.data()[i];
  if (update.program != nullptr) update.program->set_weights(weights);
  if (update.reports_trust) result.trust_ratios = std::move(ratios);
  return result;
}

}  // namespace ringtrain::cpu
