// The two ends of a part of a model, which exchange values with the ranks that have the other parts. Values travel
// between ranks in a canonical layout. It depends neither on the vector length of the CPUs nor on the row blocks of
// their threads.
#pragma once

#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

enum class PartValue { activation, gradient };

// The value at an end of a part, as it lies in memory.
class PartLayout {
 public:
  virtual ~PartLayout() = default;
  virtual bool whole() const = 0;                        // see Step
  virtual std::int64_t bytes(PartValue kind) const = 0;  // of the exchange for a micro-batch
  virtual int make_storage(std::string what, PartValue kind) const = 0;
  // Copies a slice from the canonical layout to a storage.
  virtual void fill(PartValue kind, const Slice& slice, const std::byte* from, int storage) const = 0;
  // Copies the sum of storages to the canonical layout.
  virtual void give(PartValue kind, const Slice& slice, const std::vector<int>& storages, std::byte* to) const = 0;
};

// The value travels as [images, channels, height, width] of type T. Gradients of vectors are fp32.
template <class T>
std::unique_ptr<PartLayout> make_image_layout(const ImageContext& context, const Feature* feature);
// The value travels as [rows, time, features] of type T. Gradients are fp32.
template <class T>
std::unique_ptr<PartLayout> make_sequence_layout(const SequenceContext& context, const Feature* feature);

// Receives the activations. Sends the sum of the gradients that all consumers of the activations computed.
class PartInputOperation : public CpuOperation {
 public:
  // Sets the bytes of its exchanges in `bytes`.
  PartInputOperation(const OperationContext& context, std::unique_ptr<PartLayout> layout, Feature* y, PartBytes& bytes);
  void forward_steps() override;
  void backward_steps() override;

 private:
  OperationContext context_;
  std::unique_ptr<PartLayout> layout_;
  Feature* y_;
};

// Sends the activations. Receives their gradient.
class PartOutputOperation : public CpuOperation {
 public:
  PartOutputOperation(const OperationContext& context, std::unique_ptr<PartLayout> layout, Feature* x,
                      PartBytes& bytes);
  void forward_steps() override;
  void backward_steps() override;

 private:
  OperationContext context_;
  std::unique_ptr<PartLayout> layout_;
  Feature* x_;
};

}  // namespace ringtrain::cpu
