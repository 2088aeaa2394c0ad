#include "checkpoint/weights_file.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/table.h"
#include "base/utf8.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot.h"
#include "config/schema.h"
#include "nn/parameters.h"

namespace ringtrain {
namespace {

using Shapes = std::map<std::string, std::vector<std::int64_t>>;  // name -> shape

std::string list(const char* title, const std::vector<std::string>& names) {
  return names.empty() ? "" : cat("\n    ", title, " (", names.size(), "): ", first_names(names, 20));
}

const Dense& classifier(const Graph& graph) {
  const auto& nodes = graph.nodes();
  const auto last = std::find_if(nodes.rbegin(), nodes.rend(),
                                 [](const Node& node) { return std::holds_alternative<Dense>(node.operation); });
  if (last == nodes.rend()) throw Error("the model has no dense layer to tell classes apart");
  return std::get<Dense>(last->operation);
}

bool differs_first_only(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  return !a.empty() && !b.empty() && a[0] != b[0] && std::equal(a.begin() + 1, a.end(), b.begin() + 1, b.end());
}

void require_same_tensors(const std::string& path, const Shapes& found, const RunPlan& plan) {
  std::vector<std::string> missing, unknown, other_shape;
  Shapes wanted;
  for (const Parameter& p : plan.parameters.all()) wanted[p.name] = p.shape;
  const Dense& last = classifier(plan.graph);
  bool only_classes = true;  // only the number of classes differs
  std::int64_t classes = 0;
  for (const auto& [name, shape] : wanted) {
    const auto has = found.find(name);
    if (has == found.end()) {
      missing.push_back(name);
    } else if (has->second != shape) {
      other_shape.push_back(cat(name, " ", shape_text(has->second), " where the model has ", shape_text(shape)));
      only_classes =
          only_classes && (name == last.weight || name == last.bias) && differs_first_only(has->second, shape);
      if (only_classes) classes = has->second[0];
    }
  }
  for (const auto& [name, shape] : found)
    if (wanted.count(name) == 0) unknown.push_back(name);
  if (missing.empty() && unknown.empty() && other_shape.empty()) return;
  std::string hint = "give the experiment that these weights were trained by (model.* and the size of its input)";
  if (missing.empty() && unknown.empty() && only_classes)
    hint = cat("these weights are for ", classes, " classes and ", plan.train.prefix, " has ", last.output,
               ": give a data set with the same classes in the same order",
               plan.graph.has_images() ? cat(", or import with --classes ", last.output, " for fine-tuning") : "");
  const bool lacks_last_layer =
      !missing.empty() && unknown.empty() && other_shape.empty() && plan.graph.has_images() &&
      std::ranges::all_of(missing, [&](const std::string& name) { return name == last.weight || name == last.bias; });
  if (lacks_last_layer)
    hint = cat("the file lacks only the last layer: import with --classes ", last.output,
               ", and this layer begins anew, for fine-tuning");
  throw Error(cat(path, ": not the weights of the experiment's model, ", plan.experiment.model.kind,
                  list("missing", missing), list("not in the model", unknown), list("of another shape", other_shape)),
              hint);
}

// Weights with the same shapes but other symbols would load without an error and predict nonsense.
void require_same_symbols(const std::string& path, const std::map<std::string, std::string>& found,
                          const RunPlan& plan) {
  for (const auto& [key, symbols] : symbols_of(plan)) {
    const auto has = found.find(key);
    if (has == found.end() || has->second == symbols) continue;
    throw Error(
        cat(path, ": was trained with other ", key == "vocabulary" ? "symbols" : "classes",
            ", or in another order, than ", plan.train.prefix, " has"),
        cat("give a data set that was converted with the same ones in the same order",
            key == "class_ids" ? cat(", or import with --classes ", plan.graph.classes(), " for fine-tuning") : ""));
  }
}

std::string plain_name(std::string name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix : {"module.", "_orig_mod."}) {
      if (!name.starts_with(prefix)) continue;
      name.erase(0, prefix.size());
      again = true;
    }
  }
  return name;
}

