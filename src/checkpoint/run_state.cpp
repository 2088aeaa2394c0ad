#include "checkpoint/run_state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>
#include <variant>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/version.h"
#include "checkpoint/resume.h"
#include "config/experiment.h"
#include "config/schema_text.h"

namespace ringtrain {
namespace {

// A number of a checkpoint, and its place in the state of a run. Writing, reading and broadcasting use these lists.
struct Item {
  std::string_view name;
  std::variant<std::int64_t*, double*, bool*> place;
  bool may_lack = false;  // a NaN is not stored, and a missing number leaves the place as it is
};
using Items = std::vector<Item>;

// The step of the position is Checkpoint::step.
Items items_of(RunProgress& p) {
  return {{"samples", &p.position.samples},
          {"epoch", &p.position.epoch},
          {"offset", &p.position.offset},
          {"before_epoch", &p.before.epoch},
          {"before_offset", &p.before.offset},
          {"elapsed_seconds", &p.elapsed_seconds},
          {"has_best", &p.has_best},
          {"best_loss", &p.best_loss},
          {"best_step", &p.best_step},
          {"evaluated_step", &p.evaluated_step},
          {"evaluated_loss", &p.evaluated_loss, true},
          {"evaluated_accuracy", &p.evaluated_accuracy, true},
          {"norms_step", &p.norms_step},
          {"dropped_gradients", &p.dropped}};
}

// The groups of noise are a text; see make_checkpoint().
Items items_of(TrainerState& s, const Experiment& experiment) {
  Items items = {{"loss_scale", &s.loss_scale},
                 {"loss_scale_steps", &s.loss_scale_steps},
                 {"applied_updates", &s.applied.updates},
                 {"applied_rate", &s.applied.rate},
                 {"largest_rate", &s.applied.largest_rate},
                 {"average_weight", &s.applied.average_weight},
                 {"batch", &s.batch},
                 {"batch_small_since", &s.batch_small_since}};
  // With half-lives, Adam's bias corrections need the products of the betas of all updates.
  if (experiment.optimizer.half_life.beta1 > 0 || experiment.optimizer.half_life.beta2 > 0) {
    items.push_back({"beta1_product", &s.applied.beta1_product});
    items.push_back({"beta2_product", &s.applied.beta2_product});
  }
  for (std::size_t i = 0; i < s.noise.size(); ++i) items.push_back({NoiseScale::state_names[i], &s.noise[i]});
  if (experiment.optimizer.adascale)
    for (std::size_t i = 0; i < s.adascale.size(); ++i) items.push_back({AdaScale::state_names[i], &s.adascale[i]});
  return items;
}

Items items_of(RunFacts& f) {
  return {{"ranks", &f.ranks}, {"threads", &f.threads}, {"micro_batch", &f.micro_batch}, {"compared", &f.compared}};
}

Items items_of(BranchPoint& b) {
  return {{"branch_step", &b.position.step},
          {"branch_samples", &b.position.samples},
          {"branch_epoch", &b.position.epoch},
          {"branch_offset", &b.position.offset}};
}

constexpr const char *kept_text = "kept_steps", *source_name = "branch_source", *groups_name = "noise_groups";
constexpr const char* epoch_size = "epoch_span";  // the samples of an epoch

Number value_of(const Item& item) {
  if (const auto* count = std::get_if<std::int64_t*>(&item.place)) return **count;
  if (const auto* flag = std::get_if<bool*>(&item.place)) return **flag ? 1 : 0;
  return *std::get<double*>(item.place);
}

void write(const Items& items, Checkpoint& checkpoint) {
  for (const Item& item : items) {
    const Number number = value_of(item);
    if (item.may_lack && std::isnan(std::get<double>(number))) continue;
    checkpoint.numbers[std::string(item.name)] = number;
  }
}

void read(const Checkpoint& checkpoint, const Items& items) {
  for (const Item& item : items) {
    const std::string name(item.name);
    if (item.may_lack && !checkpoint.numbers.contains(name)) continue;
    if (const auto* count = std::get_if<std::int64_t*>(&item.place)) **count = checkpoint.whole(name);
    if (const auto* value = std::get_if<double*>(&item.place)) **value = checkpoint.number(name);
    if (const auto* flag = std::get_if<bool*>(&item.place)) **flag = checkpoint.number(name) != 0;
  }
}

// Groups that the checkpoint does not have stay as they are.
void read_groups(const Checkpoint& checkpoint, TrainerState& state) {
  const auto stored = parse_json(checkpoint.text_or(groups_name, "{}"));
  for (auto& [name, group] : state.noise_groups) {
    const auto own = stored.find(name);
    if (own == stored.end()) continue;
    const bool good = own->is_array() && own->size() == group.size() &&
                      std::ranges::all_of(*own, [](const Json& value) { return value.is_number(); });
    if (!good) throw Error(cat("the checkpoint's noise_groups have no list of ", group.size(), " numbers for ", name));
    own->get_to(group);
  }
}

// Returns how pictures become the model's input, as JSON: the size in pixels, and the mean and deviation of each
// channel, whose values are 0 to 1.
std::string image_input_of(const RunPlan& plan) {
  const auto& input = std::get<ImageInput>(plan.graph.nodes().front().operation);
  const DataConfig& data = plan.experiment.data;
  return Json({{"size", input.height}, {"resize", data.resize}, {"mean", input.mean}, {"std", input.std}}).dump();
}

// Writes what follows from the plan.
void write_plan(const RunPlan& plan, Checkpoint& c) {
  c.texts.merge(symbols_of(plan));
  c.texts["experiment"] = to_yaml(plan.experiment);
  c.texts["model"] = model_fingerprint(plan);
  c.texts["train_uuid"] = plan.train.dataset_uuid;
  c.texts["commit"] = build_commit();
  if (plan.graph.has_images()) c.texts["image_input"] = image_input_of(plan);
  c.numbers[epoch_size] = plan.schedule.samples_per_epoch();
  c.numbers["context_length"] = plan.train.text.context_length;  // 0: running text
  c.numbers["pad_id"] = plan.train.text.pad_id;
  c.numbers["stop_id"] = plan.train.text.stop_id;
  c.numbers["lowercase"] = plan.train.text.lowercase ? 1 : 0;
}

}  // namespace

Checkpoint make_checkpoint(const RunPlan& plan, RunState state) {
  Checkpoint c;
  c.step = state.progress.position.step;
  write_plan(plan, c);
  write(items_of(state.progress), c);
  write(items_of(state.trainer, plan.experiment), c);
  // The groups are one text, because twelve numbers for each of hundreds of tensors are too many for attributes.
  if (!state.trainer.noise_groups.empty()) c.texts[groups_name] = Json(state.trainer.noise_groups).dump();
  write(items_of(state.facts), c);
  c.texts["machine"] = state.facts.machine;
  c.texts["fusions"] = state.facts.fusions;
  if (!state.kept_steps.empty()) c.texts[kept_text] = joined(state.kept_steps, " ");
  if (is_branch(plan.experiment)) {
    BranchPoint branch = plan.branch;
    write(items_of(branch), c);
    c.texts[source_name] = source_text(branch);
  }
  return c;
}

RunProgress progress_of(const Checkpoint& checkpoint) {
  RunProgress progress;
  progress.position.step = checkpoint.step;
  read(checkpoint, items_of(progress));
  progress.scale_invariant_steps = checkpoint.number_or(std::string(AdaScale::state_names[0]), 0);
  return progress;
}

double epochs_at(const Checkpoint& checkpoint, const Position& position) {
  return static_cast<double>(position.epoch) + static_cast<double>(position.offset) / checkpoint.number(epoch_size);
}

RunFacts facts_of(const Checkpoint& checkpoint) {
  RunFacts facts{.machine = checkpoint.text("machine"), .fusions = checkpoint.text("fusions")};
  read(checkpoint, items_of(facts));
  return facts;
}

std::vector<std::int64_t> kept_steps(const Checkpoint& checkpoint) {
  std::vector<std::int64_t> steps;
  std::istringstream text(checkpoint.text_or(kept_text, ""));
  for (std::int64_t step = 0; text >> step;) steps.push_back(step);
  return steps;
}

std::optional<BranchPoint> stored_branch_point(const Checkpoint& checkpoint) {
  const std::string source = checkpoint.text_or(source_name, "");
  if (source.empty()) return std::nullopt;
  BranchPoint point;
  read(checkpoint, items_of(point));
  std::from_chars(source.data(), source.data() + source.size(), point.source, 16);
  return point;
}

void read_state(const Checkpoint& checkpoint, const RunPlan& plan, TrainerState& state) {
  read(checkpoint, items_of(state, plan.experiment));
  read_groups(checkpoint, state);
  // Other precisions have a loss scale of 1. That says nothing about the loss scale that fp16 needs.
  if (experiment_of(checkpoint, "the checkpoint").precision != "fp16") state.loss_scale = 0;
  if (plan.experiment.batch.follow_noise == 0) {
    state.batch = 0;
    state.batch_small_since = NoiseFollower::not_small;
  }
  if (state.batch > 0 && std::ranges::count(plan.batches, state.batch) == 0)
    throw Error(cat("the checkpoint's batch has grown to ", state.batch, ", but batch.largest is ",
                    plan.experiment.batch.largest),
                "the batch never shrinks: give a batch.largest of that or more");
}

void broadcast_state(TrainerState& state, const Experiment& experiment, Communicator& communicator) {
  Items items = items_of(state, experiment);
  for (auto& [name, group] : state.noise_groups)
    for (double& value : group) items.push_back({name, &value});
  std::vector<std::int64_t> bits(items.size(), 0);
  for (std::size_t i = 0; i < items.size(); ++i)
    std::visit([&](const auto* place) { std::memcpy(&bits[i], place, sizeof *place); }, items[i].place);
  communicator.broadcast(std::as_writable_bytes(std::span(bits)), 0);
  for (std::size_t i = 0; i < items.size(); ++i)
    std::visit([&](auto* place) { std::memcpy(place, &bits[i], sizeof *place); }, items[i].place);
}

std::map<std::string, std::string> symbols_of(const RunPlan& plan) {
  Json symbols = Json::array();
  for (const std::string& symbol : plan.train.text.vocabulary) {
    if (symbol.size() == 1 && find_invalid_utf8(symbol) != std::string_view::npos)
      symbols.push_back(static_cast<unsigned>(static_cast<unsigned char>(symbol[0])));
    else
      symbols.push_back(symbol);
  }
  std::vector<std::string> ids = plan.train.image.class_ids;
  for (std::string& id : ids) id = escape_invalid_utf8(id);  // different ids stay different
  return {{"vocabulary", json_text(symbols)}, {"class_ids", json_text(ids)}};
}

std::vector<std::string> vocabulary_of(const Checkpoint& checkpoint) {
  std::vector<std::string> symbols;
  const auto list = parse_json(checkpoint.text("vocabulary"));
  bool good = list.is_array();
  if (good)
    for (const Json& symbol : list) {
      const auto byte = integer_in<unsigned char>(symbol);
      good = good && (symbol.is_string() || byte);
      if (good) symbols.push_back(byte ? std::string(1, static_cast<char>(*byte)) : symbol.get<std::string>());
    }
  if (!good) throw Error("the checkpoint's vocabulary is not a list of symbols", "another program has written it");
  return symbols;
}

}  // namespace ringtrain
