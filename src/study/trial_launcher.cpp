#include "study/trial_launcher.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <sstream>

#include "backend/cuda/device/libraries.h"
#include "base/child_process.h"
#include "base/error.h"
#include "base/machine_share.h"
#include "cluster/binding.h"
#include "cluster/launcher.h"

namespace ringtrain {
namespace {

struct FreeNode {
  std::vector<std::size_t> free;  // places of its free slots
  std::int64_t size = 0;          // all of its slots
};

// Returns the cores of this process with their CPUs. With a quota of CPU time, the last cores are left out.
std::vector<std::vector<int>> own_cores() {
  const std::vector<int> cpus = own_cpus();
  std::vector<int> firsts;
  std::vector<std::vector<int>> cores;
  for (const int cpu : cpus) {
    const int first = cores_of({cpu}).front();
    const auto known = std::ranges::find(firsts, first);
    if (known == firsts.end()) {
      firsts.push_back(first);
      cores.push_back({cpu});
    } else {
      cores[static_cast<std::size_t>(known - firsts.begin())].push_back(cpu);
    }
  }
  for (auto left = static_cast<std::ptrdiff_t>(cpus.size()); cores.size() > 1;) {
    left -= std::ssize(cores.back());
    if (left < usable_cpus()) break;
    cores.pop_back();
  }
  return cores;
}

}  // namespace

Slots::Slots(std::vector<Slot> slots) : slots_(std::move(slots)), taken_(slots_.size(), 0) {}

std::optional<std::vector<std::size_t>> Slots::take(std::int64_t ranks) {
  std::vector<FreeNode> nodes;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (i == 0 || slots_[i].node != slots_[i - 1].node) nodes.emplace_back();
    ++nodes.back().size;
    if (!taken_[i]) nodes.back().free.push_back(i);
  }
  const bool fits = std::ranges::any_of(nodes, [&](const FreeNode& node) { return node.size >= ranks; });
  if (fits) std::erase_if(nodes, [&](const FreeNode& node) { return std::ssize(node.free) < ranks; });
  std::ranges::stable_sort(nodes, [&](const FreeNode& a, const FreeNode& b) {
    return fits ? a.free.size() < b.free.size() : a.free.size() > b.free.size();
  });
  std::vector<std::size_t> places;
  for (const FreeNode& node : nodes)
    for (const std::size_t place : node.free)
      if (std::ssize(places) < ranks) places.push_back(place);
  if (std::ssize(places) < ranks) return std::nullopt;
  std::ranges::sort(places);
  for (const std::size_t place : places) taken_[place] = 1;
  return places;
}

void Slots::give_back(const std::vector<std::size_t>& places) {
  for (const std::size_t place : places) taken_[place] = 0;
}

std::vector<Slot> slots_of_machine(std::int64_t count, int gpus) {
  const std::vector<std::vector<int>> cores = own_cores();
  if (count == 0) count = gpus > 0 ? gpus : std::ssize(cores);
  const std::int64_t each = std::max<std::int64_t>(1, std::ssize(cores) / count);
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < count; ++i) {
    Slot& slot = slots.emplace_back();
    for (std::int64_t c = i * each; c < (i + 1) * each; ++c) {
      const std::vector<int>& core = cores[static_cast<std::size_t>(c % std::ssize(cores))];
      slot.cpus.insert(slot.cpus.end(), core.begin(), core.end());
    }
    std::ranges::sort(slot.cpus);
    if (gpus > 0) slot.gpu = static_cast<int>(i % gpus);
  }
  return slots;
}

std::vector<int> numbers_of_nodes(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int number = 0, times = 1;
    const char* const last = part.data() + part.size();
    auto at = std::from_chars(part.data(), last, number);
    const bool repeats = at.ec == std::errc() && std::string_view(at.ptr, last).starts_with("(x");
    if (repeats) at = std::from_chars(at.ptr + 2, last, times);
    if (at.ec != std::errc() || std::string_view(at.ptr, last) != (repeats ? ")" : "") || number < 1 || times < 1)
      throw Error(cat("Slurm says '", text, "' of the job's nodes, expected numbers such as 4(x2),3"));
    numbers.insert(numbers.end(), static_cast<std::size_t>(times), number);
  }
  return numbers;
}

