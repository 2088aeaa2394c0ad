// The process that plans for a described GPU, and the file with its answers. planner.cpp is the child's side.
//
// The child process runs cuDNN with a stand-in for NVIDIA's driver; no other process opens the stand-in. It reads one
// question a line and answers each in one line (run_planner() in libraries.h), until the input ends. When cuDNN crashes
// on a question, the parent starts another child.
//
// The first line is the device's description; the answer is "ready VERSION". Each question is a line "VERB NUMBER KEY".
// "plan" and "pack" make up to NUMBER plans. The answer is a count of bytes, a tab, and the first of these plans in the
// form of to_line() with tabs. After "pack", the serialised plan follows this line; the count is the number of its
// bytes, else 0. NUMBER bytes of such a plan follow "load", which is answered like "plan" if cuDNN takes them. "hash"
// is answered with graph_hash(). A line that fails is answered with "error\tWHAT"; for the first line a tab and HINT
// follow.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

// Returns the path of libcuda-stand-in.so, which lies in the same folder as own_executable(), which runs as the child.
std::string stand_in_driver_path();

// Owns one child process, a socket to it and a pipe from it. One thread uses it. When the child dies, the next question
// starts a new one.
class PlanProcess {
 public:
  // `description` is one line of JSON. `name` appears in errors.
  PlanProcess(std::string name, std::string description);
  ~PlanProcess();
  PlanProcess(const PlanProcess&) = delete;
  PlanProcess& operator=(const PlanProcess&) = delete;

  // Returns the version of the child's cuDNN. Starts the child when the version is not known yet. Throws Error when the
  // child finds no cuDNN, no stand-in driver or no valid description.
  const std::string& cudnn_version();
  // plan() asks for a plan, and pack() for a plan with its bytes: the first of as many plans as the process makes.
  // load() asks whether cuDNN makes a plan from such bytes for the device; the answer has its workspace. The answer is
  // a refusal with the reason if there is no plan. When the child crashes, the reason is the name of the signal. Throws
  // Error when no answer comes within 300 s.
  PlanAnswer plan(const DnnOperation& operation) { return answer_to("plan", 1, operation, ""); }
  PlanAnswer pack(const DnnOperation& operation, std::size_t plans = 1) {
    return answer_to("pack", plans, operation, "");
  }
  PlanAnswer load(const DnnOperation& operation, const std::string& bytes) {
    return answer_to("load", bytes.size(), operation, bytes);
  }
  std::uint64_t hash(const DnnOperation& operation);

 private:
  PlanAnswer answer_to(const std::string& verb, std::size_t number, const DnnOperation& operation,
                       const std::string& given);
  void start();
  void stop();
  void tell_progress();
  // Sends a question, and returns the line of the answer. No value: the child has ended.
  std::optional<std::string> ask(const std::string& verb, std::size_t number, const DnnOperation& operation,
                                 const std::string& given);
  bool write(const std::string& text);
  bool receive();  // adds what the child has written to the buffer; false: the child has ended
  std::optional<std::string> read_line();
  std::optional<std::string> read_bytes(std::size_t count);
  std::string end_of_child();

  std::string name_, description_, version_, buffer_;
  int answers_ = 0;                      // number of answers about plans
  double began_at_ = 0, next_line_ = 0;  // time of the first answer; seconds from then to the next line of progress
  pid_t child_ = -1;
  int to_child_ = -1, from_child_ = -1;
};

// Holds a table of answers in a file. The key of an answer is cuDNN's version, the device's description, the graph
// given to cuDNN and the operation's key.
class PlanCache {
 public:
  // Reads the file if it exists and skips lines that it does not understand. If `file` is "", answers are kept in
  // memory.
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

// This command-line argument makes the executable run as this process.
inline constexpr const char* planner_command = "cudnn-planner";

}  // namespace ringtrain::cuda
