// Checks whether tensors from outside fit a model, and reads them from a safetensors file or a checkpoint.
#pragma once

#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "run/plan.h"

namespace ringtrain {

// The last layer: it is read, or begins anew from the experiment's seed, for fine-tuning on other classes.
enum class Head { read, anew };

// Reads F32, F16, BF16 or F64 tensors with PyTorch's names into the flat vector [plan.parameters.size()]. The prefixes
// "module." (DDP) and "_orig_mod." (torch.compile) are removed, and so is a word that all names begin with.
// num_batches_tracked and n_averaged (of AveragedModel) are ignored. Throws Error that names every tensor that is
// missing, unknown or of another shape, or the first tensor with a value that is not finite. Throws Error also if the
// file has other symbols or classes than the data set, or a negative running_var. With Head::anew, symbols and classes
// may differ; throws Error for a model of text, because its first layer depends on the symbols too.
void load_safetensors(const std::string& path, const RunPlan& plan, std::span<float> flat, Head head = Head::read);

// Copies the mean and deviation of the pictures that the weights were trained on to the experiment, unless it states
// them. Files of `ringtrain export` and checkpoints contain them.
void use_image_input_of(const SafetensorsFile& file, DataConfig& data);
void use_image_input_of(const Checkpoint& checkpoint, DataConfig& data);

// Warns if the plan's pictures have another size, mean or deviation than those that the file says it was trained on.
void warn_of_other_pictures(const SafetensorsFile& file, const RunPlan& plan);

// Loads the weights of a checkpoint. The checkpoint may have been trained with another data set or optimizer. Throws
// the same errors as load_safetensors() if the tensors do not fit.
void load_checkpoint_weights(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan,
                             std::span<float> flat);

}  // namespace ringtrain