void require_sound(const std::string& path, const std::string& name, std::span<const float> values) {
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    throw Error(cat(path, ": tensor '", name, "' has values that are not finite"), "its training had diverged");
  if (name.ends_with("running_var") && std::any_of(values.begin(), values.end(), [](float value) { return value < 0; }))
    throw Error(cat(path, ": tensor '", name, "' has negative values, which no variance has"), "export it again");
}

using Entries = std::map<std::string, const SafetensorsEntry*>;  // plain name -> entry

Entries entries_of(const SafetensorsFile& file) {
  Entries entries;
  for (const SafetensorsEntry& entry : file.entries()) {
    const std::string name = plain_name(entry.name);
    // PyTorch's AveragedModel stores its number of updates as a tensor.
    if (name.ends_with(".num_batches_tracked") || name == "n_averaged") continue;
    if (!entries.emplace(name, &entry).second)
      throw Error(cat(file.path(), ": tensor '", name, "' is there twice, with and without a prefix"),
                  "remove one of them");
  }
  return entries;
}

// Wrappers such as Lightning put a word before all names of the model: "model.conv1.weight" where the model has
// "conv1.weight". Their files may have other tensors beside them, such as those of a loss. Returns how many of the
// model's names the file has after each such word. The word "" stands for the plain names.
std::map<std::string, std::size_t> names_after_prefixes(const Entries& entries, const RunPlan& plan) {
  std::map<std::string, std::size_t> found;
  for (const Parameter& p : plan.parameters.all())
    for (const auto& [name, entry] : entries) {
      if (name == p.name) ++found[""];
      if (name.ends_with("." + p.name)) ++found[name.substr(0, name.size() - p.name.size())];
    }
  return found;
}

// Returns the word after which the file has all of the model's names, or most of them if all its names begin with that
// word. "": there is no such word. Throws Error if the file has all of the model's names twice.
std::string prefix_of(const SafetensorsFile& file, const Entries& entries, const RunPlan& plan) {
  const auto found = names_after_prefixes(entries, plan);
  std::vector<std::string> whole;
  for (const auto& [prefix, count] : found)
    if (count == plan.parameters.all().size()) whole.push_back(cat("'", prefix, "'"));
  if (whole.size() > 1)
    throw Error(cat(file.path(), ": has the model's tensors ", whole.size(), " times: their names begin with ",
                    first_names(whole)),
                "keep one of them in the file");
  const auto most = std::ranges::max_element(found, {}, [](const auto& f) { return f.second; });
  if (most == found.end() || most->first.empty()) return "";
  const auto& [prefix, count] = *most;
  if (whole.size() == 1 || std::ranges::all_of(entries, [&](const auto& e) { return e.first.starts_with(prefix); }))
    return prefix;
  log_info(file.path(), ": has ", count, " of the model's ", plan.parameters.all().size(), " tensors with '", prefix,
           "' before their names");
  return "";
}

// Leaves out a word that the names of the model begin with, and all tensors without that word, and says so.
Entries entries_of(const SafetensorsFile& file, const RunPlan& plan) {
  const Entries entries = entries_of(file);
  const std::string prefix = prefix_of(file, entries, plan);
  if (prefix.empty()) return entries;
  Entries plain;
  std::vector<std::string> others;
  for (const auto& [name, entry] : entries) {
    if (!name.starts_with(prefix))
      others.push_back(name);
    else if (!plain.emplace(plain_name(name.substr(prefix.size())), entry).second)
      throw Error(cat(file.path(), ": two tensors have the same name without the prefix '", prefix, "'"),
                  "remove one of them");
  }
  if (others.empty())
    log_info(file.path(), ": all names of tensors begin with '", prefix, "', which is left out");
  else
    log_info(file.path(), ": the names of the model's tensors begin with '", prefix, "', which is left out, as are ",
             others.size(), " tensor(s) without it: ", first_names(others));
  return plain;
}

