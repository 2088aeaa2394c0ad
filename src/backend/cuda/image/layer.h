// ImageLayer is one layer of an image program. The layer takes part in three phases. Its constructor records which
// layer makes and which layers read each value (value.h). list_sites() names the fusions among which the program can
// choose (choices.h). forward() and backward() add the layer's commands (emission.h).
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/image/choices.h"
#include "backend/cuda/program/fusion.h"
#include "backend/device_group_ranks.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

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
  DeviceGroupRanks* const* group_ranks = nullptr;  // the ranks of the current pass

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
