// All weights are one flat fp32 vector. The parameter table says where each tensor lies in the vector.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// A statistic is a running average (batch norm's mean and variance). Training updates it, but not with a gradient.
enum class ParameterKind { weight, bias, norm, statistic };
const char* parameter_kind_name(ParameterKind kind);

// uniform: between -scale and scale. normal: N(0, scale^2). truncated_normal: a normal distribution cut off at 2
// deviations, whose deviation is still `scale`. constant: `scale` itself.
enum class InitialValues { uniform, normal, truncated_normal, constant };

// The elements [begin, end) of a tensor, which all start at `value`.
struct InitialPart {
  std::int64_t begin = 0, end = 0;
  double value = 0;
};

inline constexpr std::int64_t tensor_alignment = 64;  // tensors begin at multiples of this number of elements

struct Parameter {
  std::string name;                 // the name in torch's state_dict: "lstm.weight_ih_l0"
  std::vector<std::int64_t> shape;  // canonical (PyTorch's) layout, row-major
  ParameterKind kind = ParameterKind::weight;
  InitialValues initial = InitialValues::constant;
  double scale = 0;
  std::int64_t offset = 0;  // elements from the start of the flat vector, a multiple of tensor_alignment
  std::int64_t count = 0;   // elements, without padding
  bool is_outer = false;    // it belongs to the first or the last layer of the model
  InitialPart part = {};    // the part that starts with another value
};

// Tensors are in the order in which the backward pass finishes them. Each begins at a multiple of tensor_alignment,
// with zeros as padding. One integer (the watermark) therefore says that all elements before it are ready. Statistics
// come last. In the gradient vector, their places hold this step's sums, which are summed over the ranks with the last
// bucket.
class ParameterTable {
 public:
  void append(Parameter parameter);  // sets offset and count
  const std::vector<Parameter>& all() const { return all_; }
  const Parameter& find(const std::string& name) const;  // throws Error if there is none
  std::int64_t count() const { return count_; }          // trained values
  std::int64_t trained() const { return trained_; }      // elements of the trained tensors; statistics come after them
  std::int64_t size() const { return size_; }            // elements of the flat vector, padding included

 private:
  std::vector<Parameter> all_;
  std::int64_t count_ = 0, trained_ = 0, size_ = 0;
};

// Computes the initial values as a pure function of (seed, parameter name, index), so that every rank and every layout
// has the same weights.
void initialize(const ParameterTable& table, std::uint64_t seed, std::span<float> flat);

// The names of a model's tensors outside of the program: of arrays in checkpoints, and in messages about the copies of
// the ranks.

inline constexpr std::string_view weights_prefix = "weights/", states_prefix = "optimizer/";

std::string weight_array(const Parameter& tensor);  // "weights/conv1.weight"
// Returns "optimizer/exp_avg/conv1.weight". `state` is one of Optimizer::state_names().
std::string state_array(std::string_view state, const Parameter& tensor);
bool is_weight_array(std::string_view name);
// Returns whether the array is one of the optimizer's for this tensor.
bool is_state_array(std::string_view name, const Parameter& tensor);

}  // namespace ringtrain
