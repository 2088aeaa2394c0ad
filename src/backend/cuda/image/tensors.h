// Parameters of an image program in its own layout, and their gradients on the way back to the flat vector.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/program/base.h"
#include "backend/cuda/program/operation.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

// Canonical [outer][inner][taps] to own [padded outer][taps][padded inner], padding zero: weights [k][c][r s] to KRSC.
struct TensorLayout {
  std::int64_t outer = 1, inner = 1, taps = 1, padded_outer = 1, padded_inner = 1;
  static TensorLayout vector(std::int64_t count, std::int64_t padded) { return {1, count, 1, 1, padded}; }
};

// Tensors one behind the other in one storage, which are copied together.
class TensorGroup {
 public:
  TensorGroup(Schedule& schedule, Storage storage, Type type) : schedule_(schedule), storage_(storage), type_(type) {}
  // Where a parameter lies: behind all others when it is asked for the first time.
  Tensor add(const Parameter& parameter, const TensorLayout& layout);

  Storage storage() const { return storage_; }
  Type type() const { return type_; }
  std::int64_t elements() const { return elements_; }
  const std::vector<TensorPlace>& places() const { return places_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  Schedule& schedule_;
  Storage storage_;
  Type type_;
  std::int64_t elements_ = 0;
  std::vector<TensorPlace> places_;
  std::vector<std::string> names_;  // of the parameters
  std::map<std::string, Tensor> known_;
};

// Weight gradients are gathered until they are worth a copy; one launch then takes them to the flat vector.
class GradientsHome {
 public:
  using Send = std::function<void(const TensorGroup&)>;  // adds the command that copies them
  GradientsHome(Schedule& schedule, std::int64_t segment_elements, Send send);
  // Where the next weight gradient is to be written. After the command that writes it has been added: added().
  Tensor add(const Parameter& parameter, const TensorLayout& layout, Type type);
  void added();
  void flush();

 private:
  Schedule& schedule_;
  Send send_;
  std::int64_t enough_;  // elements
  std::unique_ptr<TensorGroup> open_;
};

}  // namespace ringtrain::cuda
