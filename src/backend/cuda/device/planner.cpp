// This file is the child process that described.h describes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "backend/cuda/device/described.h"
#include "backend/cuda/device/libraries.h"
#include "backend/cuda/dnn/plans.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// Opens the stand-in before any other library. A later request for libcuda.so.1 then gets the library of that name that
// is already loaded.
void open_stand_in_driver() {
  const std::string path = stand_in_driver_path();
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    throw Error(cat("the stand-in driver does not open: ", dlerror()), "`make cuda` builds it.");
}

// Serialises and loads each of the first plans twice, the last plan first. Bytes, engine and workspace must stay the
// same. Returns the first plan after that, or null with the reason in `why`.
std::unique_ptr<CudnnPlan> reloaded(const DnnPlanner& planner, const DnnOperation& operation, std::string* why) {
  constexpr std::size_t most = 2;
  std::unique_ptr<CudnnPlan> result;
  std::vector<std::unique_ptr<CudnnPlan>> plans = planner.candidates(operation, most, why);
  for (; !plans.empty(); plans.pop_back()) {
    const PlanAnswer built = plans.back()->packed();
    const std::unique_ptr<CudnnPlan> once = planner.load(operation, built, why);
    if (!once) return nullptr;
    result = planner.load(operation, once->packed(), why);
    if (!result) return nullptr;
    if (built.bytes.empty() || result->packed() != built)
      throw Error(
          cat("the plan ", built.engine, " was changed by serialising and loading; it is now ", result->engine()));
  }
  return result;
}

// Reads the bytes that follow "load COUNT KEY", and loads them as a plan.
PlanAnswer loaded(const DnnPlanner& planner, const std::string& question) {
  std::istringstream words(question);
  std::string verb, key;
  PlanAnswer answer{.found = true};
  std::size_t count = 0;
  words >> verb >> count;
  std::getline(words >> std::ws, key);
  answer.bytes.resize(count);
  std::cin.read(answer.bytes.data(), static_cast<std::streamsize>(count));
  answer.found = planner.load(parse_operation(key), answer, &answer.why) != nullptr;
  answer.bytes.clear();
  return answer;
}

// Returns the answer's line, and the bytes that follow it after "pack".
std::string answer(const DnnPlanner& planner, const std::string& question) {
  const std::size_t space = question.find(' ');
  const std::string verb = question.substr(0, space);
  if (verb == "load") return to_line(loaded(planner, question), '\t') + "\n";
  const DnnOperation operation = parse_operation(question.substr(space + 1));
  if (verb == "hash") return std::to_string(graph_hash(operation)) + "\n";
  PlanAnswer a;
  const std::unique_ptr<CudnnPlan> plan =
      verb == "reload" ? reloaded(planner, operation, &a.why) : planner.plan(operation, &a.why);
  a.found = plan != nullptr;
  if (plan) {
    a.workspace_bytes = plan->workspace_bytes();
    a.engine = plan->engine();
  }
  if (verb != "pack") return to_line(a, '\t') + "\n";
  if (plan) a.bytes = plan->packed().bytes;
  return cat("packed ", a.bytes.size(), '\t', to_line(a, '\t'), '\n') + a.bytes;
}

}  // namespace

int runtime::run_planner() {
  // cuDNN and its compiler may print. Their output must not mix with the answers.
  std::FILE* answers = fdopen(dup(STDOUT_FILENO), "w");
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  dup2(nowhere, STDOUT_FILENO);
  dup2(nowhere, STDERR_FILENO);
  try {
    std::string json;
    std::getline(std::cin, json);
    open_stand_in_driver();
    const DnnPlanner planner = DnnPlanner::for_description(json);
    std::fprintf(answers, "ready %s\n", cudnn_version_text().c_str());
    std::fflush(answers);
    for (std::string line; std::getline(std::cin, line);) {
      std::string text;
      try {
        text = answer(planner, line);
      } catch (const std::exception& e) {  // only this question fails; the next one may succeed
        text = cat("error\t", e.what(), "\n");
      }
      std::fwrite(text.data(), 1, text.size(), answers);
      std::fflush(answers);
    }
  } catch (const Error& e) {
    std::fprintf(answers, "error\t%s\t%s\n", e.what(), e.hint().c_str());
    std::fflush(answers);
  }
  _exit(0);  // skips cuDNN's destructors, which need a driver
}

}  // namespace ringtrain::cuda
