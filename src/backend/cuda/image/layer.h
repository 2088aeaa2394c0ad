// ImageLayer is one layer of an image program. The layer takes part in three phases. Its constructor records which
// layer makes and which layers read each value. list_sites() names the fusions among which the program can
// choose. forward() and backward() add the layer's commands (emission.h).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/program/fusion.h"
#include "backend/cuda/types.h"
#include "backend/norm_team.h"
#include "nn/graph.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

// The first phase of compiling a model for images records the values between layers. program.cpp makes these records in
// the order of the graph, and the constructors of the layers add which layers make and read each value. Afterwards no
// code changes them.

class NormLayer;
class NormStatistics;
class ImageLayer;

// A value of the graph has [samples][height x width][width] elements, where the last `width` is the member below.
struct Value {
  std::string name;
  FeatureShape shape;
  // Channels in memory, a multiple of 8 (of 4 for pixels without windows). The last ones are padding and zero.
  std::int64_t width = 0;
  Type type = Type::fp32;
  bool needs_gradient = true;  // false for pixels
  bool windows = false;        // pixels: the values are windows (see ImageWindows)

  // These are the layers that make and read the value.
  int readers = 0;
  const ImageLayer* first_reader = nullptr;    // in the backward pass the last layer to send its gradient
  const NormLayer* norm = nullptr;             // the layer that makes the value, if it is a norm with a ReLU
  const NormStatistics* statistics = nullptr;  // the norm that reads the value; null: none

  std::int64_t pixels() const { return shape.height * shape.width; }
  std::int64_t elements() const { return pixels() * width; }  // in one sample
};

// Holds what a later phase records about values, norms or layers. An object without a record has T{}.
template <class Part, class T>
class NotesOf {
 public:
  T& operator[](const Part& part) { return all_[&part]; }
  const T& operator[](const Part& part) const {
    static const T nothing{};
    const auto found = all_.find(&part);
    return found == all_.end() ? nothing : found->second;
  }

 private:
  std::map<const Part*, T> all_;
};

// The second phase of compiling a model for images chooses what is fused. A ConvolutionPlan is chosen for each
// convolution. The plan decides how the neighbouring values and norms are computed.
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

// Holds the type to which the weight gradient of a 16-bit layer is rounded before it goes to the flat vector. cuDNN's
// kernels made for one type of GPU write only 16 bits. Its kernels that write fp32 are the same for all GPUs.
struct WeightWay {
  Type type = Type::fp32;
  Engine engine = Engine::general;
};

struct ConvolutionPlan {
  ConvolutionWay way = {};
  SumsWay sums = SumsWay::separate;
  WeightWay weight = {};  // not used if weight_prologue is set
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

class Emission;

// Holds the device, the sizes and the mode for which a program is compiled.
struct ImageContext {
  Device* device = nullptr;
  const ParameterTable* parameters = nullptr;
  Type type = Type::fp32;
  Math math = Math::fp32;
  bool training = true;
  bool measures = true;  // batch norm normalises by the statistics of the pass, not by running statistics
  std::int64_t samples = 0, group = 0;  // batch norm normalises `group` consecutive samples together
  // Says how many ranks share one group. When it is above 1, each rank computes `samples` = `group` samples of the
  // shared group in a pass.
  std::int64_t span = 1;
  DeviceNormTeam* const* norm_team = nullptr;  // of the current pass

  std::int64_t groups() const { return samples / group; }
  std::int64_t bytes(const Value& v) const { return samples * v.elements() * bytes_of(v.type); }
};

// Holds a site of a layer and the meaning of its ways. A site without ways offers no choice; take(0) is called.
struct LayerSite {
  FusionSite site;
  std::function<void(std::size_t way, Choices&)> take;
};

class ImageLayer {
 public:
  explicit ImageLayer(const ImageContext& context) : c_(context) {}
  virtual ~ImageLayer() = default;
  virtual void list_sites(std::vector<LayerSite>&) const {}
  virtual void forward(Emission&) const = 0;
  virtual void backward(Emission&) const = 0;  // called in the reverse order of the layers

 protected:
  // Records that this layer reads `value`.
  void read(Value& value) const {
    if (value.readers++ == 0) value.first_reader = this;
  }
  const ImageContext& c_;
};

}  // namespace ringtrain::cuda
