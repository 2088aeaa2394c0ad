// A described device stands for a GPU that this machine does not have. It knows the facts of the GPU, asks cuDNN for
// plans for it, and counts memory.
//
// Every call that would execute something throws Error. cuDNN plans recurrent layers only on a real GPU, so the memory
// of recurrent layers is an estimate here.
//
// An answer of cuDNN comes from a cache file or from a child process (plan_process.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

struct DeviceDescription {
  std::string name;  // "h200", or the path of the file
  std::string json;  // one line, in the form that cuDNN reads
};
// Finds a description by its name, or reads it from a JSON file. When there is neither, throws Error that lists the
// names.
DeviceDescription find_description(const std::string& name_or_file);

// `plan_cache` is the path of a file that keeps cuDNN's answers (PlanCache). When it is "", no answer is kept. Throws
// Error when cuDNN or the stand-in driver is missing.
std::unique_ptr<Device> make_described_device(const DeviceDescription& description, const std::string& plan_cache);

// What saving devices have written.
struct SavedPlans {
  std::string plan_cache;                    // the folder that is named as machine.plan_cache
  std::string folder = {};                   // of plans for this GPU, below it
  std::map<std::string, bool> answers = {};  // by the key of the operation; false: cuDNN refuses it
  std::int64_t found() const { return std::ranges::count(answers, true, &std::pair<const std::string, bool>::second); }
  std::int64_t refused() const { return std::ssize(answers) - found(); }
};
// Makes a described device that writes its plans, and cuDNN's refusals, below `saved.plan_cache`, where a real GPU of
// this kind finds them. With `every_way`, it builds the plans of every way to compute the network, and not only of the
// way that it would guess, so that the first start there builds no plans. It takes plans that the folder has. Builds on
// one thread for each core, at most 16. `saved` is filled while the device lives.
std::unique_ptr<Device> make_saving_device(const DeviceDescription& description, bool every_way, SavedPlans& saved);

// A rank's process also holds this memory on the GPU, in addition to vectors and programs. Both numbers are estimates,
// not measurements.
inline constexpr std::int64_t context_estimate_bytes = std::int64_t{640} << 20;  // CUDA's context and cuDNN's kernels
inline constexpr std::int64_t nccl_estimate_bytes = std::int64_t{384} << 20;     // the channels of a NCCL communicator

}  // namespace ringtrain::cuda
