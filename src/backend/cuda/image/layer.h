// A layer of an image program, and what it goes through: its constructor says who reads and who makes which value
// (value.h), list_sites() what could be joined and thus be chosen (choices.h), forward() and backward() add its
// commands (emission.h).
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/device_group_ranks.h"
#include "backend/cuda/image/choices.h"
#include "backend/cuda/program/fusion.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

class Emission;

// What a program is compiled for.
struct ImageContext {
  Device* device = nullptr;
  const ParameterTable* parameters = nullptr;
  Type type = Type::fp32;
  Math math = Math::fp32;
  bool training = true;
  bool measures = true;                 // batch norm normalises by statistics of the pass, not by running ones
  std::int64_t samples = 0, group = 0;  // batch norm normalises `group` neighbouring samples together
  // A group lies on so many ranks, each of which has `samples` = `group` of it in a pass.
  std::int64_t span = 1;
  DeviceGroupRanks* const* group_ranks = nullptr;  // of the pass under way

  std::int64_t groups() const { return samples / group; }
  std::int64_t bytes(const Value& v) const { return samples * v.elements() * bytes_of(v.type); }
};

// A site of a layer, and what its ways mean. Without ways there is no choice: the first is taken.
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
  virtual void backward(Emission&) const = 0;  // called in reverse order

 protected:
  // `value` is read by this layer.
  void read(Value& value) const {
    if (value.readers++ == 0) value.first_reader = this;
  }
  const ImageContext& c_;
};

}  // namespace ringtrain::cuda
