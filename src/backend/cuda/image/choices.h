// Second phase: what is joined. A plan for each convolution, and what follows from it for the values and norms around.
#pragma once

#include <string>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/image/value.h"

namespace ringtrain::cuda {

class ConvolutionLayer;
class NormPool;

// How a convolution takes its input in and hands its gradient on; what remains is done by kernels of their own.
struct ConvolutionWay {
  std::string name = "separate";
  Prologue prologue = Prologue::none;         // forward: the input is a norm's input, normalised on the way
  Prologue weight_prologue = Prologue::none;  // the same for the weight gradient
  Epilogue data_epilogue = Epilogue::none;
  Engine data_engine = Engine::general;

  bool brings_sums() const {
    return data_epilogue == Epilogue::relu_sums || data_epilogue == Epilogue::relu_sums_output ||
           data_epilogue == Epilogue::add_relu_sums;
  }
  bool adds() const { return data_epilogue == Epilogue::add || data_epilogue == Epilogue::add_relu_sums; }
  // The weight gradient's input is made by a kernel in the backward pass.
  bool makes_input_again() const {
    return prologue != Prologue::none && weight_prologue == Prologue::none &&
           data_epilogue != Epilogue::relu_sums_output;
  }
};

// Where the sums of a convolution's result, which the norm behind it wants, are made.
enum class SumsWay { separate, epilogue, specialised, hopper };

struct ConvolutionPlan {
  ConvolutionWay way = {};
  SumsWay sums = SumsWay::separate;
  Type weight_gradient = Type::fp32;  // what it is rounded to, where no prologue says otherwise
  Engine weight_engine = Engine::general;
};

struct ValueChoice {
  bool stored = true;      // false: its reader makes it from the norm's input, in its prologue
  bool sums_come = false;  // the last data gradient applies the ReLU's derivative and brings the norm's two sums
  const NormPool* pooling = nullptr;  // not stored either: its only reader pools it on the way
};
struct NormChoice {
  bool sums_come = false;        // from the convolution that makes its input: one block per group
  bool factors_as_type = false;  // a prologue wants scale and bias in its own type
};

struct Choices {
  NotesOf<ConvolutionLayer, ConvolutionPlan> convolutions;
  NotesOf<Value, ValueChoice> values;
  NotesOf<NormStatistics, NormChoice> norms;
};

}  // namespace ringtrain::cuda
