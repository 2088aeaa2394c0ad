// Asks the library of convolutions for Hopper about the models' shapes, on the host, without a GPU:
//
//   make hopper build/bench/hopper_plans
//   RINGTRAIN_EXECUTABLE=bin/ringtrain build/bench/hopper_plans src/backend/cuda/device/recorded
//
// It writes hopper_plans.csv for the shapes of an H200 in plans.csv.
#include <algorithm>
#include <cstdio>

#include "tests/unit/hopper_operations.h"

int main(int argc, char** argv) {
  using namespace ringtrain;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  try {
    const std::string folder = argv[1];
    std::vector<std::string> lines;
    for (const cuda::DnnOperation& o : cuda::hopper_operations(folder + "/plans.csv"))
      lines.push_back(cuda::hopper_line(o));
    std::sort(lines.begin(), lines.end());
    std::ofstream out(folder + "/hopper_plans.csv");
    out << cuda::hopper_plans_header << "\n";
    for (const std::string& line : lines) out << line << "\n";
    if (!out.flush()) throw Error("cannot write " + folder + "/hopper_plans.csv");
    std::printf("%zu answers\n", lines.size());
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n  %s\n", e.what(), e.hint().c_str());
    return 1;
  }
}
