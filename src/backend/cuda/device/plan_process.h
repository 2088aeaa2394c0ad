// Plans for a described GPU, as the program asks for them: from a cache file, else from a child process (planner.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "backend/cuda/device/planner.h"
#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/dnn/packed_plans.h"

namespace ringtrain::cuda {

// This executable, unless RINGTRAIN_EXECUTABLE names another (a start script, or the program that a test belongs to).
std::string planner_executable();
// libcuda-stand-in.so beside it.
std::string stand_in_driver_path();

// One child and its two pipes. A child that dies is started again for the next question.
class PlanProcess {
 public:
  // One line of JSON; `name` is for errors.
  PlanProcess(std::string name, std::string description);
  ~PlanProcess();
  PlanProcess(const PlanProcess&) = delete;
  PlanProcess& operator=(const PlanProcess&) = delete;

  // Starts the child if need be. Throws Error where it has no cuDNN, no stand-in driver or no valid description.
  const std::string& cudnn_version();
  // A crash is an answer, too: refused, with the signal's name. Throws Error after 300 s without one.
  PlanAnswer plan(const DnnOperation& operation) { return answer_to("plan", operation); }
  PlanAnswer reload(const DnnOperation& operation) {
    return answer_to("reload", operation);
  }  // serialised and loaded, twice
  std::uint64_t hash(const DnnOperation& operation);

 private:
  PlanAnswer answer_to(const std::string& verb, const DnnOperation& operation);
  void start();
  void stop();
  std::optional<std::string> ask(const std::string& question);  // nothing: the child ended
  bool write_line(const std::string& text);
  std::optional<std::string> read_line();
  std::string end_of_child();

  std::string name_, description_, version_, buffer_;
  pid_t child_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

// Answers by content: cuDNN's version, the device's description, the graph that cuDNN is told, and the key. The file is
// a table: results/cuda_plans_*.csv are such files.
class PlanCache {
 public:
  // Reads what is there; lines that are not understood are passed over. "": nothing is kept.
  PlanCache(std::string file, const std::string& description);
  const PlanAnswer* find(const std::string& version, std::uint64_t graph, const std::string& key) const;
  void add(const std::string& version, std::uint64_t graph, const std::string& key, const PlanAnswer& answer);

 private:
  std::string name(const std::string& version, std::uint64_t graph, const std::string& key) const;
  std::string file_, device_;
  std::map<std::string, PlanAnswer> answers_;
};
inline constexpr const char* plan_cache_header =
    "cudnn,description,graph,operation,answer,workspace_bytes,engine or reason";

}  // namespace ringtrain::cuda
