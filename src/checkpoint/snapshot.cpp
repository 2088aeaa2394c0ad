#include "checkpoint/snapshot.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "checkpoint/resume.h"
#include "nn/parameters.h"
#include "parallel/pipeline.h"
#include "run/split.h"

namespace ringtrain {
namespace {

// ---- The parts of a vector that the stages of a pipeline hold, joined and split again: checkpoints hold whole models

// The elements of a flat vector that a function copies. `all` includes batch norm's statistics, which lie after the
// trained tensors. `trained` leaves them out.
enum class Elements { all, trained };

constexpr int kParts = 3;  // message tag

std::int64_t elements_of(const ParameterTable& parameters, Elements elements) {
  return elements == Elements::all ? parameters.size() : parameters.trained();
}

// Calls body(whole, part, count) for every tensor, with its offset in the whole model and in the part.
template <class Body>
void for_each_tensor(const RunPlan& plan, const ModelPart& part, Elements elements, const Body& body) {
  for (const Parameter& p : part.parameters.all())
    if (elements == Elements::all || p.kind != ParameterKind::statistic)
      body(plan.parameters.find(p.name).offset, p.offset, p.count);
}

void receive_from(StageRanks& ranks, std::span<float> values, int rank) {
  ranks.links().receive(std::as_writable_bytes(values), rank, kParts)->finish();
}
void send_to(StageRanks& ranks, std::span<const float> values, int rank) {
  ranks.links().send(std::as_bytes(values), rank, kParts)->finish();
}

bool is_root(const StageRanks& ranks) {
  return ranks.replica() == 0 && ranks.stage() == 0;
}

struct StatePlace {
  std::int64_t begin = 0, size = 0;  // floats, in a row that has the state of all layers
};
StatePlace state_place(const RunPlan& plan, int stage) {
  StatePlace place;
  for (int s = 0; s < stage; ++s) place.begin += part_of(plan, s).graph.state_size();
  place.size = part_of(plan, stage).graph.state_size();
  return place;
}

// Collective. `mine` is this rank's part. The result has the layout of plan.parameters. It is empty on all ranks but 0.
std::vector<float> gather_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine,
                                Elements elements) {
  if (!is_root(ranks)) {
    if (ranks.replica() == 0) send_to(ranks, mine, 0);
    return {};
  }
  std::vector<float> whole(static_cast<std::size_t>(elements_of(plan.parameters, elements)));
  for (int stage = 0; stage < ranks.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    std::vector<float> theirs(static_cast<std::size_t>(elements_of(part.parameters, elements)));
    if (stage == 0)
      std::ranges::copy(mine, theirs.begin());
    else
      receive_from(ranks, theirs, ranks.rank_of(0, stage));
    for_each_tensor(plan, part, elements, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      std::copy_n(theirs.begin() + from, count, whole.begin() + to);
    });
  }
  return whole;
}

// Collective. Sends the parts of `whole`, which is read on rank 0 only, to the ranks of every replica. It is the
// reverse of gather_parts().
void scatter_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine,
                   Elements elements) {
  if (!is_root(ranks)) return receive_from(ranks, mine, 0);
  for (int stage = 0; stage < ranks.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    std::vector<float> theirs(static_cast<std::size_t>(elements_of(part.parameters, elements)));
    for_each_tensor(plan, part, elements, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      std::copy_n(whole.begin() + from, count, theirs.begin() + to);
    });
    for (int replica = 0; replica < ranks.replicas(); ++replica)
      if (replica == 0 && stage == 0)
        std::ranges::copy(theirs, mine.begin());
      else
        send_to(ranks, theirs, ranks.rank_of(replica, stage));
  }
}

// Collective. Gather and scatter, in the same way, the hidden state that an LSTM carries from one batch to the next.
// `mine` is [rows of a replica, layers of the part, (h, c), hidden]. `whole` is [global rows, all layers, (h, c),
// hidden].
std::vector<float> gather_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine) {
  if (!is_root(ranks)) {
    send_to(ranks, mine, 0);
    return {};
  }
  const std::int64_t rows = plan.batch.rows_per_rank, row_size = plan.graph.state_size();
  std::vector<float> whole(static_cast<std::size_t>(plan.batch.global * row_size)), theirs;
  for (int replica = 0; replica < ranks.replicas(); ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StatePlace place = state_place(plan, stage);
      theirs.resize(static_cast<std::size_t>(rows * place.size));
      if (replica == 0 && stage == 0)
        std::ranges::copy(mine, theirs.begin());
      else
        receive_from(ranks, theirs, ranks.rank_of(replica, stage));
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(theirs.begin() + row * place.size, place.size,
                    whole.begin() + (replica * rows + row) * row_size + place.begin);
    }
  return whole;
}

