// Sets environment variables until the end of a scope.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ringtrain {

using Variables = std::map<std::string, std::string>;

// Removes the variables of launchers and batch systems and those in `removed`, and sets `variables`. The destructor
// restores all of these. Other changes of the environment stay.
class WithEnvironment {
 public:
  explicit WithEnvironment(const Variables& variables, const std::vector<std::string>& removed = {}) {
    for (const char* name :
         {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST",
          "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
          "PMI_SIZE", "PMI_FD", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD"})
      set(name, std::nullopt);
    for (const std::string& name : removed) set(name, std::nullopt);
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~WithEnvironment() {
    for (auto before = before_.rbegin(); before != before_.rend(); ++before) put(before->first, before->second);
  }
  WithEnvironment(const WithEnvironment&) = delete;
  WithEnvironment& operator=(const WithEnvironment&) = delete;

 private:
  using Value = std::optional<std::string>;
  static void put(const std::string& name, const Value& value) {
    if (value)
      setenv(name.c_str(), value->c_str(), 1);
    else
      unsetenv(name.c_str());
  }
  void set(const std::string& name, const Value& value) {
    const char* before = std::getenv(name.c_str());
    before_.emplace_back(name, before != nullptr ? Value(before) : std::nullopt);
    put(name, value);
  }
  std::vector<std::pair<std::string, Value>> before_;
};

}  // namespace ringtrain
