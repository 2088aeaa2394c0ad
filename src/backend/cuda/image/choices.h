// The second phase of compiling a model for images chooses what is fused. A ConvolutionPlan is chosen for each
// convolution. The plan decides how the neighbouring values and norms are computed.
#pragma once

#include <string>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/image/value.h"

namespace ringtrain::cuda {

class ConvolutionLayer;
class NormPool;

// Says how a convolution reads its input and passes its gradient on. Separate kernels do the work that is not fused.
struct ConvolutionWay {
  std::string name = "separate";
  Prologue prologue = Prologue::none;         // of the forward pass: normalises the norm's input
  Prologue weight_prologue = Prologue::none;  // of the weight gradient: normalises the norm's input
  Epilogue data_epilogue = Epilogue::none;
  Engine data_engine = Engine::general;

  bool brings_sums() const {
    return data_epilogue == Epilogue::relu_sums || data_epilogue == Epilogue::relu_sums_output ||
           data_epilogue == Epilogue::add_relu_sums;
  }
  bool adds() const { return data_epilogue == Epilogue::add || data_epilogue == Epilogue::add_relu_sums; }
  // Returns whether a kernel recomputes the weight gradient's input in the backward pass.
  bool makes_input_again() const {
    return prologue != Prologue::none && weight_prologue == Prologue::none &&
           data_epilogue != Epilogue::relu_sums_output;
  }
};

// Names the kernel that computes the sums of a convolution's result that the norm after it needs.
enum class SumsWay { separate, epilogue, hopper };

struct ConvolutionPlan {
  ConvolutionWay way = {};
  SumsWay sums = SumsWay::separate;
  Type weight_gradient = Type::fp32;  // the type to which dw is rounded; not used if weight_prologue is set
  Engine weight_engine = Engine::general;
};

struct ValueChoice {
  bool stored = true;      // false: the prologue of its reader recomputes the value from the norm's input
  bool sums_come = false;  // the last data gradient applies the ReLU's derivative and computes the norm's two sums
  const NormPool* pooling = nullptr;  // not null: norm and pooling are fused, and the value is not stored
};
struct NormChoice {
  bool sums_come = false;        // the convolution that makes the norm's input computes the sums, one block per group
  bool factors_as_type = false;  // a prologue needs scale and bias in the type of the activations
};

struct Choices {
  NotesOf<ConvolutionLayer, ConvolutionPlan> convolutions;
  NotesOf<Value, ValueChoice> values;
  NotesOf<NormStatistics, NormChoice> norms;
};

}  // namespace ringtrain::cuda
