// The plans of one device: an operation is planned once, its plans are timed beside each other when tune() is asked
// to, and what was chosen is kept for the next run and for other ranks. Knows nothing of cuDNN: plans come from a
// PlanMaker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/dnn/packed_plans.h"

namespace ringtrain::cuda {

// Builds and loads plans, for one thread.
class PlanMaker {
 public:
  virtual ~PlanMaker() = default;
  // The first `most` that build, cuDNN's best guess first. Empty: none, and `why` says so.
  virtual std::vector<std::unique_ptr<DnnPlan>> build(const DnnOperation& operation, std::size_t most,
                                                      std::string* why) = 0;
  // What packed() gave; null where it is not taken here.
  virtual std::unique_ptr<DnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer) = 0;
  virtual PlanAnswer packed(const DnnPlan& plan) = 0;  // throws Error
  virtual std::uint64_t graph_hash(const DnnOperation& operation) = 0;
};

class PlanStore {
 public:
  using MakeMaker = std::function<std::unique_ptr<PlanMaker>()>;
  // `of_thread` is called in each thread that builds, beside the device's own. `folder`: where plans are kept from run
  // to run; "" for none. RINGTRAIN_PLAN_CANDIDATES, 1 to 16: how many plans of an operation are timed, in place of what
  // tune() is told; 1: none is timed, cuDNN's first guess is taken. Throws Error where it is something else.
  PlanStore(Device& device, std::unique_ptr<PlanMaker> maker, MakeMaker of_thread, std::filesystem::path folder);
  ~PlanStore();

  // Device::plan(), prepare(), tune(), packed_plans() and take_plans(). A plan that was given out stays valid.
  const DnnPlan* find(const DnnOperation& operation, std::string* why);
  void prepare(std::span<const DnnOperation> operations, int most);
  double tune(const DnnOperation& operation, int most);
  PackedPlans packed();
  void take(PackedPlans plans);

 private:
  struct Known {
    std::unique_ptr<DnnPlan> plan;
    std::string why;
    int timed = 0;
    bool settled = false;  // by the run that this one resumes, or by rank 0
  };
  struct Candidates {
    std::vector<PlanAnswer> answers;
    std::string why;
  };
  Known& known(const DnnOperation& operation);
  Known make(const DnnOperation& operation);
  bool load(const DnnOperation& operation, const PlanAnswer& answer, Known& known);
  bool is_settled(const DnnOperation& operation, int most) const;
  std::optional<PlanAnswer> cached(const DnnOperation& operation) const;
  static Candidates candidates(PlanMaker& maker, const DnnOperation& operation, std::size_t most);
  std::optional<PlanAnswer> answer_of(const std::string& key, const Known& known);
  void write(const DnnOperation& operation, const PlanAnswer& answer) const;
  std::filesystem::path file_of(const DnnOperation& operation) const;

  Device& device_;
  std::unique_ptr<PlanMaker> maker_;
  MakeMaker of_thread_;
  std::filesystem::path folder_;
  std::optional<int> setting_;
  std::map<std::string, Known> known_;
  std::map<std::string, Candidates> prepared_;
  std::vector<std::unique_ptr<DnnPlan>> retired_;  // given out, and replaced by a faster one since
  PackedPlans taken_;
  bool said_ = false;  // that a plan of those is refused here
};

// Seconds of each plan of one operation on scratch memory, which is given back; negative: it did not run. Empty where
// the device cannot time, or has no memory left for it. `spent`: what all of it took.
std::vector<double> time_plans(Device& device, std::span<const std::unique_ptr<DnnPlan>> plans, double& spent);

}  // namespace ringtrain::cuda
