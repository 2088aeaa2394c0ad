// The shortest valid experiment, whose lines are 1 to 7. Invalid experiments and those with every key changed are made
// from it.
#pragma once

#include <string>

namespace ringtrain {

inline const std::string good =
    "name: study\n"
    "data:\n"
    "  train: some/train\n"
    "batch:\n"
    "  global: 64\n"
    "  worker: 16\n"
    "stop: {epochs: 10}\n";

}  // namespace ringtrain
