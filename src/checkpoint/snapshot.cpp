#include "checkpoint/snapshot.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "checkpoint/resume.h"
#include "checkpoint/stage_parts.h"
#include "nn/parameters.h"

namespace ringtrain {
namespace {

constexpr std::int64_t piece_elements = 1 << 20;  // number of elements that ranks exchange at a time
constexpr std::string_view running_prefix = "running/";
constexpr const char* carried_state_array = "state/lstm";  // of streams of text

// Returns the name of a tensor's array in files. "" if the vector has no values for this tensor.
using NameOf = std::function<std::string(const Parameter&)>;

// Called for each piece of a vector in the layout of plan.parameters. It copies the values, which begin at element
// `begin` of the vector.
using OfPiece = std::function<void(std::int64_t begin, std::span<float> values)>;

// All ranks take the same pieces in the same order. `array` has the tensor's values on rank 0. It is empty on other
// ranks, which get memory for a piece.
void for_pieces(const Parameter& p, std::span<float> array, const OfPiece& of_piece) {
  std::vector<float> own;
  for (std::int64_t at = 0; at < p.count; at += piece_elements) {
    const auto count = static_cast<std::size_t>(std::min(piece_elements, p.count - at));
    if (array.empty()) own.resize(count);
    of_piece(p.offset + at, array.empty() ? std::span(own) : array.subspan(static_cast<std::size_t>(at), count));
  }
}

// Stores one array per tensor. The padding and the order of the flat vector are not stored. `checkpoint` is null on all
// ranks but 0.
void store_vector(Checkpoint* checkpoint, const NameOf& name_of, const ParameterTable& parameters,
                  const OfPiece& read) {
  for (const Parameter& p : parameters.all()) {
    NamedArray array{name_of(p), p.shape, {}};
    if (array.name.empty()) continue;
    if (checkpoint != nullptr) array.values.resize(static_cast<std::size_t>(p.count));
    for_pieces(p, array.values, read);
    if (checkpoint != nullptr) checkpoint->arrays.push_back(std::move(array));
  }
}

void restore_vector(const Checkpoint& checkpoint, const NameOf& name_of, const ParameterTable& parameters,
                    std::span<float> flat) {
  for (const Parameter& p : parameters.all()) {
    const std::string name = name_of(p);
    if (name.empty()) continue;
    const NamedArray& array = checkpoint.array(name, p.shape);
    std::copy(array.values.begin(), array.values.end(), flat.begin() + p.offset);
  }
}

// Puts the evaluated batch norm statistics into weights/ and the run's own statistics into running/.
void set_evaluated_norms(Checkpoint& checkpoint, const ParameterTable& parameters, std::span<const float> norms) {
  for (const Parameter& p : parameters.all()) {
    if (p.kind != ParameterKind::statistic) continue;
    const auto array = std::ranges::find(checkpoint.arrays, weight_array(p), &NamedArray::name);
    NamedArray own{cat(running_prefix, p.name), p.shape, array->values};
    std::copy_n(norms.begin() + (p.offset - parameters.trained()), p.count, array->values.begin());
    checkpoint.arrays.push_back(std::move(own));
  }
}

// Restores the run's own statistics if the checkpoint has evaluated ones in weights/.
void restore_running_norms(const Checkpoint& checkpoint, const ParameterTable& parameters, std::span<float> flat) {
  for (const NamedArray& array : checkpoint.arrays)
    if (array.name.starts_with(running_prefix))
      std::ranges::copy(array.values, flat.begin() + parameters.find(array.name.substr(running_prefix.size())).offset);
}

bool evaluates_average(const Experiment& experiment) {
  return Optimizer::averages(experiment.optimizer, experiment.average);
}
// If the evaluated weights are an average, this is the name of the weights that are trained.
std::string trained_name(const Parameter& p) {
  return p.kind == ParameterKind::statistic ? "" : state_array("y", p);
}
// Returns the names for the optimizer's vector number `index`.
NameOf state_name(const Experiment& experiment, std::size_t index) {
  return [&experiment, index](const Parameter& p) {
    const std::string name = Optimizer::state_names(experiment.optimizer, p, experiment.average)[index];
    return p.kind == ParameterKind::statistic || name.empty() ? "" : state_array(name, p);
  };
}

std::vector<float> weights_of(const Checkpoint& checkpoint, const RunPlan& plan) {
  std::vector<float> flat(static_cast<std::size_t>(plan.parameters.size()));
  load_weights(checkpoint, plan.parameters, flat);
  restore_running_norms(checkpoint, plan.parameters, flat);
  if (evaluates_average(plan.experiment)) restore_vector(checkpoint, trained_name, plan.parameters, flat);
  return flat;
}

// A vector of a trainer, of which a checkpoint has an array for each tensor.
struct StoredVector {
  NameOf name_of;
  Vector* vector;  // on a rank of a pipeline, the part of its stage
  Elements elements;
  std::optional<std::size_t> state = {};  // the vector's number, if it is the optimizer's; the ranks may share it
};

std::vector<StoredVector> states_of(Trainer& trainer, const RunPlan& plan) {
  std::vector<StoredVector> states;
  for (const std::unique_ptr<Vector>& state : trainer.optimizer().state())
    states.push_back({state_name(plan.experiment, states.size()), state.get(), Elements::trained, states.size()});
  return states;
}

// Returns all vectors of a checkpoint, in their order in the file. Collective if ranks share the optimizer's state.
std::vector<StoredVector> stored_vectors(Trainer& trainer, const RunPlan& plan) {
  std::vector<StoredVector> vectors = {{weight_array, &trainer.evaluated_weights(), Elements::all}};
  const std::vector<StoredVector> states = states_of(trainer, plan);
  vectors.insert(vectors.end(), states.begin(), states.end());
  if (evaluates_average(plan.experiment)) vectors.push_back({trained_name, &trainer.weights(), Elements::all});
  return vectors;
}

// Collective. Returns the whole vector on rank 0, and nothing on other ranks.
std::vector<float> gather_vector(const StoredVector& stored, Backend& backend, const RunPlan& plan,
                                 StageRanks& stages) {
  std::vector<float> mine(static_cast<std::size_t>(stored.vector->size()));
  backend.copy_to_host(*stored.vector, 0, mine);
  return join_vector(plan, stored.elements, stages, mine);
}

// Collective. Gives every rank its part of `whole`, which is read on rank 0 only.
void scatter_vector(std::span<const float> whole, Vector& vector, Elements elements, Backend& backend,
                    const RunPlan& plan, StageRanks& stages) {
  std::vector<float> mine(static_cast<std::size_t>(vector.size()));
  split_vector(plan, elements, stages, whole, mine);
  backend.copy_from_host(mine, vector, 0);
}

// Collective over the ranks that have parts of the vector. `checkpoint` is null on all ranks but 0.
void store(const StoredVector& stored, Trainer& trainer, const RunPlan& plan, StageRanks* stages,
           Checkpoint* checkpoint) {
  if (stages != nullptr) {
    const std::vector<float> whole = gather_vector(stored, trainer.backend(), plan, *stages);
    if (checkpoint == nullptr) return;
    store_vector(checkpoint, stored.name_of, plan.parameters, [&](std::int64_t begin, std::span<float> values) {
      std::copy_n(whole.begin() + begin, values.size(), values.begin());
    });
  } else if (stored.state) {
    store_vector(checkpoint, stored.name_of, plan.parameters, [&](std::int64_t begin, std::span<float> values) {
      trainer.optimizer().read_state(*stored.state, begin, values);
    });
  } else if (checkpoint != nullptr) {
    store_vector(checkpoint, stored.name_of, plan.parameters, [&](std::int64_t begin, std::span<float> values) {
      trainer.backend().copy_to_host(*stored.vector, begin, values);
    });
  }
}

// Collective. `checkpoint` is null on all ranks but 0.
void load_state(const Checkpoint* checkpoint, const StoredVector& state, Trainer& trainer, const RunPlan& plan,
                Communicator& communicator) {
  for (const Parameter& p : plan.parameters.all()) {
    const std::string name = state.name_of(p);
    if (name.empty()) continue;
    std::vector<float> whole;
    if (checkpoint != nullptr) whole = checkpoint->array(name, p.shape).values;
    for_pieces(p, whole, [&](std::int64_t begin, std::span<float> values) {
      communicator.broadcast(std::as_writable_bytes(values), 0);
      trainer.optimizer().write_state(*state.state, begin, values);
    });
  }
}

// ---- The hidden state that streams of text carry from step to step

std::vector<std::int64_t> state_shape(const RunPlan& plan) {
  const std::int64_t hidden = plan.experiment.model.hidden;
  return {plan.batch.global, plan.graph.state_size() / (2 * hidden), 2, hidden};
}

// Collective. Returns the state of all rows on rank 0, and nothing on other ranks.
std::vector<float> gather_carried_state(std::span<const float> mine, const RunPlan& plan, Communicator& communicator,
                                        StageRanks* stages) {
  if (stages != nullptr) return join_carried_state(plan, *stages, mine);
  std::vector<float> all;
  if (communicator.rank() == 0) all.resize(static_cast<std::size_t>(plan.batch.global * plan.graph.state_size()));
  communicator.gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), 0);
  return all;
}

