// Defines the commands of ringtrain-data about images.
#pragma once

#include "data_prep/common/command.h"

namespace ringtrain {

DataCommand declare_images(Program& program);
DataCommand declare_import(Program& program);

}  // namespace ringtrain