void scatter_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine) {
  if (!is_root(ranks)) return receive_from(ranks, mine, 0);
  const std::int64_t rows = plan.batch.rows_per_rank, row_size = plan.graph.state_size();
  std::vector<float> theirs;
  for (int replica = 0; replica < ranks.replicas(); ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StatePlace place = state_place(plan, stage);
      theirs.resize(static_cast<std::size_t>(rows * place.size));
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(whole.begin() + (replica * rows + row) * row_size + place.begin, place.size,
                    theirs.begin() + row * place.size);
      if (replica == 0 && stage == 0)
        std::ranges::copy(theirs, mine.begin());
      else
        send_to(ranks, theirs, ranks.rank_of(replica, stage));
    }
}

// ---- The arrays of a checkpoint

constexpr std::int64_t piece_elements = 1 << 20;  // number of elements that ranks exchange at a time
constexpr std::string_view running_prefix = "running/";
constexpr const char* carried_state_array = "state/lstm";  // of streams of text

// Returns the name of a tensor's array in files. "" if the vector has no values for this tensor.
using NameOf = std::function<std::string(const Parameter&)>;

// Stores one array per tensor. The padding and the order of the flat vector are not stored. Collective over a
// pipeline's `stages`. Without stages, rank 0 has the whole vector, and other ranks do nothing.
void store_vector(Checkpoint& checkpoint, const NameOf& name_of, Vector& flat, Elements elements, const RunPlan& plan,
                  Backend& backend, StageRanks* stages, bool root) {
  std::vector<float> whole;
  if (stages != nullptr) {
    std::vector<float> mine(static_cast<std::size_t>(flat.size()));
    backend.copy_to_host(flat, 0, mine);
    whole = gather_parts(plan, *stages, mine, elements);
  }
  for (const Parameter& p : plan.parameters.all()) {
    NamedArray array{name_of(p), p.shape, {}};
    if (!root || array.name.empty()) continue;
    array.values.resize(static_cast<std::size_t>(p.count));
    if (stages != nullptr)
      std::copy_n(whole.begin() + p.offset, p.count, array.values.begin());
    else
      backend.copy_to_host(flat, p.offset, array.values);
    checkpoint.arrays.push_back(std::move(array));
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

// Returns the optimizer's state vectors of a stage, with their names in files.
std::vector<std::pair<NameOf, Vector*>> states_of(Trainer& trainer, const RunPlan& plan) {
  std::vector<std::pair<NameOf, Vector*>> all;
  for (std::size_t i = 0; i < trainer.optimizer().state().size(); ++i)
    all.emplace_back(state_name(plan.experiment, i), trainer.optimizer().state()[i].get());
  return all;
}

// Called for each piece of the optimizer's state. All ranks take the same pieces in the same order.
using OfPiece = std::function<void(std::size_t index, std::int64_t begin, std::span<float> values)>;
using OfArray = std::function<std::span<float>(const std::string& name, const Parameter& parameter)>;

// `array_of` returns the whole array of a tensor on rank 0 and an empty span on other ranks.
void for_state_pieces(Trainer& trainer, const RunPlan& plan, const OfArray& array_of, const OfPiece& action) {
  std::vector<float> own;
  for (std::size_t i = 0; i < trainer.optimizer().state().size(); ++i) {
    const NameOf name_of = state_name(plan.experiment, i);
    for (const Parameter& p : plan.parameters.all()) {
      const std::string name = name_of(p);
      if (name.empty()) continue;
      const std::span<float> array = array_of(name, p);
      for (std::int64_t at = 0; at < p.count; at += piece_elements) {
        const auto count = static_cast<std::size_t>(std::min(piece_elements, p.count - at));
        if (array.empty()) own.resize(count);
        action(i, p.offset + at, array.empty() ? std::span(own) : array.subspan(static_cast<std::size_t>(at), count));
      }
    }
  }
}

// Collective if ranks share the state. `checkpoint` is null on all ranks but 0.
void store_states(Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan) {
  const auto array_of = [&](const std::string& name, const Parameter& p) -> std::span<float> {
    if (checkpoint == nullptr) return {};
    NamedArray& array = checkpoint->arrays.emplace_back(NamedArray{name, p.shape, {}});
    array.values.resize(static_cast<std::size_t>(p.count));
    return array.values;
  };
  for_state_pieces(trainer, plan, array_of, [&](std::size_t index, std::int64_t begin, std::span<float> values) {
    trainer.optimizer().read_state(index, begin, values);
  });
}

// Collective. `checkpoint` is null on all ranks but 0.
void load_states(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, Communicator& communicator) {
  std::vector<float> whole;
  const auto array_of = [&](const std::string& name, const Parameter& p) -> std::span<float> {
    if (checkpoint == nullptr) return {};
    whole = checkpoint->array(name, p.shape).values;
    return whole;
  };
  for_state_pieces(trainer, plan, array_of, [&](std::size_t index, std::int64_t begin, std::span<float> values) {
    communicator.broadcast(std::as_writable_bytes(values), 0);
    trainer.optimizer().write_state(index, begin, values);
  });
}

std::vector<float> weights_of(const Checkpoint& checkpoint, const RunPlan& plan) {
  std::vector<float> flat(static_cast<std::size_t>(plan.parameters.size()));
  load_weights(checkpoint, plan.parameters, flat);
  restore_running_norms(checkpoint, plan.parameters, flat);
  if (evaluates_average(plan.experiment)) restore_vector(checkpoint, trained_name, plan.parameters, flat);
  return flat;
}

std::vector<std::int64_t> state_shape(const RunPlan& plan) {
  const std::int64_t hidden = plan.experiment.model.hidden;
  return {plan.batch.global, plan.graph.state_size() / (2 * hidden), 2, hidden};
}

}  // namespace

Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, RunState state, Communicator& communicator,
                         std::span<const float> evaluated_norms, StageRanks* stages) {
  const bool root = communicator.rank() == 0;
  std::vector<float> carried;
  if (plan.carries_state && stages != nullptr) {
    carried = gather_state(plan, *stages, trainer.passes().carried_state());
  } else if (plan.carries_state) {
    if (root) carried.resize(static_cast<std::size_t>(plan.batch.global * plan.graph.state_size()));
    communicator.gather(std::as_bytes(trainer.passes().carried_state()), std::as_writable_bytes(std::span(carried)), 0);
  }
  if (!root && stages == nullptr && !trainer.optimizer().is_shared()) return {};
  Checkpoint c;
  if (root) {
    trainer.save(state.trainer);
    state.facts.ranks = communicator.size();
    state.facts.micro_batch = plan.batch.micro_batch;
    c = make_checkpoint(plan, std::move(state));
  }
  const auto store = [&](const NameOf& name_of, Vector& vector, Elements elements) {
    store_vector(c, name_of, vector, elements, plan, trainer.backend(), stages, root);
  };
  store(weight_array, trainer.evaluated_weights(), Elements::all);
  if (stages != nullptr)
    for (const auto& [name_of, vector] : states_of(trainer, plan)) store(name_of, *vector, Elements::trained);
  else
    store_states(root ? &c : nullptr, trainer, plan);
  if (evaluates_average(plan.experiment)) store(trained_name, trainer.weights(), Elements::all);
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
  const auto norms_step = checkpoint.whole("norms_step");
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
  load_states(checkpoint, trainer, plan, communicator);
}