// Collective. `checkpoint` is null on all ranks but 0.
void load_carried_state(const Checkpoint* checkpoint, std::span<float> mine, const RunPlan& plan,
                        Communicator& communicator, StageRanks* stages) {
  std::span<const float> all;
  if (communicator.rank() == 0) all = checkpoint->array(carried_state_array, state_shape(plan)).values;
  if (stages != nullptr)
    split_carried_state(plan, *stages, all, mine);
  else
    communicator.scatter(std::as_bytes(all), std::as_writable_bytes(mine), 0);
}

}  // namespace

Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, RunState state, Communicator& communicator,
                         std::span<const float> evaluated_norms, StageRanks* stages) {
  const bool root = communicator.rank() == 0;
  std::vector<float> carried;
  if (plan.carries_state) carried = gather_carried_state(trainer.passes().carried_state(), plan, communicator, stages);
  if (!root && stages == nullptr && !trainer.optimizer().is_shared()) return {};  // rank 0 has every vector
  Checkpoint c;
  if (root) {
    trainer.save(state.trainer);
    c = make_checkpoint(plan, std::move(state));
  }
  for (const StoredVector& stored : stored_vectors(trainer, plan))
    store(stored, trainer, plan, stages, root ? &c : nullptr);
  if (!root) return {};
  if (!evaluated_norms.empty()) set_evaluated_norms(c, plan.parameters, evaluated_norms);
  if (plan.carries_state) c.arrays.push_back({carried_state_array, state_shape(plan), std::move(carried)});
  return c;
}

