// `ringtrain export` writes the weights of a checkpoint for other programs.

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resume.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/source.h"
#include "commands/commands.h"
#include "nn/parameters.h"

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

}  // namespace

int export_weights(const ExportArguments& arguments) {
  static const std::map<std::string, std::string> types = {{"fp32", "F32"}, {"fp16", "F16"}, {"bf16", "BF16"}};
  const auto type = types.find(arguments.dtype);
  if (type == types.end())
    throw Error(cat("--dtype is '", arguments.dtype, "'; expected fp32, fp16 or bf16"), "ringtrain --help");

  const std::string path = checkpoint_of(arguments.experiment.path, arguments.experiment.overrides, arguments.which);
  const Checkpoint checkpoint = read_checkpoint(path, weights_prefix);
  expect_evaluated_norms(checkpoint, path);
  std::vector<TensorToWrite> tensors;
  for (const NamedArray& array : checkpoint.arrays) {
    const std::string name = array.name.substr(weights_prefix.size());
    tensors.push_back({name, type->second, array.shape, std::span<const float>(array.values)});
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

}  // namespace ringtrain
