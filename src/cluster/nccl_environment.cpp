#include "cluster/nccl_environment.h"

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"

namespace ringtrain {
namespace {

constexpr const char* kVariables[] = {
    "NCCL_ALGO",     "NCCL_PROTO",    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE",      "NCCL_NVLS_ENABLE",   "NCCL_COLLNET_ENABLE"};

}  // namespace

std::map<std::string, std::string> nccl_variables() {
  std::map<std::string, std::string> set;
  for (const char* name : kVariables)
    if (const char* value = std::getenv(name)) set[name] = value;
  return set;
}

void take_kept_variables(const std::string& algorithm, const std::map<std::string, std::string>& kept, bool reports) {
  const auto kept_algorithm = kept.find("algorithm");
  const bool same_algorithm = kept_algorithm != kept.end() && kept_algorithm->second == algorithm;
  std::string taken;
  for (const std::string name : kVariables) {
    const auto value = kept.find(name);
    if (value == kept.end() || std::getenv(name.c_str()) != nullptr) continue;
    if (name == "NCCL_ALGO" && !same_algorithm) continue;
    setenv(name.c_str(), value->second.c_str(), 1);
    taken += cat(" ", name, "=", value->second);
  }
  if (!taken.empty() && reports) log_info("as at the run's start:", taken);
}

void choose_algorithm(const std::string& algorithm, int nccl_version) {
  if (algorithm == "auto") return;
  if (algorithm != "ring" && algorithm != "tree")
    throw Error(cat("communication.algorithm is '", algorithm, "', which only MPI has, but this run sums with NCCL"),
                "choose auto, ring or tree, or communication.library: mpi");
  // Since NCCL 2.24, an algorithm can be chosen for one collective only.
  const std::string value = nccl_version >= 22400 ? "allreduce:" + algorithm : algorithm;
  setenv("NCCL_ALGO", value.c_str(), 0);
}

void compare_records(const std::map<std::string, std::string>& record, Communicator& host) {
  std::string mine;
  for (const auto& [name, value] : record) mine += cat(name, " = ", value, "\n");
  const std::string first = broadcast_string(host, mine, 0);
  if (mine != first)
    throw Error(cat("rank ", host.rank(), " would use NCCL in another way than rank 0 and wait for it for ever. Here:\n",
                    mine, "on rank 0:\n", first),
                "give all ranks the same NCCL library and the same NCCL_ variables (mpirun -x NAME, srun --export)");
}

}  // namespace ringtrain