Checkpoint fresh_checkpoint(const RunPlan& plan, std::span<const float> weights) {
  Checkpoint c = make_checkpoint(plan, {});
  const bool averages = evaluates_average(plan.experiment);
  const auto values = [&](const Parameter& p) {
    return std::vector<float>(weights.begin() + p.offset, weights.begin() + p.offset + p.count);
  };
  for (const Parameter& p : plan.parameters.all()) c.arrays.push_back({weight_array(p), p.shape, values(p)});
  for (const Parameter& p : plan.parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    const std::vector<float> zeros(static_cast<std::size_t>(p.count), 0.0f);
    for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, p, plan.experiment.average))
      if (!name.empty())
        c.arrays.push_back({state_array(name, p), p.shape, name == "z" || name == "average" ? values(p) : zeros});
    if (averages) c.arrays.push_back({trained_name(p), p.shape, values(p)});
  }
  return c;
}

void expect_evaluated_norms(const Checkpoint& checkpoint, const std::string& path) {
  const std::int64_t norms_step = progress_of(checkpoint).norms_step;
  if (checkpoint.step == 0 || norms_step == checkpoint.step) return;
  if (experiment_of(checkpoint, path).evaluate.norm_statistics != "recomputed") return;
  throw Error(cat(path,
                  ": has no recomputed statistics of batch norm (evaluate.norm_statistics): a signal stopped the run "
                  "before they were computed, after step ",
                  checkpoint.step),
              "resume the run: its next checkpoint will have them; or give another checkpoint");
}

void load_weights(const Checkpoint& checkpoint, const ParameterTable& parameters, std::span<float> flat) {
  restore_vector(checkpoint, weight_array, parameters, flat);
}

// Collective. The optimizer's state vectors start at zero, except those that begin() makes from the weights.
static void initialize_vectors(Trainer& trainer, const RunPlan& plan, Communicator& communicator, bool has_stages) {
  // Every rank of a pipeline computes the initial weights of its part of the model. They follow from the seed and the
  // tensors' names, so they are the same in all replicas.
  Vector& weights = trainer.weights();
  if (has_stages || communicator.rank() == 0) {
    std::vector<float> initial(static_cast<std::size_t>(weights.size()));
    initialize(trainer.part().parameters, plan.experiment.seed, initial);
    trainer.backend().copy_from_host(initial, weights, 0);
  }
  if (!has_stages) communicator.broadcast_vector(weights.all(), 0);
  trainer.optimizer().begin(weights);
}

// Collective. `checkpoint` is null on all ranks but 0.
static void load_vectors(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan,
                         Communicator& communicator) {
  Vector& weights = trainer.weights();
  if (checkpoint != nullptr) trainer.backend().copy_from_host(weights_of(*checkpoint, plan), weights, 0);
  communicator.broadcast_vector(weights.all(), 0);
  for (const StoredVector& state : states_of(trainer, plan)) load_state(checkpoint, state, trainer, plan, communicator);
}

// Collective. Gives every rank of a pipeline its part. `checkpoint` is null on all ranks but 0.
static void load_parts(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, StageRanks& stages) {
  std::vector<float> whole;
  if (checkpoint != nullptr) whole = weights_of(*checkpoint, plan);
  scatter_vector(whole, trainer.weights(), Elements::all, trainer.backend(), plan, stages);
  for (const StoredVector& state : states_of(trainer, plan)) {
    whole.assign(checkpoint != nullptr ? static_cast<std::size_t>(plan.parameters.trained()) : 0, 0.0f);
    if (checkpoint != nullptr) restore_vector(*checkpoint, state.name_of, plan.parameters, whole);
    scatter_vector(whole, *state.vector, state.elements, trainer.backend(), plan, stages);
  }
}

void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages) {
  if (of_rank_0(communicator, checkpoint == nullptr))
    initialize_vectors(trainer, plan, communicator, stages != nullptr);
  else if (stages != nullptr)
    load_parts(checkpoint, trainer, plan, *stages);
  else
    load_vectors(checkpoint, trainer, plan, communicator);
  if (plan.carries_state && progress.position.step > 0)
    load_carried_state(checkpoint, trainer.passes().carried_state(), plan, communicator, stages);
  TrainerState state = trainer.fresh_state();
  if (checkpoint != nullptr) read_state(*checkpoint, plan, state);
  broadcast_state(state, plan.experiment, communicator);
  trainer.load(state, progress.position);
}

}  // namespace ringtrain
