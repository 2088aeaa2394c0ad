#include "backend/cuda/device/described.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ranges>
#include <set>
#include <thread>

#include "backend/cuda/device/plan_process.h"
#include "backend/cuda/device/plan_store.h"
#include "backend/cuda/hopper/plans.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine_share.h"
#include "base/system_limits.h"
#include "base/utf8.h"

namespace ringtrain::cuda {

namespace {

const std::map<std::string, std::string>& shipped() {
  static const std::map<std::string, std::string> descriptions = {
#include "devices.inc"
  };
  return descriptions;
}

class DescribedDnnPlan : public DnnPlan {
 public:
  DescribedDnnPlan(DnnOperation operation, PlanAnswer answer)
      : operation_(std::move(operation)), answer_(std::move(answer)) {}
  const DnnOperation& operation() const override { return operation_; }
  std::int64_t workspace_bytes() const override { return answer_.workspace_bytes; }
  std::string engine() const override { return answer_.engine; }
  const PlanAnswer& answer() const { return answer_; }

 private:
  DnnOperation operation_;
  PlanAnswer answer_;
};

class DescribedRnnPlan : public RnnPlan {
 public:
  explicit DescribedRnnPlan(RnnOperation operation) : operation_(std::move(operation)) {
    const RnnOperation& o = operation_;
    std::int64_t offset = 0;
    const auto place = [&](std::int64_t layer, bool recurrent, bool bias, std::int64_t count) {
      for (int gate = 0; gate < 4; ++gate) {
        weights_.push_back({layer, recurrent, bias, gate, offset, count});
        offset += count;
      }
    };
    for (std::int64_t layer = 0; layer < o.layers; ++layer) {
      place(layer, false, false, o.hidden * (layer == 0 ? o.input : o.hidden));
      place(layer, true, false, o.hidden * o.hidden);
    }
    for (std::int64_t layer = 0; layer < o.layers; ++layer)
      for (const bool recurrent : {false, true}) place(layer, recurrent, true, o.hidden);
    weight_bytes_ = offset * bytes_of(o.type);
    // These sizes are estimates. The workspace holds the gates of one layer at all positions, and a copy of the
    // weights. In training the reserve holds four gates, c and h of all layers.
    const std::int64_t values = o.length * o.batch * o.hidden;
    workspace_bytes_ = 4 * values * bytes_of(o.type) + weight_bytes_;
    if (o.training) reserve_bytes_ = 6 * o.layers * values * bytes_of(o.type);
  }
  const RnnOperation& operation() const override { return operation_; }
  std::int64_t weight_bytes() const override { return weight_bytes_; }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::int64_t reserve_bytes() const override { return reserve_bytes_; }
  const std::vector<RnnWeight>& weights() const override { return weights_; }

 private:
  RnnOperation operation_;
  std::int64_t weight_bytes_ = 0, workspace_bytes_ = 0, reserve_bytes_ = 0;
  std::vector<RnnWeight> weights_;
};

class DescribedDevice : public Device {
 public:
  DescribedDevice(const DeviceDescription& description, const std::string& plan_cache)
      : process_(description.name, description.json), cache_(plan_cache, description.json) {
    const nlohmann::json d = nlohmann::json::parse(description.json);
    try {
      facts_.name = d.at("deviceName").get<std::string>();
      facts_.compute_capability = d.at("deviceVer").get<int>() / 10;
      facts_.multiprocessors = d.at("multiProcessorCount").get<int>();
      facts_.memory_bytes = d.at("totalGlobalMem").get<std::int64_t>();
      const int driver = d.at("driverVer").get<int>();
      facts_.cuda_version = cat(driver / 1000, ".", driver % 1000 / 10);
    } catch (const nlohmann::json::exception& e) {
      throw Error(cat(description.name, " is not a description of a GPU: ", e.what()),
                  "Compare its keys with those of src/backend/cuda/device/descriptions/h200.json.");
    }
    facts_.free_bytes = facts_.memory_bytes - context_estimate_bytes;
    facts_.cudnn_version = process_.cudnn_version();
    hopper_plans_ = std::make_unique<hopper::Plans>(facts_.compute_capability);
  }

  const DeviceFacts& facts() const override { return facts_; }

