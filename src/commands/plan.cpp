// `ringtrain plan` prints everything about a run, without training.
#include "run/fitting_passes.h"
#include "run/plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "backend/cuda/backend.h"
#include "backend/cuda/device/described.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "base/table.h"
#include "bench/preflight.h"
#include "checkpoint/find_checkpoint.h"
#include "commands/commands.h"
#include "config/reader.h"
#include "config/schema_text.h"
#include "run/course.h"
#include "run/fixed_order.h"
#include "run/folder.h"
#include "run/machine.h"
#include "run/memory.h"
#include "run/plan_text.h"
#include "run/progress_display.h"
#include "run/replay.h"
#include "run/split.h"
#include "run/start.h"
#include "run/step_bound.h"
#include "run/task.h"
#include "study/trial_plan.h"

namespace ringtrain {

namespace {

// Builds cuDNN's plans for a GPU on a machine without one, so that the first start there finds them in a folder.
// Compiles the passes of training and evaluation for a described GPU, and saves the plans of every way to compute a
// layer below `saved.plan_cache`, which a run on such a GPU takes as machine.plan_cache. Plans that the folder has are
// kept. Throws Error when cuDNN is missing or the folder cannot be written.
void save_plans(const RunPlan& plan, const std::string& gpu, cuda::SavedPlans& saved) {
  const auto device = cuda::make_saving_device(cuda::find_description(gpu), true, saved);
  cuda::FusionTable fusions(0);
  const auto backend = cuda::make_backend(*device, {.fusions = &fusions});
  for (int stage = 0; stage < plan.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    compile_part(plan, part, *backend, PassMode::training, plan.batch.micro_batch);
    if (plan.has_validation)
      compile_part(plan, part, *backend, PassMode::inference, plan.validation_loader.micro_batch);
  }
}

std::string plan_traffic(const RunPlan& p, const Machine& machine) {
  const std::size_t before = machine.fusions->choices().size();
  const std::unique_ptr<Program> program =
      machine.backend->compile(p.graph, p.batch.micro_batch, p.precision, PassMode::training, p.norm_group);
  std::vector<cuda::FusionChoice> choices = machine.fusions->choices();
  choices.erase(choices.begin(), choices.begin() + static_cast<std::ptrdiff_t>(before));
  const auto timed = std::ranges::count_if(choices, [](const cuda::FusionChoice& c) { return c.seconds > 0; });
  return describe_traffic(cuda::traffic_of(dynamic_cast<const cuda::ProgramBase&>(*program).schedule()),
                          p.batch.micro_batch, p.batch.rows_per_rank, std::ssize(choices), timed) +
         describe_least_time(p, *program, machine);
}

// Returns a line with the time of the run. It is as fast as the earlier run of this name that is most like it, or as
// the preflight files predict. Returns "" if neither is there. Adds a warning if it takes more than a day.
std::string describe_time(const RunPlan& p, const PlanArguments& arguments, std::vector<std::string>& warnings) {
  const RunConfig& run = p.experiment.run;
  const std::string folder = run.dir.empty()
                                 ? "results/" + p.experiment.name
                                 : std::filesystem::absolute(run.dir).lexically_normal().parent_path().string();
  const std::vector<Preflight> preflight = read_preflights(arguments.preflight);
  const TimeExpectation measured(measured_runs(folder, !arguments.device.empty()), preflight);
  Trial trial;
  trial.ranks = arguments.ranks;
  trial.experiment = p.experiment;
  const auto time = measured.of(trial, trial_plan_of(p));
  if (time && !(time->seconds <= longest_duration)) return "";
  if (!time) {
    if (!preflight.empty())
      warnings.push_back(
          "the preflight files give no time for this run: they were measured with another model, or have no all-reduce "
          "for this number of ranks, or the run has no fixed number of steps");
    return "";
  }
  constexpr double day = 86400;
  if (time->seconds > day)
    warnings.push_back(cat("the run takes about ", readable_duration(time->seconds),
                           "; a job with a shorter limit ends with a checkpoint, and --resume goes on"));
  return cat("\nexpected time  about ", readable_duration(time->seconds),
             time->from == "preflight" ? ", from the preflight files, without evaluations and checkpoints"
                                       : cat(", as fast as ", folder, "/", time->from),
             "\n");
}

// Returns a line that says which threads the plan assumes. Returns "" if the experiment, the job or a GPU decides, or
// if there is only one rank.
std::string describe_threads(const RunPlan& p, const PlanArguments& arguments) {
  if (p.experiment.run.threads > 0 || arguments.shared_cores == 0 || !arguments.device.empty() || arguments.ranks == 1)
    return "";
  return cat("\nthreads  ", arguments.threads, " of each rank, as if ", counted(arguments.ranks, "rank"),
             " shared the ", counted(arguments.shared_cores, "core"), " of this machine; run.threads=N plans for N\n");
}

// Adds a warning if `ranks` ranks need more memory than this node has, or than a limit of the job leaves. The ranks
// share the data sets, and only rank 0 writes a checkpoint.
void warn_of_memory(const RunPlan& p, const std::vector<MemoryItem>& memory, std::int64_t ranks,
                    std::vector<std::string>& warnings) {
  const std::int64_t once =
      dataset_bytes(p.train) + (p.has_validation ? dataset_bytes(p.validation) : 0) + checkpoint_bytes(p);
  std::int64_t of_rank_0 = 0;
  for (const MemoryItem& item : memory) of_rank_0 += item.bytes;
  const double needed = static_cast<double>(once) + static_cast<double>(of_rank_0 - once) * static_cast<double>(ranks);
  const std::optional<HostMemory> host = host_memory();
  if (!host || needed <= static_cast<double>(host->total)) return;
  warnings.push_back(cat(counted(ranks, "rank"), ranks == 1 ? " needs " : " need ", readable_bytes(needed),
                         " of memory, and ", host->is_limited ? "its limit (cgroup) is " : "this machine has ",
                         readable_bytes(host->total),
                         "; a smaller batch.micro, memory.recompute or fewer ranks on a node need less"));
}

}  // namespace

int plan(const PlanArguments& arguments) {
  const RunSource source_run = source_of_run(arguments.experiment, true);
  const ExperimentArguments& from = source_run.experiment;
  const Experiment experiment = read_experiment(from.path, from.overrides);
  const bool is_new_run = source_run.folder.empty();
  if (is_new_run) check_run_place(experiment);
  const DataConfig& data = experiment.data;
  const DatasetIndex train_index = planned_index(experiment, data.train, data.train_samples);
  DatasetIndex validation_index;
  if (!data.validation.empty()) validation_index = planned_index(experiment, data.validation, data.validation_samples);
  const int threads = experiment.run.threads > 0 ? static_cast<int>(experiment.run.threads) : arguments.threads;
  cuda::SavedPlans saved{.plan_cache = arguments.save_plans};
  const Machine machine = make_planning_machine(threads, arguments.device, experiment.machine.plan_cache,
                                                arguments.save_plans.empty() ? nullptr : &saved);
  Backend* backend = machine.backend.get();
  const RunPlan p = plan_of_new_run(experiment, train_index, data.validation.empty() ? nullptr : &validation_index,
                                    static_cast<int>(arguments.ranks), *backend);
  check_replay(p, p.branch.position);
  const std::vector<MemoryItem> memory = rank_memory(p, *backend);
  const std::string traffic = machine.fusions ? plan_traffic(p, machine) : "";
  std::string text = cat(arguments.all ? to_yaml(experiment) : effective_yaml(experiment, train_index.content()), '\n',
                         describe_run(p, backend->describe(), memory));
  for (const std::string& table :
       {describe_batch_course(p), describe_learning_rate(p), describe_stages(p, *backend), owner_table(p, *backend),
        describe_fixed_order(p, *backend, machine.device == nullptr), describe_memory_choices(p, *backend),
        describe_parameters(p), describe_memory(memory)})
    if (!table.empty()) text += cat('\n', table);
  std::printf("%s%s", text.c_str(), traffic.c_str());
  std::vector<std::string> warnings = plan_warnings(p);
  if (arguments.device.empty() && experiment.machine.device != "cuda")
    warn_of_memory(p, memory, arguments.ranks_here, warnings);
  // The nodes of other ranks, and those of a described GPU, may have more CPUs.
  if (const std::string turns = threads_take_turns(threads, arguments.threads, arguments.cpu_quota);
      arguments.for_this_job && arguments.device.empty() && !turns.empty())
    warnings.push_back(turns);
  if (const std::string taken = is_new_run ? why_folder_is_taken(experiment) : ""; !taken.empty())
    warnings.push_back(taken);
  std::printf("%s%s", describe_threads(p, arguments).c_str(), describe_time(p, arguments, warnings).c_str());
  if (!arguments.save_plans.empty()) {
    save_plans(p, arguments.device, saved);
    std::printf("\ncuDNN's plans  %lld, and %lld refusals, in %s\n", static_cast<long long>(saved.found()),
                static_cast<long long>(saved.refused()), saved.folder.c_str());
  }
  std::fflush(stdout);
  for (const std::string& warning : warnings) log_warning(warning);
  return 0;
}

}  // namespace ringtrain
