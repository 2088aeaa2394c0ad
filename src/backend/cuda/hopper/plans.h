// The library of convolutions for Hopper as the program sees it: opened at run time where it lies beside the
// executable, and asked for DnnOperations with Engine::hopper.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/hopper/interface.h"

namespace ringtrain::cuda::hopper {

// What the library is to compute; nothing, and `why`, where no kind of its work is that.
std::optional<Problem> problem_of(const DnnOperation& operation, std::string* why);
// `tensors` as Device::run's. An alpha is read now.
Tensors tensors_of(const DnnOperation& operation, std::span<void* const> tensors);
// Whether kernels for compute capability 9.0 are of use: the only one that they run on.
inline bool runs_on(int compute_capability) {
  return compute_capability == 90;
}

class Library {
 public:
  // bin/libringtrain-hopper.so beside the executable, or RINGTRAIN_HOPPER_LIBRARY. Opened once; null, and `why`, where
  // there is none or where it is of another version of the program.
  static const Library* find(std::string* why);
  const std::vector<Description>& instances() const { return instances_; }

  struct Choice {
    int instance = 0;
    std::int64_t workspace_bytes = 0;
  };
  // The instance to take, asked on the host; nothing, and `why`, where none is for the problem. Tiles of 64 columns
  // where those of 128 would be half empty.
  std::optional<Choice> choose(const Problem& problem, std::string* why) const;
  // Throws Error.
  void launch(int instance, const Problem& problem, const Tensors& tensors, void* workspace, void* stream) const;

 private:
  Library() = default;
  static std::unique_ptr<Library> open(const std::string& path, std::string& why);

  std::vector<Description> instances_;
  decltype(&ringtrain_hopper_can_implement) can_implement_ = nullptr;
  decltype(&ringtrain_hopper_launch) launch_ = nullptr;
};

class Plan final : public DnnPlan {
 public:
  Plan(DnnOperation operation, Problem problem, Library::Choice choice, std::string name)
      : operation_(std::move(operation)), problem_(problem), choice_(choice), name_(std::move(name)) {}
  const DnnOperation& operation() const override { return operation_; }
  std::int64_t workspace_bytes() const override { return choice_.workspace_bytes; }
  std::string engine() const override { return name_; }
  const Problem& problem() const { return problem_; }
  int instance() const { return choice_.instance; }

 private:
  DnnOperation operation_;
  Problem problem_;
  Library::Choice choice_;
  std::string name_;
};

// A device's plans, each made once.
class Plans {
 public:
  explicit Plans(int compute_capability) : compute_capability_(compute_capability) {}
  const DnnPlan* find(const DnnOperation& operation, std::string* why);
  // `stream`: a cudaStream_t.
  static void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, void* stream);

 private:
  struct Known {
    std::unique_ptr<Plan> plan;
    std::string why;
  };
  Known make(const DnnOperation& operation) const;
  int compute_capability_;
  std::map<std::string, Known> known_;
};

}  // namespace ringtrain::cuda::hopper
