// The third phase of compiling a model for images adds the commands of the layers to a schedule and creates the
// storages that the commands use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/image/layer.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/operation.h"
#include "nn/parameters.h"

namespace ringtrain::cuda {

// An image program keeps copies of its parameters in its own layout. TensorGroup holds such copies. GradientsHome
// copies their gradients back to the flat vector.

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

// Holds the storages of a value. A storage of a gradient is written only once; a sum of gradients gets a new storage.
// So two values may share one storage.
struct ValueStorages {
  Storage data = -1;
  Storage gradient = -1;  // sum of the gradients that the readers have sent so far
  Storage sums = -1;      // the norm's two sums, when a data gradient computes them: fp32 [groups][2][width]
  Storage kept = -1;      // the ReLU's mask or max pooling's places, for the backward pass of the layer that makes it
};
// Holds the storages of a norm. Each vector is fp32 [groups][width]; the vectors of a storage follow each other.
struct NormStorages {
  Storage sums = -1;             // [groups][blocks][2][width]
  Storage factors = -1;          // mean, inverse, scale, bias
  Storage factors_as_type = -1;  // scale, bias
  Storage slopes = -1;           // a, b, c
};

class Emission {
 public:
  // Adds the commands of a program to the program's schedule.
  Emission(const ImageContext& context, const Choices& choices, ProgramBase& program, std::int64_t segment_elements);
  // Adds the commands of a few layers on scratch memory, in order to time them. No program is involved, and no gradient
  // reaches the flat vector. With Plans::none the commands need no plans and can only be counted.
  enum class Plans { found, none };
  Emission(const ImageContext& context, const Choices& choices, Schedule& scratch, Plans plans);
  Emission(const Emission&) = delete;
  Emission& operator=(const Emission&) = delete;

  const Choices& choices() const { return choices_; }
  ProgramBase& program() { return *program_; }  // not for scratch memory
  Schedule& schedule() { return schedule_; }
  ValueStorages& operator[](const Value& value) { return values_[value]; }
  NormStorages& operator[](const NormStatistics& norm) { return norms_[norm]; }

  Storage buffer(const std::string& what, std::int64_t bytes) { return schedule_.buffer(what, bytes); }
  // These return addresses. An address is valid while commands are issued.
  template <class T = void>
  T* at(Storage storage) const {
    return schedule_.at<T>(storage);
  }
  template <class T = void>
  T* at(const Tensor& tensor) const {
    return reinterpret_cast<T*>(at<char>(tensor.storage) + tensor.offset);
  }
  float* gradient(const Parameter& parameter);
  const StepState* step_state() const;

  // These return the place of a parameter in the program's own layout.
  Tensor weight(const Parameter& parameter, const TensorLayout& layout) { return weights_.add(parameter, layout); }
  Tensor vector(const Parameter& parameter, std::int64_t width);
  Tensor statistic(const Parameter& parameter, std::int64_t width);
  const TensorGroup& weights() const { return weights_; }
  const TensorGroup& vectors() const { return vectors_; }
  const TensorGroup& statistics() const { return statistics_; }
  GradientsHome& home() { return home_; }

  // Adds a command that launches one kernel.
  void kernel(std::string name, std::vector<Access> uses, std::function<KernelLaunch(bool accumulate)> launch,
              std::vector<std::string> finishes = {}) {
    schedule_.add(kernel_command(std::move(name), std::move(uses), std::move(launch), std::move(finishes)));
  }
  // Adds the exchange of `own` with the ranks that share the batch-norm group. The result holds the `own` of each of
  // these `span` ranks, in their order. The exchange is issued anew in every pass, between captured segments. Returns
  // `own` when no ranks share groups.
  Storage of_group(const std::string& what, Storage own);
  // Adds a command that runs an operation `launches` times. Throws Error when the device has no plan for it.
  void operation(std::string name, const DnnOperation& operation, std::int64_t launches,
                 const std::vector<Operand>& operands);
  // Adds one reader's gradient of a value to those of the readers before it.
  void send_gradient(const Value& value, Storage part);

 private:
  const ImageContext& c_;
  const Choices& choices_;
  ProgramBase* program_ = nullptr;
  Schedule& schedule_;
  Plans plans_ = Plans::found;
  TensorGroup weights_, vectors_, statistics_;
  GradientsHome home_;
  Storage scratch_state_ = -1, scratch_gradients_ = -1;  // the latter in the layout of vectors_
  NotesOf<Value, ValueStorages> values_;
  NotesOf<NormStatistics, NormStorages> norms_;
};

}  // namespace ringtrain::cuda
