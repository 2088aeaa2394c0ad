// Whether tensors from outside are the weights of a model, and reading them from a safetensors file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "run/plan.h"

namespace ringtrain {

// From F32, F16, BF16 or F64 tensors with PyTorch's names ("module." of DDP and "_orig_mod." of torch.compile in front
// are dropped, num_batches_tracked is passed over) into the flat vector [plan.parameters.size()]. Throws Error naming
// every tensor that is missing, unknown or of another shape, or the first with a value that is not finite.
void load_safetensors(const std::string& path, const RunPlan& plan, std::span<float> flat);

// The same for fine-tuning on other classes: the tensors of the last layer are not read. They begin as the experiment's
// seed says. Throws Error for a model of text, whose first layer has the symbols of the data as well.
void load_safetensors_without_head(const std::string& path, const RunPlan& plan, std::span<float> flat);

// Takes the mean and deviation of the pictures that the weights were trained on into the experiment, unless it states
// them: a file that `ringtrain export` has written, or a checkpoint, carries them.
void use_image_input_of(const SafetensorsFile& file, DataConfig& data);
void use_image_input_of(const Checkpoint& checkpoint, DataConfig& data);

// The same from a checkpoint, whatever data set or optimizer it was trained with.
void load_checkpoint_weights(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan,
                             std::span<float> flat);

}  // namespace ringtrain
