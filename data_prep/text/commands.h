// Defines the commands of ringtrain-data about text, and the command that checks any data set.
#pragma once

#include "data_prep/common/command.h"

namespace ringtrain {

DataCommand declare_names(Program& program);
DataCommand declare_text(Program& program);
DataCommand declare_verify(Program& program);

}  // namespace ringtrain
