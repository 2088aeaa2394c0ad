// This folder is the GPU backend. It implements the interface of backend/backend.h: it compiles the graph of a model
// (nn/graph.h) to a program that runs forward and backward passes on one GPU, and it runs the optimizer's update there.
//
// device/ holds Device, which is one GPU as the program sees it. kernels/ holds the program's own CUDA kernels. dnn/
// describes the operations that cuDNN computes. hopper/ holds convolutions from CUTLASS for Hopper GPUs. program/ holds
// the parts that all programs share: the schedule of commands, memory and the update. image/ and lstm/ compile the two
// families of models. Begin with device/device.h and program/schedule.h, then read image/program.cpp.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

// `device` must outlive the backend.
std::unique_ptr<Backend> make_backend(Device& device, BackendOptions options);

}  // namespace ringtrain::cuda
