#include "backend/cuda/image/layer.h"

#include "base/error.h"

namespace ringtrain::cuda {

void ImageContext::kernel(std::string name, std::vector<Access> uses,
                          std::function<KernelLaunch(bool accumulate)> launch,
                          std::vector<std::string> finishes) const {
  program->schedule().add({.name = std::move(name),
                           .uses = std::move(uses),
                           .issue = [make = std::move(launch)](Device& d, Stream stream,
                                                               bool accumulate) { d.launch(make(accumulate), stream); },
                           .finishes = std::move(finishes)});
}

void ImageContext::operation(std::string name, const DnnOperation& operation, std::int64_t launches,
                             std::vector<Operand> operands) const {
  std::string why;
  const DnnPlan* plan = device->plan(operation, &why);
  if (plan == nullptr)
    throw Error(cat(name, ": cuDNN has no plan for ", operation.key(), " on ", device->facts().name, ": ", why),
                "try another precision or cuDNN version");
  Schedule& schedule = program->schedule();
  schedule.workspace(plan->workspace_bytes());
  std::vector<Access> uses = {{schedule.workspace(), true}};
  for (const Operand& operand : operands) uses.push_back({operand.tensor.storage, operand.write});

  // In the order of the operation's tensors.
  std::vector<Operand> ordered;
  double bytes = 0;
  for (const DnnTensor& tensor : operation.tensors()) {
    bytes += static_cast<double>(tensor.elements() * bytes_of(tensor.type) * launches);
    if (tensor.role == DnnRole::alpha) {
      ordered.push_back({DnnRole::alpha, {}});
      continue;
    }
    const auto found = std::find_if(operands.begin(), operands.end(),
                                    [&](const Operand& operand) { return operand.role == tensor.role; });
    if (found == operands.end()) throw Error(cat(name, ": ", operation.key(), " wants a tensor that is not given"));
    ordered.push_back(*found);
  }
  const auto issue = [this, plan, launches, ordered](Device& d, Stream stream, bool) {
    static float one = 1;
    std::vector<void*> addresses(ordered.size());
    for (std::int64_t launch = 0; launch < launches; ++launch) {
      for (std::size_t i = 0; i < ordered.size(); ++i)
        addresses[i] = ordered[i].role == DnnRole::alpha ? static_cast<void*>(&one)
                                                         : at<char>(ordered[i].tensor) + launch * ordered[i].step_bytes;
      d.run(*plan, addresses, at(program->schedule().workspace()), stream);
    }
  };
  schedule.add({.name = std::move(name),
                .uses = std::move(uses),
                .issue = issue,
                .flops = operation.flops() * static_cast<double>(launches),
                .bytes = bytes});
}

void ImageContext::send_gradient(Value& value, Storage part) const {
  if (value.gradient < 0) {
    value.gradient = part;
    return;
  }
  const Storage before = value.gradient, sum = buffer(value.name + " gradient, added up", bytes(value));
  const std::int64_t count = samples * value.elements();
  kernel(value.name + " gradient, added up", {{before}, {part}, {sum, true}}, [=, this](bool) {
    return launch_of(type, AddArguments{.a = at(before), .b = at(part), .y = at(sum), .count = count});
  });
  value.gradient = sum;
}

}  // namespace ringtrain::cuda