  void* allocate(std::int64_t bytes, const std::string& what) override {
    if (allocated_ + bytes > facts_.free_bytes)
      throw Error(cat(what, " takes ", bytes, " bytes of the ", facts_.name, "'s memory, of which ",
                      facts_.free_bytes - allocated_, " are free"),
                  "Use a smaller batch.micro.");
    const std::uintptr_t address = next_address_;
    next_address_ += static_cast<std::uintptr_t>((bytes + 511) / 256 * 256);
    allocated_ += bytes;
    sizes_[address] = bytes;
    return reinterpret_cast<void*>(address);  // a name, not an address of memory
  }
  void release(void* memory) override {
    const auto found = sizes_.find(reinterpret_cast<std::uintptr_t>(memory));
    allocated_ -= found->second;
    sizes_.erase(found);
  }
  void* allocate_host(std::int64_t bytes) override { return std::calloc(static_cast<std::size_t>(bytes), 1); }
  void release_host(void* memory) override { std::free(memory); }
  void pin(void*, std::int64_t) override {}
  void unpin(void*) override {}
  std::int64_t allocated_bytes() const override { return allocated_; }

  Stream compute_stream() override { return {1}; }
  Stream make_stream(bool) override { return {++handles_}; }
  Event make_event() override { return {++handles_}; }
  Event make_timed_event() override { return {++handles_}; }
  void record(Event, Stream) override { refuse(); }
  void wait(Stream, Event) override { refuse(); }
  bool done(Event) override { refuse(); }
  double seconds_between(Event, Event) override { refuse(); }
  void synchronize(Event, const std::function<void()>&) override { refuse(); }
  void copy(void*, const void*, std::int64_t, CopyKind, Stream) override { refuse(); }
  void zero(void*, std::int64_t, Stream) override { refuse(); }
  void launch(const KernelLaunch&, Stream) override { refuse(); }

  const DnnPlan* plan(const DnnOperation& operation, std::string* why) override {
    if (operation.engine == Engine::hopper) return hopper_plans_->find(operation, why);
    const DescribedDnnPlan& plan = known(operation);
    if (why != nullptr) *why = plan.answer().why;
    return plan.answer().found ? &plan : nullptr;
  }
  void run(const DnnPlan&, std::span<void* const>, void*, Stream) override { refuse(); }

  const RnnPlan* plan(const RnnOperation& operation, std::string* why) override {
    if (operation.algorithm != RnnAlgorithm::standard) {
      if (why != nullptr) *why = "cuDNN plans this algorithm only on a real GPU";
      return nullptr;
    }
    auto& plan = rnn_plans_[operation.key()];
    if (!plan) plan = std::make_unique<DescribedRnnPlan>(operation);
    return plan.get();
  }
  void run_forward(const RnnPlan&, const RnnForward&, Stream) override { refuse(); }
  void run_backward(const RnnPlan&, const RnnBackward&, Stream) override { refuse(); }

  void begin_capture(Stream) override { refuse(); }
  CapturedGraph end_capture(Stream) override { refuse(); }
  void launch(CapturedGraph, Stream) override { refuse(); }
  double time(const std::function<void(Stream)>&, int) override { return -1; }

 protected:
  // Returns cuDNN's answer about an operation that is asked for the first time.
  virtual PlanAnswer answer_to(const DnnOperation& operation) {
    const std::uint64_t graph = process_.hash(operation);
    if (const PlanAnswer* kept = cache_.find(facts_.cudnn_version, graph, operation.key())) return *kept;
    PlanAnswer answer = process_.plan(operation);
    cache_.add(facts_.cudnn_version, graph, operation.key(), answer);
    return answer;
  }
  bool is_known(const DnnOperation& operation) const { return plans_.contains(operation.key()); }
  void add(const DnnOperation& operation, PlanAnswer answer) {
    plans_[operation.key()] = std::make_unique<DescribedDnnPlan>(operation, std::move(answer));
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(cat("the ", facts_.name, " is only described: nothing can be executed on it"));
  }

  const DescribedDnnPlan& known(const DnnOperation& operation) {
    if (!is_known(operation)) add(operation, answer_to(operation));
    return *plans_.at(operation.key());
  }

  PlanProcess process_;
  PlanCache cache_;
  DeviceFacts facts_;
  std::map<std::string, std::unique_ptr<DescribedDnnPlan>> plans_;
  std::unique_ptr<hopper::Plans> hopper_plans_;
  std::map<std::string, std::unique_ptr<DescribedRnnPlan>> rnn_plans_;
  std::map<std::uintptr_t, std::int64_t> sizes_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40, handles_ = 1;
  std::int64_t allocated_ = 0;
};

class SavingDevice : public DescribedDevice {
 public:
  SavingDevice(const DeviceDescription& description, bool every_way, SavedPlans& saved)
      : DescribedDevice(description, ""), description_(description), every_way_(every_way), saved_(saved) {
    saved_.folder = plan_folder(saved_.plan_cache, facts().name, facts().cudnn_version).string();
    std::error_code failed;
    std::filesystem::create_directories(saved_.folder, failed);
    if (failed)
      throw Error(cat("cannot make the folder ", saved_.folder, ": ", failed.message()), "Name another folder.");
  }
  bool plans_every_way() const override { return every_way_; }

