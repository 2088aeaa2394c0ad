// Defines the commands of ringtrain-data about images.
#pragma once

#include "data_prep/common/command.h"

namespace ringtrain {

DataCommand declare_images(CommandLine& program);
DataCommand declare_import(CommandLine& program);
DataCommand declare_idx(CommandLine& program);

}  // namespace ringtrain