std::vector<Slot> slots_of_job(const std::vector<std::string>& hosts, const std::string& tasks, std::int64_t count) {
  const std::vector<int> numbers = numbers_of_nodes(tasks);
  std::vector<Slot> slots;
  for (std::size_t n = 0; n < std::min(hosts.size(), numbers.size()); ++n)
    slots.insert(slots.end(), static_cast<std::size_t>(numbers[n]), {hosts[n], {}, -1});
  if (count > std::ssize(slots))
    throw Error(cat("--ranks is ", count, ", and the Slurm job has ", slots.size(), " tasks"),
                "leave it out to use all of them, or ask for more with --ntasks-per-node");
  if (count > 0) slots.resize(static_cast<std::size_t>(count));
  return slots;
}

namespace {

namespace fs = std::filesystem;

// Returns the mpirun that MPIRUN names, or that of MPI_HOME, or the one in this program's folder (a bundle has it), or
// the one in PATH.
std::string own_mpirun() {
  if (const std::string named = environment_text("MPIRUN"); !named.empty()) return named;
  if (const std::string home = environment_text("MPI_HOME"); !home.empty()) return home + "/bin/mpirun";
  const fs::path beside = fs::path(own_executable()).parent_path() / "mpirun";
  std::error_code ignored;
  return fs::exists(beside, ignored) ? beside.string() : "mpirun";
}

std::vector<std::string> words_of(const std::string& given) {
  std::istringstream in(given);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (words.empty()) words.push_back(slurm_job().in_slurm() ? "srun" : own_mpirun());
  const std::string name = fs::path(words[0]).filename();
  if (name != "srun" && !name.starts_with("mpirun") && !name.starts_with("mpiexec"))
    throw Error(cat("--launcher is '", given, "', expected srun, mpirun or mpiexec, and options of it"),
                "leave it out: inside a Slurm job the trials start with srun, elsewhere with mpirun");
  if (!can_start(words[0]))
    throw Error(cat("there is no program ", words[0], ", which starts the trials of a study"),
                name == "srun" ? "start the study where srun is, or choose --launcher mpirun"
                               : "load the module of your MPI, or name its mpirun in MPIRUN or --launcher");
  return words;
}

// Returns the names of the job's nodes. Only Slurm can expand node[1-3].
std::vector<std::string> hosts_of_job() {
  std::istringstream lines(output_of("scontrol show hostnames").value_or(""));
  std::vector<std::string> hosts;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) hosts.push_back(line);
  if (hosts.empty())
    throw Error("scontrol does not name the nodes of this Slurm job", "start the study where scontrol and srun are");
  return hosts;
}

std::vector<Slot> slots_for(bool is_srun, std::int64_t ranks, std::size_t gpus) {
  const SlurmJob job = slurm_job();
  if (is_srun) {
    if (!job.in_slurm()) throw Error("--launcher is srun, and there is no Slurm job", "start the study inside a job");
    return slots_of_job(hosts_of_job(), environment_text("SLURM_TASKS_PER_NODE"), ranks);
  }
  if (job.in_slurm() && environment_number("SLURM_JOB_NUM_NODES") > 1)
    throw Error(cat("mpirun starts the trials of a study on one node, and this Slurm job has ",
                    environment_number("SLURM_JOB_NUM_NODES")),
                "start them with srun, or run the study as an array of jobs of one node each (--index)");
  if (job.in_slurm() && ranks == 0) ranks = environment_number("SLURM_NTASKS");
  return slots_of_machine(ranks, static_cast<int>(gpus));
}

// Returns what a task of the first node has.
TaskShare share_of_task(bool uses_gpus) {
  TaskShare share;
  const int tasks = numbers_of_nodes(environment_text("SLURM_TASKS_PER_NODE")).at(0);
  const std::string cpus = environment_text("SLURM_JOB_CPUS_PER_NODE");
  share.cpus = environment_number("SLURM_CPUS_PER_TASK");
  if (share.cpus == 0 && !cpus.empty()) share.cpus = std::max(1, numbers_of_nodes(cpus).at(0) / tasks);
  share.cpus = std::max(1, share.cpus);
  if (const int gpus = environment_number("SLURM_GPUS_ON_NODE"); uses_gpus && gpus > 0)
    share.gpus = std::max(1, gpus / tasks);
  return share;
}

}  // namespace