  void prepare(std::span<const DnnOperation> operations, int, const std::function<bool()>&) override {
    std::vector<const DnnOperation*> wanted;
    std::set<std::string> keys;
    for (const DnnOperation& operation : operations)
      if (operation.engine != Engine::hopper && !is_known(operation) && keys.insert(operation.key()).second)
        wanted.push_back(&operation);
    std::vector<PlanAnswer> answers(wanted.size());
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      PlanProcess process(description_.name, description_.json);
      for (std::size_t i = next++; i < wanted.size(); i = next++) answers[i] = saved_answer(process, *wanted[i]);
    };
    run_on_threads(std::min<std::size_t>(wanted.size(), static_cast<std::size_t>(std::min(usable_cpus(), 16))), work);
    for (std::size_t i = 0; i < wanted.size(); ++i) add(*wanted[i], std::move(answers[i]));
  }

 protected:
  PlanAnswer answer_to(const DnnOperation& operation) override {
    if (!own_process_) own_process_ = std::make_unique<PlanProcess>(description_.name, description_.json);
    return saved_answer(*own_process_, operation);
  }

 private:
  // Takes the answer that an earlier call has saved, or asks cuDNN and saves the answer.
  PlanAnswer saved_answer(PlanProcess& process, const DnnOperation& operation) {
    const std::filesystem::path file = plan_file(saved_.folder, process.hash(operation));
    std::optional<PlanAnswer> answer = kept_plan(file, operation);
    if (!answer) {
      answer = process.pack(operation);
      if (!keep_plan(file, operation, *answer))
        throw Error(cat(file.string(), " cannot be written"), "Name another folder, or free some space.");
    }
    const std::lock_guard lock(noting_);
    saved_.answers[operation.key()] = answer->found;
    return std::move(*answer);
  }

  // Rethrows the first error of the threads after all have ended.
  static void run_on_threads(std::size_t count, const std::function<void()>& work) {
    std::exception_ptr error;
    std::mutex writing;
    const auto guarded = [&] {
      try {
        work();
      } catch (...) {
        const std::lock_guard lock(writing);
        if (!error) error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    try {
      while (threads.size() < count) threads.push_back(start_thread("builds cuDNN's plans", guarded));
    } catch (...) {
      const std::lock_guard lock(writing);
      if (!error) error = std::current_exception();
    }
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

  DeviceDescription description_;
  bool every_way_;
  SavedPlans& saved_;
  std::mutex noting_;
  std::unique_ptr<PlanProcess> own_process_;
};

}  // namespace

DeviceDescription find_description(const std::string& name_or_file) {
  std::string text;
  if (const auto found = shipped().find(name_or_file); found != shipped().end()) {
    text = found->second;
  } else {
    std::ifstream file(name_or_file);
    if (!file)
      throw Error(cat("there is no description of a GPU called '", name_or_file, "'"),
                  cat("Known: ", joined(std::views::keys(shipped())),
                      "; or name a JSON file like src/backend/cuda/device/descriptions/h200.json."));
    text = rest_of(file);
  }
  try {
    if (json_depth(text) > deepest_json)
      throw Error(cat(name_or_file, " is not a description of a GPU: its JSON is nested too deeply"));
    nlohmann::json json = nlohmann::json::parse(text);
    json.erase("origin");  // "origin" tells readers where the numbers come from
    return {name_or_file, json.dump()};
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        cat(name_or_file, " is not a JSON object: ", cut_to(e.what(), 300)),  // e.what() repeats the text it read last
        "Compare it with src/backend/cuda/device/descriptions/h200.json.");
  }
}

std::unique_ptr<Device> make_described_device(const DeviceDescription& description, const std::string& plan_cache) {
  return std::make_unique<DescribedDevice>(description, plan_cache);
}

std::unique_ptr<Device> make_saving_device(const DeviceDescription& description, bool every_way, SavedPlans& saved) {
  return std::make_unique<SavingDevice>(description, every_way, saved);
}

}  // namespace ringtrain::cuda
