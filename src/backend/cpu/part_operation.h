// The two ends of a part of an image model. Values travel between ranks in the canonical layout, which does not depend
// on the vector length of the CPUs.
#pragma once

#include "backend/cpu/image_operation.h"

namespace ringtrain::cpu {

// The exchanged values are [images, channels, height, width] of type T. Gradients of vectors are fp32.
template <class T>
class PartOperation : public ImageOperation {
 public:
  PartOperation(const ImageContext& context, Feature* feature) : context_(context), feature_(feature) {}
  std::int64_t activation_bytes() const;
  std::int64_t gradient_bytes() const;

 protected:
  // fill() copies the images of a slice from the canonical layout into a storage with elements of type `Element`.
  // give() copies the sum of storages to the canonical layout.
  template <class Element>
  void fill(const Slice& slice, const std::byte* from, int storage) const;
  template <class Element>
  void give(const Slice& slice, const std::vector<int>& storages, std::byte* to) const;

  ImageContext context_;
  Feature* feature_;
};

// Receives the activations. Sends the sum of the gradients that all consumers of the activations computed.
template <class T>
class PartInputOperation : public PartOperation<T> {
 public:
  PartInputOperation(const ImageContext& context, Feature* y);
  void forward_steps() override;
  void backward_steps() override;
};

// Sends the activations. Receives their gradient.
template <class T>
class PartOutputOperation : public PartOperation<T> {
 public:
  using PartOperation<T>::PartOperation;
  void forward_steps() override;
  void backward_steps() override;
};

}  // namespace ringtrain::cpu