TrialLauncher::TrialLauncher(const std::string& given, std::int64_t ranks, bool uses_gpus)
    : given_(words_of(given)),
      is_srun_(fs::path(given_[0]).filename() == "srun"),
      gpus_(uses_gpus && !is_srun_ ? cuda::visible_uuids() : std::vector<std::string>()),
      slots_(slots_for(is_srun_, ranks, gpus_.size())) {
  if (is_srun_) share_ = share_of_task(uses_gpus);
}

int TrialLauncher::threads() const {
  return is_srun_ ? share_.cpus : static_cast<int>(slots_[0].cpus.size());
}

// Each step asks for its own part of the nodes, so that Slurm runs the steps side by side. With --mem=0 they share the
// memory of the job.
std::vector<std::string> TrialLauncher::with_srun(const std::vector<std::size_t>& places) const {
  std::vector<std::string> nodes;
  std::vector<std::int64_t> counts;
  for (const std::size_t place : places) {
    const std::string& node = slots_[place].node;
    if (nodes.empty() || nodes.back() != node) {
      nodes.push_back(node);
      counts.push_back(0);
    }
    ++counts.back();
  }
  const std::int64_t most = std::ranges::max(counts);
  std::vector<std::string> words = given_;
  for (const std::string& word :
       {std::string("--exact"), std::string("--mem=0"), std::string("--input=none"),
        std::string("--kill-on-bad-exit=1"), cat("--nodes=", nodes.size()), cat("--nodelist=", joined(nodes, ",")),
        cat("--ntasks=", places.size()), cat("--ntasks-per-node=", most), cat("--cpus-per-task=", share_.cpus),
        share_.gpus > 0 ? cat("--gres=gpu:", most * share_.gpus) : std::string("--gres=none")})
    words.push_back(word);
  return words;
}

std::unique_ptr<ChildProcess> TrialLauncher::start(const std::vector<std::size_t>& places,
                                                   const std::vector<std::string>& words,
                                                   const std::string& output) const {
  const std::string program = own_executable();
  std::map<std::string, std::string> environment;
  std::vector<std::string> command;
  const auto add_program = [&] {
    command.push_back(program);
    command.insert(command.end(), words.begin(), words.end());
  };
  if (is_srun_) {
    command = with_srun(places);
    add_program();
    // The job's own numbers of tasks, CPUs and GPUs would count for each step.
    for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
                             "SRUN_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
                             "SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_GPU"})
      environment[name] = "";
    return std::make_unique<ChildProcess>(command, output, environment);
  }

  // Each rank gets its CPUs from taskset. Open MPI itself would bind the ranks of every trial to the first cores, or to
  // cores that this process may not use.
  command = given_;
  bool shares = false;  // whether there are more slots than cores
  for (std::size_t i = 1; i < static_cast<std::size_t>(slots_.count()); ++i)
    shares = shares || slots_[i].cpus == slots_[0].cpus;
  if (mpi_version().starts_with("Open MPI")) {
    command.insert(command.end(), {"--bind-to", "none"});
    if (::getuid() == 0) command.push_back("--allow-run-as-root");
    if (shares) command.push_back("--oversubscribe");
  }
  if (shares) environment["OMPI_MCA_mpi_yield_when_idle"] = "1";  // read by this program, too
  std::vector<std::string> gpus;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Slot& slot = slots_[places[i]];
    if (i > 0) command.push_back(":");
    command.insert(command.end(), {"-n", "1", "taskset", "-c", cpu_list(slot.cpus)});
    add_program();
    if (slot.gpu < 0) continue;
    const std::string& uuid = gpus_[static_cast<std::size_t>(slot.gpu)];
    if (std::ranges::count(gpus, uuid) == 0) gpus.push_back(uuid);
  }
  if (!gpus.empty()) environment["CUDA_VISIBLE_DEVICES"] = joined(gpus, ",");
  return std::make_unique<ChildProcess>(command, output, environment);
}

}  // namespace ringtrain
