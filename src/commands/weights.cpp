// Weights to and from other programs: `ringtrain export` writes those of a checkpoint, and `ringtrain import` makes a
// run at step 0 from weights that were trained elsewhere.
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/resume.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/weights_file.h"
#include "commands/commands.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "nn/parameters.h"
#include "run/folder.h"
#include "run/plan.h"

namespace ringtrain {
namespace {

std::map<std::string, std::string> metadata_of(const Checkpoint& checkpoint, const std::string& path) {
  const Experiment experiment = experiment_of(checkpoint, path);
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"model", experiment.model.kind},
                                                 {"step", std::to_string(checkpoint.step)},
                                                 {"run", experiment.name},
                                                 {"commit", checkpoint.text("commit")}};
  // Models with another stride_in or other groups have the same tensors, but compute different results.
  if (experiment.model.stride_in != ModelConfig().stride_in) metadata["stride_in"] = experiment.model.stride_in;
  if (normalization(experiment.model) == "group")
    metadata["norm_groups"] = std::to_string(experiment.model.norm_groups);
  const auto input = parse_json(checkpoint.text_or("image_input", "{}"));
  for (const auto& [key, value] : input.items()) metadata[key == "size" ? "image_size" : key] = value.dump();
  for (const char* key : {"vocabulary", "class_ids"}) {
    const auto symbols = checkpoint.texts.find(key);
    if (symbols != checkpoint.texts.end() && symbols->second != "[]") metadata[key] = symbols->second;
  }
  return metadata;
}

constexpr const char* force_advice = "choose another --out, or overwrite it with --force";

OutputKind export_file() {
  OutputKind kind = safetensors_output("result of ringtrain export", [](const SafetensorsFile& file) {
    return file.metadata().contains("run") && file.metadata().contains("commit");
  });
  kind.advice = force_advice;
  return kind;
}

OutputKind empty_file() {
  return {"empty file", [](const std::string&) { return false; }, force_advice};
}

}  // namespace

int export_weights(const ExportArguments& arguments) {
  expect_output(arguments.out, arguments.force ? any_file() : export_file());
  static const std::map<std::string, std::string> types = {{"fp32", "F32"}, {"fp16", "F16"}, {"bf16", "BF16"}};
  const std::string& type = types.at(arguments.dtype);  // the command line allows no other
  const ExperimentArguments& source = arguments.experiment;
  const auto [path, checkpoint] = find_weights(source.path, source.overrides, arguments.which);
  expect_evaluated_norms(checkpoint, path);
  std::vector<TensorToWrite> tensors;
  for (const NamedArray& array : checkpoint.arrays) {
    const std::string name = array.name.substr(weights_prefix.size());
    tensors.push_back({name, type, array.shape, std::span<const float>(array.values)});
    constexpr std::string_view mean = "running_mean";  // PyTorch has a counter of updates for each running mean
    if (name.ends_with(mean))
      tensors.push_back({name.substr(0, name.size() - mean.size()) + "num_batches_tracked",
                         "I64",
                         {},
                         std::span<const std::int64_t>(&checkpoint.step, 1)});
  }
  const std::size_t count = tensors.size();
  write_safetensors(arguments.out, metadata_of(checkpoint, path), std::move(tensors));
  log_info(arguments.out, ": ", count, " tensors, ", arguments.dtype, ", of step ", with_thousands(checkpoint.step),
           " (", path, ")");
  return 0;
}

int import_weights(const ImportArguments& arguments) {
  const ExperimentArguments& source = arguments.experiment;
  Experiment experiment = read_experiment(source.path, source.overrides);
  const SafetensorsFile weights(arguments.weights);
  use_image_input_of(weights, experiment.data);  // the weights know no other pixels
  if (is_branch(experiment))
    throw Error(cat("branch.from is ", experiment.branch.from,
                    ", but import sets the weights, too: a run begins from one of the two"),
                "leave out branch.*");
  if (!arguments.out.empty()) {
    expect_output(arguments.out, arguments.force ? any_file() : empty_file());
    if (std::filesystem::exists(arguments.out) && !std::filesystem::is_regular_file(arguments.out))
      throw Error(cat(arguments.out, ": is a device or a pipe, but a checkpoint needs a file"), "choose another --out");
  }
  // One rank of a CPU reads the whole model, even if ranks or GPUs with a limit of memory will train it.
  Experiment alone = experiment;
  alone.parallel = {};
  alone.memory = {};
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const RunPlan plan = make_run_plan(alone, read_dataset_index(experiment.data.train), nullptr, 1, *backend);

  if (arguments.classes > 0 && arguments.classes != plan.graph.classes())
    throw Error(
        cat("--classes is ", arguments.classes, ", but ", plan.train.prefix, " has ", plan.graph.classes(), " classes"),
        cat("give --classes ", plan.graph.classes(), ", or another data set in data.train"));

  warn_of_other_pictures(weights, plan);
  Checkpoint checkpoint;
  {
    std::vector<float> flat(static_cast<std::size_t>(plan.parameters.size()), 0.0f);
    load_safetensors(arguments.weights, plan, flat, arguments.classes > 0 ? Head::anew : Head::read);
    checkpoint = fresh_checkpoint(plan, flat);
  }
  const std::string what =
      cat(arguments.weights, ": ", with_thousands(plan.parameters.count()), " parameters",
          arguments.classes > 0 ? cat(", with a new last layer for ", arguments.classes, " classes") : "");
  if (!arguments.out.empty()) {
    write_checkpoint(end_of_links(arguments.out), checkpoint);
    log_info(what, " -> ", arguments.out);
    return 0;
  }
  const RunFolder folder(run_folder_path(experiment, false), false);
  const std::string path = checkpoint_path(folder.path(), 0);
  std::filesystem::create_directory(checkpoint_folder(folder.path()));
  write_checkpoint(path, checkpoint);
  write_file_atomically(cat(folder.path(), "/", run_experiment_name), to_yaml(experiment));
  folder.become_latest();
  log_info(what, " -> ", path);
  log_info("evaluate with: ringtrain evaluate ", folder.path());
  log_info("train with: ringtrain train ", folder.path(), " --resume");
  return 0;
}

}  // namespace ringtrain
