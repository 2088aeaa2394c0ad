// PlanStore keeps the plans of one real GPU. It plans each operation once. tune() times several plans for an operation
// and keeps the fastest. The choices are saved for the next run and for other ranks. The store does not call cuDNN; a
// PlanMaker makes the plans. This file also says how plans are packed into texts, and where a cache keeps them.
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
#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

// The key of an entry is DnnOperation::key().
using PackedPlans = std::map<std::string, PlanAnswer>;
std::string pack(const PackedPlans& plans);
// Reads plans until it meets something that it does not understand. The plans after that place are made anew.
PackedPlans unpack(const std::string& text);

// Returns the folder below `cache` that keeps the plans for this kind of GPU ("NVIDIA H200") and this version of cuDNN
// ("9.19.0"). When `cache` is "", the result is empty.
std::filesystem::path plan_folder(const std::string& cache, const std::string& gpu, const std::string& cudnn_version);
// Returns the file in that folder that keeps the plan of one graph. It holds the text of pack() for one operation.
std::filesystem::path plan_file(const std::filesystem::path& folder, std::uint64_t graph_hash);
// kept_plan() reads the answer about this operation from such a file, if it is there. keep_plan() writes the file;
// false: it cannot be written.
std::optional<PlanAnswer> kept_plan(const std::filesystem::path& file, const DnnOperation& operation);
bool keep_plan(const std::filesystem::path& file, const DnnOperation& operation, const PlanAnswer& answer);
// Returns a sentence for the user when `folder` has no plans but the cache has plans for this kind of GPU with another
// version of cuDNN. Returns "" otherwise. A plan works with the version that made it only.
std::string note_about_other_versions(const std::filesystem::path& folder);

// Builds and loads plans. One thread uses it.
class PlanMaker {
 public:
  virtual ~PlanMaker() = default;
  // Builds up to `most` plans, cuDNN's best guess first. When no plan can be built, the result is empty and `why` is
  // the reason.
  virtual std::vector<std::unique_ptr<DnnPlan>> build(const DnnOperation& operation, std::size_t most,
                                                      std::string* why) = 0;
  // Loads a plan from the answer that packed() gave. Returns null when this device or cuDNN does not accept it.
  virtual std::unique_ptr<DnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer) = 0;
  virtual PlanAnswer packed(const DnnPlan& plan) = 0;  // throws Error
  virtual std::uint64_t graph_hash(const DnnOperation& operation) = 0;
};

class PlanStore {
 public:
  using MakeMaker = std::function<std::unique_ptr<PlanMaker>()>;
  // `of_thread` makes a PlanMaker for each further thread that builds plans. `folder` is the folder that keeps plans
  // from run to run; "" for none. The variable RINGTRAIN_PLAN_CANDIDATES, 1 to 16, replaces the number that the caller
  // of tune() names. With 1 nothing is timed and cuDNN's first guess is taken. Throws Error when the variable has
  // another value.
  PlanStore(Device& device, std::unique_ptr<PlanMaker> maker, MakeMaker of_thread, std::filesystem::path folder);
  ~PlanStore();

  // These implement Device::plan(), prepare(), tune(), packed_plans() and take_plans(). A plan that find() has returned
  // stays valid.
  const DnnPlan* find(const DnnOperation& operation, std::string* why);
  // When the time that prepare() took is worth a line, or when `stop` left operations out, it logs the plans that were
  // built. The first plan of each operation is written to the folder as soon as it is built, so that a process that is
  // killed has not built it in vain.
  void prepare(std::span<const DnnOperation> operations, int most, const std::function<bool()>& stop = {});
  double tune(const DnnOperation& operation, int most);
  PackedPlans packed();
  void take(PackedPlans plans);

 private:
  struct Known {
    std::unique_ptr<DnnPlan> plan;
    std::string why;
    int timed = 0;
    bool settled = false;  // the choice came from the run that this one resumes, or from rank 0
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
  void write_first(PlanMaker& maker, const DnnOperation& operation, const Candidates& found) const;
  std::optional<PlanAnswer> answer_of(const std::string& key, const Known& known);
  // Writes to the folder. A failure is ignored: without a cache the program is only slower.
  void keep(const DnnOperation& operation, const PlanAnswer& answer) const;

  Device& device_;
  std::unique_ptr<PlanMaker> maker_;
  MakeMaker of_thread_;
  std::filesystem::path folder_;
  std::optional<int> setting_;
  std::map<std::string, Known> known_;
  std::map<std::string, Candidates> prepared_;
  std::vector<std::unique_ptr<DnnPlan>> retired_;  // plans that find() returned before tune() found faster ones
  PackedPlans taken_;
  bool said_ = false;  // a warning about a refused plan of taken_ has been logged
};

// Times each plan of one operation on scratch memory and releases that memory. Returns the seconds of each plan;
// negative means that the plan did not run. Returns nothing when the device cannot time or has no memory left. Adds the
// time of the whole trial to `spent`. Throws the error of a plan that leaves the device unusable.
std::vector<double> time_plans(Device& device, std::span<const std::unique_ptr<DnnPlan>> plans, double& spent);

}  // namespace ringtrain::cuda
