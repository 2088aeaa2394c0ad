// The two ends of a part of a model, which exchange values with the ranks that have the other parts.
#pragma once

#include "backend/cpu/image_operation.h"
#include "backend/cpu/operation.h"

namespace ringtrain::cpu {

// The two ends of a part of an image model. Values travel between ranks in the canonical layout, which does not depend
// on the vector length of the CPUs.
//
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

// The two ends of a part of an LSTM model. Values travel between ranks as [rows, time, features], which does not depend
// on the row blocks of their threads.

// The beginning of a part. Received activations are copied to the input of the first operation. The gradient of that
// input is sent.
template <class T>
class SequenceInput {
 public:
  SequenceInput(const RowBlocks& blocks, std::int64_t features) : blocks_(blocks), features_(features) {}
  std::int64_t activation_bytes() const;
  std::int64_t gradient_bytes() const;
  void bind(const Arena& arena, const Port& port);
  void arrive(const std::byte* activations) const;  // sets rows of padding to zero
  void leave(std::byte* gradients) const;

 private:
  RowBlocks blocks_;
  std::int64_t features_;
  Port port_;
  T* input_ = nullptr;
  const float* gradient_ = nullptr;
};

// The end of a part: the last operation of its program.
template <class T>
class SequenceOutput : public CpuOperation {
 public:
  SequenceOutput(const OperationContext& context, std::int64_t features)
      : blocks_(context.blocks), training_(context.training), features_(features) {}
  std::int64_t activation_bytes() const;
  std::int64_t gradient_bytes() const;
  Port input_port() const { return {input_buffer_, features_, gradient_buffer_, features_}; }  // valid after plan()

  void plan(ArenaPlan& arena, int forward, int backward) override;
  void bind(const Arena& arena) override;
  void set_weights(const float*) override {}
  void forward(Pass& pass) override;
  void backward(const Pass& pass, float* gradients, bool accumulate, const std::function<void()>& poll) override;
  std::int64_t gradient_end() const override { return 0; }

 private:
  RowBlocks blocks_;
  bool training_;
  std::int64_t features_;
  Buffer input_buffer_, gradient_buffer_;
  const T* input_ = nullptr;
  float* gradient_ = nullptr;
};

}  // namespace ringtrain::cpu
