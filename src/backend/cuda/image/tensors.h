// An image program keeps copies of its parameters in its own layout. TensorGroup holds such copies. GradientsHome
// copies their gradients back to the flat vector.
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

// The canonical layout is [outer][inner][taps]; the program's own layout is [padded outer][taps][padded inner] with
// zeros as padding. Weights go from [k][c][r s] to KRSC.
struct TensorLayout {
  std::int64_t outer = 1, inner = 1, taps = 1, padded_outer = 1, padded_inner = 1;
  bool windows = false;  // as in TensorPlace
  std::int64_t own_elements() const;
  static TensorLayout vector(std::int64_t count, std::int64_t padded) { return {1, count, 1, 1, padded}; }
};

// A TensorGroup has tensors that follow each other in one storage. One launch copies them all.
class TensorGroup {
 public:
  TensorGroup(Schedule& schedule, Storage storage, Type type) : schedule_(schedule), storage_(storage), type_(type) {}
  // Returns the place of a parameter. The first call for a parameter puts it after all others.
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
  std::vector<std::string> names_;  // names of the parameters
  std::map<std::string, Tensor> known_;
};

// Collects weight gradients until a copy is worth a launch. One launch then copies them to the flat vector.
class GradientsHome {
 public:
  using Send = std::function<void(const TensorGroup&)>;  // adds the command that copies a group
  GradientsHome(Schedule& schedule, std::int64_t segment_elements, Send send);
  // Returns the place for the next weight gradient. Call added() after the command that writes the gradient has been
  // added.
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
