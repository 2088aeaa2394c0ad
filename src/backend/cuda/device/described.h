// A described device stands for a GPU that this machine does not have. It knows the facts of the GPU, asks cuDNN for
// plans for it, and counts memory.
//
// Every call that would execute something throws Error. cuDNN plans recurrent layers only on a real GPU, so the memory
// of recurrent layers is an estimate here.
//
// An answer of cuDNN comes from a cache file (PlanCache) or from a child process (PlanProcess). run_planner() is the
// child's side of it (planner.cpp).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
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

// The child process runs cuDNN with a stand-in for NVIDIA's driver; no other process opens the stand-in. It reads one
// question a line and answers each in one line. When cuDNN crashes on a question, the parent starts another child.

// This command-line argument makes the executable run as this process.
inline constexpr const char* planner_command = "cudnn-planner";
// Answers questions from standard input on standard output until the input ends. The first line is the device's
// description; the answer is "ready VERSION". Each question is a line "VERB NUMBER KEY". "plan" and "pack" make up
// to NUMBER plans. The answer is a count of bytes, a tab, and the first of these plans in the form of to_line() with
// tabs. After "pack", the serialised plan follows this line; the count is the number of its bytes, else 0. NUMBER bytes
// of such a plan follow "load", which is answered like "plan" if cuDNN takes them. "hash" is answered with
// graph_hash(). A line that fails is answered with "error\tWHAT"; for the first line a tab and HINT follow.
int run_planner();

}  // namespace ringtrain::cuda
