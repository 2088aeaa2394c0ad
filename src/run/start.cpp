#include "run/start.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>
#include <vector>

#include "backend/cpu/processor.h"
#include "base/error.h"
#include "base/log.h"
#include "cluster/binding.h"
#include "cluster/launcher.h"
#include "cluster/node_memory.h"
#include "config/schema_text.h"

namespace ringtrain {

Experiment shared_experiment(const ExperimentArguments& arguments, Communicator& communicator) {
  Experiment experiment;
  if (communicator.rank() == 0) experiment = read_experiment(arguments.path, arguments.overrides);
  return shared_experiment(experiment, arguments.path, communicator);
}

Experiment shared_experiment(const Experiment& of_rank_0, const std::string& path, Communicator& communicator) {
  const std::string text = communicator.rank() == 0 ? to_yaml(of_rank_0) : "";
  return parse_experiment(broadcast_string(communicator, text, 0), path, {});
}

DatasetIndex shared_index(const std::string& prefix, Communicator& communicator) {
  std::string bytes;
  if (communicator.rank() == 0) bytes = read_dataset_index(prefix).serialize();
  return DatasetIndex::deserialize(broadcast_string(communicator, bytes, 0));
}

TrainingData shared_data(const Experiment& experiment, Communicator& communicator) {
  TrainingData data;
  data.train = shared_index(experiment.data.train, communicator);
  if (!experiment.data.validation.empty()) data.validation = shared_index(experiment.data.validation, communicator);
  return data;
}

std::shared_ptr<const Dataset> shared_dataset(const DatasetIndex& index, const RankGroup& group) {
  return make_dataset(index, node_memory(group, static_cast<std::size_t>(dataset_bytes(index))));
}

std::string threads_take_turns(int threads, int available, std::optional<double> quota) {
  if (threads <= available) return "";
  return cat("run.threads is ", threads, ", but a rank has ",
             quota ? cat("a quota (cgroup) of ", *quota) : cat(available),
             quota.value_or(available) == 1 ? " CPU" : " CPUs", quota ? "" : " in its affinity mask",
             ": its threads will take turns");
}

int thread_count(const Experiment& experiment, const Session& session) {
  const int available = session.available_threads();
  if (experiment.run.threads == 0) {
    if (session.cpu_quota() && session.rank() == 0)
      log_info("a quota (cgroup) gives a rank ", *session.cpu_quota(), *session.cpu_quota() == 1 ? " CPU" : " CPUs",
               " of those in its affinity mask, so it computes with ", available,
               available == 1 ? " thread" : " threads",
               *session.cpu_quota() < 1 ? ", which waits for the rest of the time: fewer ranks would wait less" : "");
    return available;
  }
  const int wanted = static_cast<int>(experiment.run.threads);
  const std::string warning = threads_take_turns(wanted, available, session.cpu_quota());
  if (!warning.empty() && session.rank() == 0) log_warning(warning);
  return wanted;
}

void log_job(const RankGroup& group, const std::string& launcher, const std::string& gpu) {
  const std::vector<RankBinding> bindings = gather_bindings(group, gpu);
  if (group.rank() != 0) return;
  if (const SlurmJob job = slurm_job(); job.in_slurm()) log_info(describe(job, launcher));
  for (const std::string& line : describe_bindings(bindings)) log_info(line);
  for (const std::string& sentence : shared_cores(bindings))
    log_warning(
        sentence, ": they take turns. Give each its own (srun --cpus-per-task, which srun takes from ",
        "SRUN_CPUS_PER_TASK since Slurm 22.05; mpirun --map-by slot:PE=N --bind-to core), or start fewer ranks ",
        "on a node");
}

namespace {

std::string warning;  // of different instruction sets; not yet reported

// oneDNN then uses no newer instructions, whatever the processor has. Convolutions take up to a hundred times as long.
void warn_of_limited_onednn() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* const limit = std::getenv(name); limit != nullptr && *limit != '\0')
      log_warning(name, " is ", limit, ": oneDNN uses no newer instructions, and a step may take far longer");
}

}  // namespace

void agree_on_instruction_sets(const RankGroup& job) {
  if (job.rank() == 0) warn_of_limited_onednn();
  const std::vector<std::string> of_ranks = job.gather(cat(cpu::instruction_level()));
  std::vector<int> levels;
  for (const std::string& text : of_ranks) levels.push_back(std::stoi(text));
  const auto [lowest, highest] = std::ranges::minmax_element(levels);
  if (*lowest == *highest) return;
  const std::string name = cpu::level_name(*lowest);
  if (job.rank() == 0) {
    const auto rank = lowest - levels.begin();
    const auto as_low = std::ranges::count(levels, *lowest);
    const std::string others = as_low > 1 ? cat(" and ", as_low - 1, " more") : "";
    warning =
        cat("the processors of this job have different instruction sets: rank ", rank, " on ",
            job.hosts()[static_cast<std::size_t>(rank)], others, as_low > 1 ? " have " : " has ", name,
            ", others up to ", cpu::level_name(*highest), ". All ranks compute with ", name,
            ", because copies of the model would differ by rounding otherwise; processors of one kind are faster");
  }
  cpu::lower_instruction_level(*lowest);
}

void report_lower_instruction_sets() {
  if (!warning.empty()) log_warning(std::exchange(warning, ""));
}

}  // namespace ringtrain
