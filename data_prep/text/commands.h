// The commands about text, and the one that checks any data set, as typed.
#pragma once

#include "data_prep/common/command.h"

namespace ringtrain {

DataCommand declare_names(Program& program);
DataCommand declare_text(Program& program);
DataCommand declare_verify(Program& program);

}  // namespace ringtrain
