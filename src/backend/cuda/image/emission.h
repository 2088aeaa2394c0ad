// Third phase: commands, and the storages that they name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/image/choices.h"
#include "backend/cuda/image/layer.h"
#include "backend/cuda/image/tensors.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/operation.h"

namespace ringtrain::cuda {

// Gradients are written once: what readers send is added up in new storages, so that two values may share one.
struct ValueStorages {
  Storage data = -1;
  Storage gradient = -1;  // what the readers so far have sent
  Storage sums = -1;      // the norm's two, where a data gradient brings them: fp32 [groups][2][width]
  Storage kept = -1;      // what its maker needs in the backward pass: the ReLU's mask, max pooling's places
};
// fp32 [groups][width] each one behind the other.
struct NormStorages {
  Storage sums = -1;             // [groups][blocks][2][width]
  Storage factors = -1;          // mean, inverse, scale, bias
  Storage factors_as_type = -1;  // scale, bias
  Storage slopes = -1;           // a, b, c
};

class Emission {
 public:
  // The commands of a program.
  Emission(const ImageContext& context, const Choices& choices, ProgramBase& program, std::int64_t segment_elements);
  // Commands of a few layers on scratch memory, where nothing comes from a program and nothing goes to the flat
  // gradients: to be timed or, without plans, to be counted only.
  enum class Plans { found, none };
  Emission(const ImageContext& context, const Choices& choices, Schedule& scratch, Plans plans);
  Emission(const Emission&) = delete;
  Emission& operator=(const Emission&) = delete;

  const Choices& choices() const { return choices_; }
  ProgramBase& program() { return *program_; }  // not on scratch memory
  Schedule& schedule() { return schedule_; }
  ValueStorages& operator[](const Value& value) { return values_[value]; }
  NormStorages& operator[](const NormStatistics& norm) { return norms_[norm]; }

  Storage buffer(const std::string& what, std::int64_t bytes) { return schedule_.buffer(what, bytes); }
  // Addresses, while commands are issued.
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

  // Where parameters lie in the program's own layout.
  Tensor weight(const Parameter& parameter, const TensorLayout& layout) { return weights_.add(parameter, layout); }
  Tensor vector(const Parameter& parameter, std::int64_t width);
  Tensor statistic(const Parameter& parameter, std::int64_t width);
  const TensorGroup& weights() const { return weights_; }
  const TensorGroup& vectors() const { return vectors_; }
  const TensorGroup& statistics() const { return statistics_; }
  GradientsHome& home() { return home_; }

  // Adds a command that launches one kernel.
  void kernel(std::string name, std::vector<Access> uses, std::function<KernelLaunch(bool accumulate)> launch,
              std::vector<std::string> finishes = {});
  // Adds the exchange of `own` with the ranks of the group: [span] of it, in their order. It is issued anew in every
  // pass, between captured segments. `own` itself where no ranks share groups.
  Storage of_group(const std::string& what, Storage own);
  // Adds a command that runs an operation, `launches` times. Throws Error when the device has no plan for it.
  void operation(std::string name, const DnnOperation& operation, std::int64_t launches,
                 const std::vector<Operand>& operands);
  // The next reader's share of a value's gradient.
  void send_gradient(const Value& value, Storage part);

 private:
  const ImageContext& c_;
  const Choices& choices_;
  ProgramBase* program_ = nullptr;
  Schedule& schedule_;
  Plans plans_ = Plans::found;
  TensorGroup weights_, vectors_, statistics_;
  GradientsHome home_;
  Storage scratch_state_ = -1, scratch_gradients_ = -1;  // of norms' parameters and biases, laid out as these
  NotesOf<Value, ValueStorages> values_;
  NotesOf<NormStatistics, NormStorages> norms_;
};

}  // namespace ringtrain::cuda