// Collective. Gives every rank of a pipeline its part. `checkpoint` is null on all ranks but 0.
static void load_parts(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, StageRanks& stages) {
  const auto share = [&](std::span<const float> whole, Vector& vector, Elements elements) {
    std::vector<float> mine(static_cast<std::size_t>(vector.size()));
    scatter_parts(plan, stages, whole, mine, elements);
    trainer.backend().copy_from_host(mine, vector, 0);
  };
  std::vector<float> whole;
  if (checkpoint != nullptr) whole = weights_of(*checkpoint, plan);
  share(whole, trainer.weights(), Elements::all);
  for (const auto& [name_of, vector] : states_of(trainer, plan)) {
    whole.assign(checkpoint != nullptr ? static_cast<std::size_t>(plan.parameters.trained()) : 0, 0.0f);
    if (checkpoint != nullptr) restore_vector(*checkpoint, name_of, plan.parameters, whole);
    share(whole, *vector, Elements::trained);
  }
}

void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages) {
  const bool root = communicator.rank() == 0;
  if (of_rank_0(communicator, checkpoint == nullptr))
    initialize_vectors(trainer, plan, communicator, stages != nullptr);
  else if (stages != nullptr)
    load_parts(checkpoint, trainer, plan, *stages);
  else
    load_vectors(checkpoint, trainer, plan, communicator);
  if (plan.carries_state && progress.position.step > 0) {
    std::span<const float> all;
    if (root) {
      all = checkpoint->array(carried_state_array, state_shape(plan)).values;
    }
    if (stages != nullptr)
      scatter_state(plan, *stages, all, trainer.passes().carried_state());
    else
      communicator.scatter(std::as_bytes(all), std::as_writable_bytes(trainer.passes().carried_state()), 0);
  }
  TrainerState state = trainer.fresh_state();
  if (checkpoint != nullptr) read_state(*checkpoint, plan, state);
  broadcast_state(state, plan.experiment, communicator);
  trainer.load(state, progress.position);
}

}  // namespace ringtrain
