// Defines the commands of ringtrain-data about text, and the command that checks any data set.
#pragma once

#include "data_prep/common/command.h"

namespace ringtrain {

DataCommand declare_names(CommandLine& program);
DataCommand declare_text(CommandLine& program);
DataCommand declare_verify(CommandLine& program);

}  // namespace ringtrain
