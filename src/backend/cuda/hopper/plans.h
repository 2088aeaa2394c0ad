// This folder contains convolutions for Hopper GPUs, built from CUTLASS as a library of its own
// (libringtrain-hopper.so). The program opens the library at run time when it lies next to the executable, and uses it
// for each DnnOperation with Engine::hopper. Begin reading here: Library opens the file, Plans makes plans for
// operations. interface.h is the border between program and library. The kernels are in convolution.cuh and
// weight_gradient.cuh. program/proof.cpp compares a kernel with cuDNN before a layer uses it.
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

// Translates an operation to a problem of the library. Returns no value when the library has no such kind of work;
// `why` is then the reason.
std::optional<Problem> problem_of(const DnnOperation& operation, std::string* why);
// `tensors` are as in Device::run. The value of alpha is read during this call.
Tensors tensors_of(const DnnOperation& operation, std::span<void* const> tensors);
// Returns whether the library's kernels run on this GPU. They run on compute capability 9.0 only.
inline bool runs_on(int compute_capability) {
  return compute_capability == 90;
}

class Library {
 public:
  // Opens the library once: the file libringtrain-hopper.so next to the executable, or the file that
  // RINGTRAIN_HOPPER_LIBRARY names. Returns null when there is no such file, when it cannot be opened, when it belongs
  // to another version of the program, or when that variable is "none"; `why` is then the reason.
  static const Library* find(std::string* why);
  const std::vector<Description>& instances() const { return instances_; }

  struct Choice {
    int instance = 0;
    std::int64_t workspace_bytes = 0;
  };
  // Chooses an instance for the problem; the call needs no GPU. It prefers the instance whose tiles cover the fewest
  // columns, so a tile of 64 columns wins where one of 128 would be half empty. Returns no value when no instance fits;
  // `why` is then the reason.
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

// Holds the plans of one device. Each operation is planned once.
class Plans {
 public:
  explicit Plans(int compute_capability) : compute_capability_(compute_capability) {}
  const DnnPlan* find(const DnnOperation& operation, std::string* why);
  // `stream` is a cudaStream_t. Throws Error.
  static void run(const DnnPlan& plan, std::span<void* const> tensors, void* workspace, void* stream);

 private:
  struct Known {
    std::unique_ptr<DnnPlan> plan;
    std::string why;
  };
  Known make(const DnnOperation& operation) const;
  int compute_capability_;
  std::map<std::string, Known> known_;
};

}  // namespace ringtrain::cuda::hopper