void use_mean_and_deviation(const std::string& path, const Json& mean, const Json& std, DataConfig& data) {
  if (!data.mean.empty() || !data.std.empty()) return;
  const auto has_channels = [&data](const Json& list) {
    return list.is_array() && std::ssize(list) == data.channels &&
           std::ranges::all_of(list, [](const Json& value) { return value.is_number(); });
  };
  if (!has_channels(mean) || !has_channels(std))
    throw Error(cat(path, ": its mean and std are no lists of ", data.channels, " number(s), as data.channels says"),
                "state data.mean and data.std");
  for (const auto& [key, list] : {std::pair{"data.mean", &mean}, std::pair{"data.std", &std}})
    for (const Json& value : *list)
      if (!find_field(key)->range_.holds(value.get<double>()))
        throw Error(cat(path, ": its ", leaf_of(key), " is ", cut_to(list->dump(), 200), ", expected ",
                        key == std::string_view("data.mean") ? "numbers from 0 to 1" : "numbers above 0, at most 1",
                        ": they are for pixels from 0 to 1"),
                    "state data.mean and data.std, or correct them in the file (divide those for pixels up to 255)");
  data.mean = mean.get<std::vector<double>>();
  data.std = std.get<std::vector<double>>();
}

}  // namespace

void load_safetensors(const std::string& path, const RunPlan& plan, std::span<float> flat, Head head) {
  if (head == Head::anew && !plan.graph.has_images())
    throw Error("--classes is for pictures, and the experiment's model reads text",
                "leave --classes out: weights of text fit data with the same symbols only");
  const SafetensorsFile file(path);
  const Entries entries = entries_of(file, plan);
  const Dense& last = classifier(plan.graph);
  const auto is_read = [&](const Parameter& p) {
    return head == Head::read || (p.name != last.weight && p.name != last.bias);
  };
  Shapes shapes;
  for (const auto& [name, entry] : entries) shapes[name] = entry->shape;
  for (const Parameter& p : plan.parameters.all())
    if (!is_read(p)) shapes[p.name] = p.shape;  // the file's shapes of the head do not matter
  require_same_tensors(path, shapes, plan);
  if (head == Head::read)
    require_same_symbols(path, file.metadata(), plan);
  else
    initialize(plan.parameters, plan.experiment.seed, flat);
  for (const Parameter& p : plan.parameters.all()) {
    if (!is_read(p)) continue;
    const std::span<float> place = flat.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    file.read(*entries.at(p.name), place);
    require_sound(path, p.name, place);
  }
}

void use_image_input_of(const SafetensorsFile& file, DataConfig& data) {
  const auto mean = file.metadata().find("mean"), std = file.metadata().find("std");
  if (mean == file.metadata().end() || std == file.metadata().end()) return;
  use_mean_and_deviation(file.path(), parse_json(mean->second), parse_json(std->second), data);
}

void use_image_input_of(const Checkpoint& checkpoint, DataConfig& data) {
  const auto input = parse_json(checkpoint.text_or("image_input", "{}"));
  if (!input.is_object() || input.empty()) return;
  use_mean_and_deviation("the checkpoint", input.value("mean", Json()), input.value("std", Json()), data);
}

void warn_of_other_pictures(const SafetensorsFile& file, const RunPlan& plan) {
  if (!plan.graph.has_images()) return;
  const auto& input = std::get<ImageInput>(plan.graph.nodes().front().operation);
  const std::vector<std::tuple<const char*, const char*, Json>> ours = {{"image_size", "data.image_size", input.height},
                                                                        {"mean", "data.mean", input.mean},
                                                                        {"std", "data.std", input.std}};
  for (const auto& [name, key, value] : ours) {
    const auto stored = file.metadata().find(name);
    if (stored == file.metadata().end() || parse_json(stored->second) == value) continue;
    log_warning(file.path(), ": was trained with ", key, " ", stored->second, ", and this experiment has ",
                value.dump());
  }
}

void load_checkpoint_weights(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan,
                             std::span<float> flat) {
  Shapes shapes;
  for (const NamedArray& array : checkpoint.arrays)
    if (is_weight_array(array.name)) shapes[array.name.substr(weights_prefix.size())] = array.shape;
  require_same_tensors(path, shapes, plan);
  require_same_symbols(path, checkpoint.texts, plan);
  load_weights(checkpoint, plan.parameters, flat);
}

}  // namespace ringtrain
