#include "checkpoint/snapshot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_input.h"
#include "base/utf8.h"
#include "base/version.h"
#include "checkpoint/branch_point.h"
#include "checkpoint/resume_rules.h"
#include "checkpoint/stage_parts.h"
#include "config/branch.h"
#include "config/reader.h"

namespace ringtrain {

namespace {

constexpr std::int64_t piece_elements = 1 << 20;  // number of elements that ranks exchange at a time
constexpr std::string_view running_prefix = "running/";

// Returns the name of a tensor's array in files. "" if the vector has no values for this tensor.
using NameOf = std::function<std::string(const Parameter&)>;

using CopyTensor = std::function<void(const Parameter&, std::span<float>)>;
// Stores one array per tensor. The padding and the order of the flat vector are not stored.
void store_tensors(Checkpoint& checkpoint, const NameOf& name_of, const ParameterTable& parameters,
                   const CopyTensor& copy) {
  for (const Parameter& p : parameters.all()) {
    NamedArray array{name_of(p), p.shape, {}};
    if (array.name.empty()) continue;
    array.values.resize(static_cast<std::size_t>(p.count));
    copy(p, array.values);
    checkpoint.arrays.push_back(std::move(array));
  }
}

// Collective over a pipeline's `stages`. Without stages, rank 0 has the whole vector.
void store_vector(Checkpoint& checkpoint, const NameOf& name_of, Vector& flat, Elements elements, const RunPlan& plan,
                  Backend& backend, StageRanks* stages, bool root) {
  if (stages == nullptr) {
    if (root)
      store_tensors(checkpoint, name_of, plan.parameters,
                    [&](const Parameter& p, std::span<float> to) { backend.copy_to_host(flat, p.offset, to); });
    return;
  }
  std::vector<float> mine(static_cast<std::size_t>(flat.size()));
  backend.copy_to_host(flat, 0, mine);
  const std::vector<float> whole = gather_parts(plan, *stages, mine, elements);
  if (root)
    store_tensors(checkpoint, name_of, plan.parameters, [&](const Parameter& p, std::span<float> to) {
      std::copy_n(whole.begin() + p.offset, to.size(), to.begin());
    });
}

const NamedArray& array_of_tensor(const Checkpoint& checkpoint, const std::string& name, const Parameter& p) {
  const NamedArray& array = checkpoint.array(name);
  if (array.shape != p.shape)
    throw Error(cat("the checkpoint's ", array.name, " has another shape than the model's ", p.name),
                "resume with the experiment that wrote the checkpoint (experiment.yaml in its run folder)");
  return array;
}

void restore_vector(const Checkpoint& checkpoint, const NameOf& name_of, const ParameterTable& parameters,
                    std::span<float> flat) {
  for (const Parameter& p : parameters.all()) {
    const std::string name = name_of(p);
    if (name.empty()) continue;
    const NamedArray& array = array_of_tensor(checkpoint, name, p);
    std::copy(array.values.begin(), array.values.end(), flat.begin() + p.offset);
  }
}

// Puts the evaluated batch norm statistics into weights/ and the run's own statistics into running/.
void set_evaluated_norms(Checkpoint& checkpoint, const ParameterTable& parameters, std::span<const float> norms) {
  for (const Parameter& p : parameters.all()) {
    if (p.kind != ParameterKind::statistic) continue;
    const auto array = std::ranges::find(checkpoint.arrays, cat(weights_prefix, p.name), &NamedArray::name);
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

std::string weight_name(const Parameter& p) {
  return std::string(weights_prefix) + p.name;
}
bool evaluates_average(const Experiment& experiment) {
  return Optimizer::averages(experiment.optimizer, experiment.average);
}
// If the evaluated weights are an average, this is the name of the weights that are trained.
std::string trained_name(const Parameter& p) {
  return p.kind == ParameterKind::statistic ? "" : "optimizer/y/" + p.name;
}
// Returns the names for the optimizer's vector number `index`.
NameOf state_name(const Experiment& experiment, std::size_t index) {
  return [&experiment, index](const Parameter& p) {
    const std::string name = Optimizer::state_names(experiment.optimizer, p, experiment.average)[index];
    return p.kind == ParameterKind::statistic || name.empty() ? "" : cat("optimizer/", name, "/", p.name);
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
    whole = array_of_tensor(*checkpoint, name, p).values;
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

// Collective. Loads the vectors from the checkpoint on rank 0, or initialises them if a run begins.
void load_vectors(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, Communicator& communicator) {
  std::uint8_t begins = checkpoint == nullptr;
  if (communicator.rank() == 0) {
    std::vector<float> flat(static_cast<std::size_t>(plan.parameters.size()));
    if (checkpoint != nullptr)
      flat = weights_of(*checkpoint, plan);
    else
      initialize(plan.parameters, plan.experiment.seed, flat);
    trainer.backend().copy_from_host(flat, trainer.weights(), 0);
  }
  Vector& weights = trainer.weights();
  communicator.broadcast_vector({weights.data(), static_cast<std::size_t>(weights.size())}, 0);
  communicator.broadcast(std::as_writable_bytes(std::span(&begins, 1)), 0);
  if (begins != 0)
    trainer.optimizer().begin(weights);  // the other state vectors start at zero
  else
    load_states(checkpoint, trainer, plan, communicator);
}

void store_noise(Checkpoint& checkpoint, const NoiseScale::State& state) {
  for (std::size_t i = 0; i < state.size(); ++i) checkpoint.numbers[std::string(NoiseScale::state_names[i])] = state[i];
}

NoiseScale::State noise_of(const Checkpoint& checkpoint) {
  NoiseScale::State state;
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = checkpoint.number(std::string(NoiseScale::state_names[i]));
  return state;
}

// Stores the states as one text, because twelve numbers for each of hundreds of tensors are too many for attributes.
void store_noise_groups(Checkpoint& checkpoint, const NoiseGroups& groups) {
  nlohmann::json states = nlohmann::json::object();
  for (std::size_t i = 0; i < groups.size(); ++i) states[groups.name(i)] = groups.scale(i).state();
  checkpoint.texts["noise_groups"] = states.dump();
}

// Returns the states of all groups, one after the other: [group, state]. Groups that the checkpoint does not have are
// zeros.
std::vector<double> noise_groups_of(const Checkpoint* checkpoint, const NoiseGroups& groups) {
  constexpr std::size_t each = NoiseScale::state_names.size();
  std::vector<double> all(groups.size() * each, 0.0);
  if (checkpoint == nullptr) return all;
  const auto states = parse_json<nlohmann::json>(checkpoint->text_or("noise_groups", "{}"));
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (const auto own = states.find(groups.name(i)); own != states.end()) {
      const bool good = own->is_array() && own->size() == each &&
                        std::ranges::all_of(*own, [](const nlohmann::json& value) { return value.is_number(); });
      if (!good)
        throw Error(cat("the checkpoint's noise_groups have no list of ", each, " numbers for ", groups.name(i)));
      std::ranges::copy(own->get<NoiseScale::State>(), all.begin() + static_cast<std::ptrdiff_t>(i * each));
    }
  return all;
}

void resume_noise_groups(NoiseGroups& groups, const std::vector<double>& all) {
  auto from = all.begin();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    NoiseScale::State state{};
    std::copy_n(from, state.size(), state.begin());
    from += static_cast<std::ptrdiff_t>(state.size());
    groups.scale(i).resume(state);
  }
}

// With half-lives, Adam's bias corrections need the products of the betas of all updates.
bool multiplies_betas(const Experiment& experiment) {
  return experiment.optimizer.half_life.beta1 > 0 || experiment.optimizer.half_life.beta2 > 0;
}

void store_betas(Checkpoint& checkpoint, const Optimizer::Applied& applied) {
  checkpoint.numbers["beta1_product"] = applied.beta1_product;
  checkpoint.numbers["beta2_product"] = applied.beta2_product;
}

void store_adascale(Checkpoint& checkpoint, const AdaScale::State& state) {
  for (std::size_t i = 0; i < state.size(); ++i) checkpoint.numbers[std::string(AdaScale::state_names[i])] = state[i];
}

AdaScale::State adascale_of(const Checkpoint& checkpoint) {
  AdaScale::State state;
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = checkpoint.number(std::string(AdaScale::state_names[i]));
  return state;
}

std::vector<std::int64_t> state_shape(const RunPlan& plan) {
  const std::int64_t hidden = plan.experiment.model.hidden;
  return {plan.batch.global, plan.graph.state_size() / (2 * hidden), 2, hidden};
}

// Returns how pictures become the model's input, as JSON: the size in pixels, and the mean and deviation of each
// channel, whose values are 0 to 1.
std::string image_input_of(const RunPlan& plan) {
  const auto& input = std::get<ImageInput>(plan.graph.nodes().front().operation);
  const DataConfig& data = plan.experiment.data;
  return nlohmann::ordered_json(
             {{"size", input.height}, {"resize", data.resize}, {"mean", input.mean}, {"std", input.std}})
      .dump();
}

// Returns the part of a checkpoint that follows from the plan and the progress. Arrays, machine and loss scale are
// missing.
Checkpoint make_checkpoint(const RunPlan& plan, const RunProgress& progress) {
  Checkpoint c;
  c.step = progress.position.step;
  c.texts = symbols_of(plan);
  c.texts.insert({{"experiment", to_yaml(plan.experiment)},
                  {"model", model_fingerprint(plan)},
                  {"train_uuid", plan.train.dataset_uuid},
                  {"commit", build_commit()},
                  {"machine", ""},
                  {"fusions", ""}});
  c.numbers = {{"samples", progress.position.samples},
               {"epoch", progress.position.epoch},
               {"offset", progress.position.offset},
               {"epoch_span", plan.schedule.samples_per_epoch()},
               {"before_epoch", progress.before.epoch},
               {"before_offset", progress.before.offset},
               {"batch", 0},  // 0: the first batch, or a batch of the schedule
               {"batch_small_since", NoiseFollower::not_small},
               {"elapsed_seconds", progress.elapsed_seconds},
               {"has_best", progress.has_best ? 1 : 0},
               {"best_loss", progress.best_loss},
               {"best_step", progress.best_step},
               {"evaluated_step", progress.evaluated_step},
               {"norms_step", progress.norms_step},
               {"dropped_gradients", progress.dropped},
               {"ranks", 0},
               {"threads", 0},
               {"compared", 0},
               {"loss_scale", 0.0},
               {"loss_scale_steps", 0},
               {"applied_updates", 0},
               {"applied_rate", 0.0},
               {"largest_rate", 0.0},
               {"average_weight", 0.0},
               {"micro_batch", 0},
               {"context_length", plan.train.text.context_length},  // 0: running text
               {"pad_id", plan.train.text.pad_id},
               {"stop_id", plan.train.text.stop_id},
               {"lowercase", plan.train.text.lowercase ? 1 : 0}};
  if (!std::isnan(progress.evaluated_loss)) c.numbers["evaluated_loss"] = progress.evaluated_loss;
  if (!std::isnan(progress.evaluated_accuracy)) c.numbers["evaluated_accuracy"] = progress.evaluated_accuracy;
  if (plan.graph.has_images()) c.texts["image_input"] = image_input_of(plan);
  store_noise(c, {});
  if (plan.experiment.optimizer.adascale) store_adascale(c, {});
  if (multiplies_betas(plan.experiment)) store_betas(c, {});
  if (is_branch(plan.experiment)) store_branch_point(c, plan.branch);
  return c;
}

// Other precisions have a loss scale of 1. That says nothing about the loss scale that fp16 needs.
bool scales_loss(const Checkpoint& checkpoint) {
  return experiment_of(checkpoint, "the checkpoint").precision == "fp16";
}

}  // namespace

std::map<std::string, std::string> symbols_of(const RunPlan& plan) {
  const auto text_of = [](const nlohmann::json& list) {
    return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  nlohmann::json symbols = nlohmann::json::array();
  for (const std::string& symbol : plan.train.text.vocabulary) {
    if (symbol.size() == 1 && find_invalid_utf8(symbol) != std::string_view::npos)
      symbols.push_back(static_cast<unsigned>(static_cast<unsigned char>(symbol[0])));
    else
      symbols.push_back(symbol);
  }
  std::vector<std::string> ids = plan.train.image.class_ids;
  for (std::string& id : ids) id = escape_invalid_utf8(id);  // different ids stay different
  return {{"vocabulary", text_of(symbols)}, {"class_ids", text_of(ids)}};
}

std::vector<std::string> vocabulary_of(const Checkpoint& checkpoint) {
  std::vector<std::string> symbols;
  const auto list = parse_json<nlohmann::json>(checkpoint.text("vocabulary"));
  bool good = list.is_array();
  if (good)
    for (const nlohmann::json& symbol : list) {
      const auto byte = integer_in<unsigned char>(symbol);
      good = good && (symbol.is_string() || byte);
      if (good) symbols.push_back(byte ? std::string(1, static_cast<char>(*byte)) : symbol.get<std::string>());
    }
  if (!good) throw Error("the checkpoint's vocabulary is not a list of symbols", "another program has written it");
  return symbols;
}

Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, const RunProgress& progress, Communicator& communicator,
                         std::span<const float> evaluated_norms, StageRanks* stages) {
  const bool root = communicator.rank() == 0;
  std::vector<float> state;
  if (plan.carries_state && stages != nullptr) {
    state = gather_state(plan, *stages, trainer.carried_state());
  } else if (plan.carries_state) {
    if (root) state.resize(static_cast<std::size_t>(plan.batch.global * plan.graph.state_size()));
    communicator.gather(trainer.carried_state(), state, 0);
  }
  if (!root && stages == nullptr && !trainer.optimizer().is_shared()) return {};
  Checkpoint c = root ? make_checkpoint(plan, progress) : Checkpoint{};
  const auto store = [&](const NameOf& name_of, Vector& vector, Elements elements) {
    store_vector(c, name_of, vector, elements, plan, trainer.backend(), stages, root);
  };
  store(weight_name, trainer.evaluated_weights(), Elements::all);
  if (stages != nullptr)
    for (const auto& [name_of, vector] : states_of(trainer, plan)) store(name_of, *vector, Elements::trained);
  else
    store_states(root ? &c : nullptr, trainer, plan);
  if (evaluates_average(plan.experiment)) store(trained_name, trainer.weights(), Elements::all);
  if (!root) return {};
  if (!evaluated_norms.empty()) set_evaluated_norms(c, plan.parameters, evaluated_norms);
  c.numbers["loss_scale"] = trainer.loss_scale().value();
  c.numbers["loss_scale_steps"] = trainer.loss_scale().steps_since_change();
  const Optimizer::Applied& applied = trainer.optimizer().applied();
  c.numbers["applied_updates"] = applied.updates;
  c.numbers["applied_rate"] = applied.rate;
  c.numbers["largest_rate"] = applied.largest_rate;
  c.numbers["average_weight"] = applied.average_weight;
  if (multiplies_betas(plan.experiment)) store_betas(c, applied);
  store_noise(c, trainer.noise_scale().state());
  if (trainer.noise_groups()) store_noise_groups(c, *trainer.noise_groups());
  if (trainer.adascale()) store_adascale(c, trainer.adascale()->state());
  if (plan.experiment.batch.follow_noise > 0) c.numbers["batch"] = trainer.batch();
  c.numbers["batch_small_since"] = trainer.noise_follower().small_since();
  c.numbers["ranks"] = communicator.size();
  c.numbers["micro_batch"] = plan.batch.micro_batch;
  if (plan.carries_state) c.arrays.push_back({"state/lstm", state_shape(plan), std::move(state)});
  return c;
}

Checkpoint fresh_checkpoint(const RunPlan& plan, std::span<const float> weights) {
  Checkpoint c = make_checkpoint(plan, RunProgress{});
  const bool averages = evaluates_average(plan.experiment);
  const auto values = [&](const Parameter& p) {
    return std::vector<float>(weights.begin() + p.offset, weights.begin() + p.offset + p.count);
  };
  for (const Parameter& p : plan.parameters.all()) c.arrays.push_back({weight_name(p), p.shape, values(p)});
  for (const Parameter& p : plan.parameters.all()) {
    if (p.kind == ParameterKind::statistic) continue;
    const std::vector<float> zeros(static_cast<std::size_t>(p.count), 0.0f);
    for (const std::string& name : Optimizer::state_names(plan.experiment.optimizer, p, plan.experiment.average))
      if (!name.empty())
        c.arrays.push_back(
            {cat("optimizer/", name, "/", p.name), p.shape, name == "z" || name == "average" ? values(p) : zeros});
    if (averages) c.arrays.push_back({trained_name(p), p.shape, values(p)});
  }
  return c;
}

RunProgress progress_of(const Checkpoint& c) {
  RunProgress p;
  p.position = {c.step, c.whole("samples"), c.whole("epoch"), c.whole("offset")};
  p.before.epoch = c.whole("before_epoch");
  p.before.offset = c.whole("before_offset");
  p.elapsed_seconds = c.number("elapsed_seconds");
  p.has_best = c.number("has_best") != 0;
  p.best_loss = c.number("best_loss");
  p.best_step = c.whole("best_step");
  p.evaluated_step = c.whole("evaluated_step");
  p.evaluated_loss = c.number_or("evaluated_loss", p.evaluated_loss);
  p.evaluated_accuracy = c.number_or("evaluated_accuracy", p.evaluated_accuracy);
  p.scale_invariant_steps = c.number_or("scale_invariant_steps", 0);
  p.norms_step = c.whole("norms_step");
  p.dropped = c.whole("dropped_gradients");
  return p;
}

bool was_compared(const Checkpoint& checkpoint) {
  return checkpoint.whole("compared") == 1;
}

std::int64_t recorded_micro_batch(const Checkpoint& checkpoint) {
  return checkpoint.whole("micro_batch");
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
  restore_vector(checkpoint, weight_name, parameters, flat);
}

// Returns the batch that follows the noise scale, and the sample count since which it has been small.
static std::array<std::int64_t, 2> followed_batch(const Checkpoint& c, const RunPlan& plan) {
  if (plan.experiment.batch.follow_noise == 0) return {0, NoiseFollower::not_small};
  const std::int64_t batch = c.whole("batch");
  if (batch > 0 && std::find(plan.batches.begin(), plan.batches.end(), batch) == plan.batches.end())
    throw Error(
        cat("the checkpoint's batch has grown to ", batch, ", but batch.largest is ", plan.experiment.batch.largest),
        "the batch never shrinks: give a batch.largest of that or more");
  return {batch, c.whole("batch_small_since")};
}

// Collective. Gives every rank of a pipeline its part.
static void share_parts(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, Communicator& communicator,
                        StageRanks& stages) {
  const bool root = communicator.rank() == 0;
  double fresh = root && checkpoint == nullptr ? 1 : 0;
  communicator.sum(std::span<double>(&fresh, 1));
  const auto share = [&](std::span<const float> whole, Vector& vector, Elements elements) {
    std::vector<float> mine(static_cast<std::size_t>(vector.size()));
    scatter_parts(plan, stages, whole, mine, elements);
    trainer.backend().copy_from_host(mine, vector, 0);
  };
  std::vector<float> whole;
  if (fresh > 0) {
    // Without a checkpoint, every rank computes the initial weights of its part of the model. They follow from the seed
    // and the tensors' names, so they are the same in all replicas.
    whole.resize(static_cast<std::size_t>(trainer.weights().size()));
    initialize(trainer.part().parameters, plan.experiment.seed, whole);
    trainer.backend().copy_from_host(whole, trainer.weights(), 0);
    trainer.optimizer().begin(trainer.weights());
    return;
  }
  if (root) whole = weights_of(*checkpoint, plan);
  share(whole, trainer.weights(), Elements::all);
  for (const auto& [name_of, vector] : states_of(trainer, plan)) {
    whole.assign(root ? static_cast<std::size_t>(plan.parameters.trained()) : 0, 0.0f);
    if (root) restore_vector(*checkpoint, name_of, plan.parameters, whole);
    share(whole, *vector, Elements::trained);
  }
}

void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages) {
  const bool root = communicator.rank() == 0;
  if (stages != nullptr)
    share_parts(checkpoint, trainer, plan, communicator, *stages);
  else
    load_vectors(checkpoint, trainer, plan, communicator);
  if (plan.carries_state && progress.position.step > 0) {
    std::span<const float> all;
    if (root) {
      const NamedArray& array = checkpoint->array("state/lstm");
      if (array.shape != state_shape(plan))
        throw Error("the checkpoint's carried state has another shape than this run's");
      all = array.values;
    }
    if (stages != nullptr)
      scatter_state(plan, *stages, all, trainer.carried_state());
    else
      communicator.scatter(all, trainer.carried_state(), 0);
  }
  std::array<double, 2> numbers = {};  // a loss scale of 0 means none: it starts at loss_scale.initial
  Optimizer::Applied applied;
  if (root && checkpoint != nullptr) {
    applied = {.updates = checkpoint->whole("applied_updates"),
               .rate = checkpoint->number("applied_rate"),
               .largest_rate = checkpoint->number("largest_rate"),
               .average_weight = checkpoint->number("average_weight")};
    if (multiplies_betas(plan.experiment)) {
      applied.beta1_product = checkpoint->number("beta1_product");
      applied.beta2_product = checkpoint->number("beta2_product");
    }
    if (scales_loss(*checkpoint)) numbers = {checkpoint->number("loss_scale"), checkpoint->number("loss_scale_steps")};
  }
  communicator.broadcast(std::as_writable_bytes(std::span(numbers)), 0);
  communicator.broadcast(std::as_writable_bytes(std::span(&applied, 1)), 0);
  const auto [scale, scale_steps] = numbers;
  if (scale > 0) trainer.loss_scale().resume(static_cast<float>(scale), static_cast<std::int64_t>(scale_steps));
  trainer.optimizer().resume(applied);
  NoiseScale::State noise{};
  if (root && checkpoint != nullptr) noise = noise_of(*checkpoint);
  communicator.broadcast(std::as_writable_bytes(std::span(noise)), 0);
  trainer.noise_scale().resume(noise);
  if (std::optional<NoiseGroups>& groups = trainer.noise_groups()) {
    std::vector<double> states = noise_groups_of(root ? checkpoint : nullptr, *groups);
    communicator.broadcast(std::as_writable_bytes(std::span(states)), 0);
    resume_noise_groups(*groups, states);
  }
  if (std::optional<AdaScale>& adascale = trainer.adascale()) {
    AdaScale::State state{};
    if (root && checkpoint != nullptr) state = adascale_of(*checkpoint);
    communicator.broadcast(std::as_writable_bytes(std::span(state)), 0);
    adascale->resume(state);
  }
  std::array<std::int64_t, 2> batch = {0, NoiseFollower::not_small};
  if (root && checkpoint != nullptr) batch = followed_batch(*checkpoint, plan);
  communicator.broadcast(std::as_writable_bytes(std::span(batch)), 0);
  trainer.noise_follower().resume(batch[1]);
  trainer.start_at(progress.position, batch[0]);
}

}  // namespace ringtrain
