// This file is the child process that plan_process.h describes.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "backend/cuda/device/libraries.h"
#include "backend/cuda/device/plan_process.h"
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

// Returns the answer's line, and the bytes that follow it.
std::string answer(const DnnPlanner& planner, const std::string& question) {
  std::istringstream words(question);
  std::string verb, key;
  std::size_t number = 0;  // of bytes that follow the question, or of plans to make
  words >> verb >> number;
  std::getline(words >> std::ws, key);
  PlanAnswer given, a;
  if (verb == "load") {
    given.bytes.resize(number);
    std::cin.read(given.bytes.data(), static_cast<std::streamsize>(number));
  }
  const DnnOperation operation = parse_operation(key);
  if (verb == "hash") return std::to_string(graph_hash(operation)) + "\n";
  std::vector<std::unique_ptr<CudnnPlan>> plans;
  if (verb == "load") {
    plans.push_back(planner.load(operation, given, &a.why));
  } else {
    plans = planner.candidates(operation, number, &a.why);
  }
  a.found = !plans.empty() && plans.front() != nullptr;
  if (a.found) {
    const CudnnPlan& plan = *plans.front();
    a.workspace_bytes = plan.workspace_bytes();
    a.engine = plan.engine();
    if (verb == "pack") a.bytes = plan.packed().bytes;
  }
  return cat(a.bytes.size(), '\t', to_line(a, '\t'), '\n') + a.bytes;
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
