// A layer of an image program, and what it goes through: its constructor says who reads and who makes which value
// (value.h), choose() what is joined (choices.h), forward() and backward() add its commands (emission.h).
#pragma once

#include "backend/cuda/device/device.h"
#include "backend/cuda/image/choices.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

class Emission;
class FusionTable;

// What a program is compiled for.
struct ImageContext {
  Device* device = nullptr;
  const ParameterTable* parameters = nullptr;
  Type type = Type::fp32;
  Math math = Math::fp32;
  bool training = true;
  bool measures = true;                 // batch norm normalises by statistics of the pass, not by running ones
  std::int64_t samples = 0, group = 0;  // batch norm normalises `group` neighbouring samples together

  std::int64_t groups() const { return samples / group; }
  std::int64_t bytes(const Value& v) const { return samples * v.elements() * bytes_of(v.type); }
};

class ImageLayer {
 public:
  explicit ImageLayer(const ImageContext& context) : c_(context) {}
  virtual ~ImageLayer() = default;
  virtual void choose(FusionTable&, Choices&) const {}
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
