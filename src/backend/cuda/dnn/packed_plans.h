// PlanAnswer is cuDNN's answer about one operation. Answers have this one form everywhere: for a described device, in
// the cache, in messages to other ranks and in a run's folder. This file also says where a cache keeps its plans.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace ringtrain::cuda {

// Holds cuDNN's answer about one operation on one device.
struct PlanAnswer {
  bool found = false;
  std::int64_t workspace_bytes = 0;
  std::string engine = {};  // when found: cuDNN's name for the engine and its knobs
  std::string why = {};     // when refused: the reason in cuDNN's words
  int timed = 0;            // the plan was the fastest of up to this many; 0: cuDNN's first guess
  std::string bytes = {};   // the plan as cuDNN serialises it, 0.1 to 0.3 MB; empty for a device that is only described
  bool operator==(const PlanAnswer&) const = default;
};

// Writes "found", the workspace and the engine, or "refused", 0 and the reason, with `separator` between them. The
// engine and the reason contain neither the separator nor a line break.
std::string to_line(const PlanAnswer& answer, char separator);
PlanAnswer parse_answer(const std::string& line, char separator);  // throws Error

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
// Returns a sentence for the user when `folder` has no plans but the cache has plans for this kind of GPU with another
// version of cuDNN. Returns "" otherwise. A plan works with the version that made it only.
std::string note_about_other_versions(const std::filesystem::path& folder);

}  // namespace ringtrain::cuda
