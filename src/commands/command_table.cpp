// The table of the commands of `ringtrain`, with their command lines.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/machine_share.h"
#include "base/text.h"
#include "cli/command_line.h"
#include "cluster/binding.h"
#include "cluster/launcher.h"
#include "commands/commands.h"

namespace ringtrain {
namespace {

constexpr const char* an_experiment = "EXPERIMENT.yaml [key.path=value ...]";
constexpr const char* an_experiment_or_run = "EXPERIMENT.yaml|RUN_FOLDER [key.path=value ...]";
constexpr const char* any_source = "RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml [key.path=value ...]";

// The arguments of a command, with the operands as they were typed.
template <class T>
struct Typed : T {
  std::vector<std::string> words;
};
template <class T>
std::shared_ptr<Typed<T>> typed() {
  return std::make_shared<Typed<T>>();
}

constexpr std::uint64_t largest_batch = 1 << 24;  // of a rank
constexpr double most_gib = 1e6;

constexpr bool one_process = true, all_ranks = false;  // Command::for_one_process

int own_threads(const Session* session) {
  return session != nullptr ? session->available_threads() : usable_cpus();
}

// As Session::cpu_quota().
std::optional<double> own_quota(const Session* session) {
  if (session != nullptr) return session->cpu_quota();
  const double quota = quota_share();
  return quota <= static_cast<double>(own_cpus().size()) ? std::optional(quota) : std::nullopt;
}

// Sets the threads and the ranks on this node. Without a launcher, the ranks are assumed to share this machine, with at
// most one rank on each core.
void assume_node(PlanArguments& arguments, const Session* session) {
  arguments.threads = own_threads(session);
  arguments.cpu_quota = own_quota(session);
  if (session != nullptr) arguments.ranks_here = std::min<std::int64_t>(arguments.ranks, session->node_size());
  if (launcher_name() != "none") return;
  const std::vector<int> cpus = own_cpus();
  const std::vector<int> cores = cores_of(cpus);
  arguments.threads = whole_cpus(cpus_of_each_rank(cpus.size(), cores.size(), arguments.ranks),
                                 quota_share() / static_cast<double>(arguments.ranks));
  arguments.ranks_here = std::min(arguments.ranks, static_cast<std::int64_t>(cores.size()));
  arguments.shared_cores = std::ssize(cores);
}

// Returns a path and overrides. `what` names the operand of the command in messages. If it is null, the path may be
// missing.
ExperimentArguments experiment_of(const CLI::App& command, const std::vector<std::string>& words, const char* what) {
  const std::string own = cat("ringtrain ", command.get_name());
  ExperimentArguments e;
  for (const std::string& word : words) {
    const bool is_override = word.find('=') != std::string::npos;
    if (is_override)
      e.overrides.push_back(word);
    else if (e.path.empty())
      e.path = word;
    else
      throw Error(cat(own, ": '", word, "' is a second file; expected key.path=value"), own + " --help");
  }
  if (e.path.empty() && !e.overrides.empty())
    throw Error(cat(own, ": ", e.overrides[0], " changes a key, but no experiment is given"), own + " --help");
  if (e.path.empty() && what != nullptr) throw Error(cat(own, " needs ", what), own + " --help");
  return e;
}

// An option whose value is a whole number from 1 on.
CLI::Option* add_count(CLI::App& command, const std::string& name, std::int64_t& value, const std::string& help,
                       std::uint64_t most = most_counted, const std::string& form = "N") {
  return command.add_option(name, value, help)->type_name(form)->check(whole_number(1, most));
}

// An option whose value is a number from 0 on.
void add_number(CLI::App& command, const std::string& name, double& value, const std::string& help,
                const std::string& form, double most = 9e15) {
  command.add_option(name, value, help)->type_name(form)->check(number(0, most));
}

// An option whose value is a file that must end in `ending`.
CLI::Option* add_file(CLI::App& command, const std::string& name, std::string& path, const std::string& help,
                      const std::string& form, const std::string& ending) {
  return command.add_option(name, path, help)->type_name(form + ending)->check(file_that_ends_in(ending));
}

Command declare_train(CommandLine& program, const std::vector<std::string>& command_line) {
  CLI::App& c = program.add(
      "train",
      "Trains on all ranks that mpirun or srun starts. SIGTERM, SIGUSR1 and Ctrl-C end the run with a checkpoint and "
      "exit code 85.");
  const auto a = typed<TrainArguments>();
  add_operands(c, a->words, an_experiment_or_run);
  c.add_flag(
      "--resume", a->resume,
      "continues the run in RUN_FOLDER. With EXPERIMENT.yaml, continues the run that run.dir or run.id names, or the "
      "newest run of the experiment's name");
  add_count(c, "--pause-after", a->pause_after, "pauses the run after this number of samples, with a checkpoint",
            most_counted, "SAMPLES");
  c.add_option("--report", a->report, "writes how the run has ended to this file, for the study that it is a trial of")
      ->type_name("FILE.json");
  c.add_flag("--shares-node", a->shares_node, "other runs use the node at the same time: its energy is not measured");
  return {&c, all_ranks, true, [a, &c, command_line](Session* session) {
            a->experiment = experiment_of(c, a->words, "an experiment file or, with --resume, a run's folder");
            a->command_line = command_line;
            return train(*a, *session);
          }};
}

Command declare_plan(CommandLine& program) {
  CLI::App& c = program.add("plan",
                            "Checks everything without training. Prints the resolved experiment, the batch arithmetic, "
                            "the learning rate, the parameters and the memory. RUN_FOLDER stands for the experiment of "
                            "that run.");
  const auto a = typed<PlanArguments>();
  a->ranks = 0;
  add_operands(c, a->words, an_experiment_or_run);
  add_count(c, "--ranks", a->ranks, "plan for this number of ranks [those of this job]", most_ranks);
  c.add_option(
       "--device", a->device,
       "plans for a GPU that this machine need not have: a100, h100, h200, b200 or a file that describes one. "
       "Shows the memory on that GPU and the bytes that a step moves. machine.plan_cache=FOLDER uses the kernels "
       "that a run on such a GPU has timed")
      ->type_name("GPU");
  c.add_option("--save-plans", a->save_plans,
               "builds cuDNN's plans for that GPU and saves them in this folder, which a run there takes as "
               "machine.plan_cache")
      ->type_name("FOLDER")
      ->needs("--device");
  add_list(c, "--preflight", a->preflight, "FILE,...",
           "measurements of bench step --json, from which the time of the run is estimated");
  c.add_flag("--all", a->all, "prints keys that have no effect here, too");
  return {&c, one_process, false, [a, &c](Session* session) {
            const std::int64_t started = session != nullptr ? session->size() : 1;
            if (a->ranks == 0) a->ranks = started;
            a->for_this_job = a->ranks == started;
            assume_node(*a, session);
            a->experiment = experiment_of(c, a->words, "an experiment file or a run's folder");
            return plan(*a);
          }};
}

Command declare_evaluate(CommandLine& program) {
  CLI::App& c = program.add("evaluate", "Runs the validation set once, on all ranks: loss and accuracy.");
  const auto a = typed<EvaluateArguments>();
  add_operands(c, a->words, any_source);
  c.add_option("--weights", a->weights, "weights from this file instead of the checkpoint")
      ->type_name("FILE.safetensors");
  c.add_option("--json", a->json, "writes the result to this file")->type_name("FILE");
  CLI::Option* logits = add_file(c, "--logits", a->logits,
                                 "writes inputs and logits of the first samples, to compare with another program",
                                 "FILE", ".safetensors");
  add_count(c, "--samples", a->samples, cat("number of samples in --logits [", a->samples, "]"))->needs(logits);
  return {&c, all_ranks, false, [a, &c](Session* session) {
            a->experiment = experiment_of(c, a->words, "an experiment, a checkpoint or a run's folder");
            return evaluate(*a, *session);
          }};
}

Command declare_export(CommandLine& program) {
  CLI::App& c = program.add(
      "export", "Writes the weights as safetensors with PyTorch's names. For images they are torchvision's names.");
  const auto a = typed<ExportArguments>();
  add_operands(c, a->words, any_source);
  add_file(c, "--out", a->out, "the file to write", "FILE", ".safetensors")->required();
  c.add_flag("--force", a->force, "overwrites that file, even if export has not written it");
  c.add_option("--dtype", a->dtype, "type of the numbers [fp32]")
      ->type_name("fp32|fp16|bf16")
      ->check(one_of({"fp32", "fp16", "bf16"}));
  CLI::Option* best = c.add_flag_callback(
      "--best", [a] { a->which = WhichCheckpoint::best; }, "the best checkpoint [the default, where there is one]");
  c.add_flag_callback(
       "--newest", [a] { a->which = WhichCheckpoint::newest; }, "the newest checkpoint")
      ->excludes(best);
  return {&c, one_process, false, [a, &c](Session*) {
            a->experiment = experiment_of(c, a->words, "an experiment, a checkpoint or a run's folder");
            return export_weights(*a);
          }};
}

Command declare_import(CommandLine& program) {
  CLI::App& c = program.add("import",
                            "Makes a run from the weights of another program. Checks that the weights fit the "
                            "experiment's model. The run is at step 0. Evaluate it, or train it with train --resume.");
  const auto a = typed<ImportArguments>();
  add_operands(c, a->words, "FILE.safetensors EXPERIMENT.yaml [key.path=value ...]");
  CLI::Option* out = add_file(c, "--out", a->out, "writes a checkpoint instead of a run's folder", "CHECKPOINT", ".h5");
  c.add_flag("--force", a->force, "overwrites that checkpoint")->needs(out);
  add_count(
      c, "--classes", a->classes,
      "for fine-tuning on other pictures: the last layer begins anew, with the N classes of the experiment's data");
  return {&c, one_process, false, [a, &c](Session*) {
            if (a->words.empty())
              throw Error("ringtrain import needs a .safetensors file and an experiment", "ringtrain import --help");
            a->weights = a->words[0];
            a->experiment = experiment_of(c, {a->words.begin() + 1, a->words.end()}, "an experiment file");
            return import_weights(*a);
          }};
}

Command declare_sample(CommandLine& program) {
  CLI::App& c = program.add("sample", "Invents names, or writes text. Names that the data has are marked *.");
  const auto a = typed<SampleArguments>();
  add_operands(c, a->words, any_source);
  add_count(c, "--count", a->count, "number of names or texts [20]");
  add_number(c, "--temperature", a->temperature, "divides the logits: below 1 is safer, above 1 is wilder [1]", "T");
  c.add_option("--seed", a->seed, "seed of the random draws [1]")->type_name("N")->check(whole_number(0, any_seed));
  c.add_flag("--new-only", a->new_only, "leaves out names that the data has, and repeated names");
  c.add_option("--prompt", a->prompt, "the beginning of every name or text")->type_name("TEXT");
  add_count(c, "--length", a->length, cat("symbols of running text [", default_sample_length, "]"));
  return {&c, one_process, false, [a, &c](Session*) {
            a->source = experiment_of(c, a->words, "an experiment, a checkpoint or a run's folder");
            return sample(*a);
          }};
}

// Takes the kinds of measurement from the first operands of bench.
std::vector<std::string> take_kinds(std::vector<std::string>& words) {
  const std::vector<std::string> known = {"start", "comm", "input", "step", "split", "utilisation", "components"};
  const auto last = std::ranges::find_if(
      words, [&](const std::string& word) { return std::ranges::find(known, word) == known.end(); });
  std::vector<std::string> kinds(words.begin(), last);
  words.erase(words.begin(), last);
  const bool names_other = kinds.empty() && !words.empty();
  if (kinds.empty())
    throw Error(cat("ringtrain bench",
                    names_other ? cat(": '", words[0], "' is not a kind of measurement, expected ") : " needs ",
                    "one or more of start, comm, input, step, split, utilisation and components"),
                "ringtrain bench --help");
  return kinds;
}

Command declare_bench(CommandLine& program) {
  CLI::App& c = program.add(
      "bench",
      "Measures how fast the ranks of this job start, communicate, read data and train. Also compares the nodes' "
      "clocks and versions, and names slow nodes.\n\n"
      "  start        how long the ranks take to begin, and what they read\n"
      "  comm         all-reduce; needs no experiment\n"
      "  input        reading the data set; which input a node needs (JPEGs or decoded pictures, loader threads)\n"
      "  step         a training step\n"
      "  split        a pipeline with other split sizes (batch.micro) and cuts; names the fastest\n"
      "  utilisation  steps of growing batches, up to the one that does not fit; without an experiment, of a CNN\n"
      "               with three convolutions\n"
      "  components   what storage, decoding, augmentation, copies, computing and all-reduce cost a step\n\n"
      "results/plot_bench.py draws the tables of the last three.");
  const auto a = typed<BenchArguments>();
  add_operands(c, a->words,
               "start|comm|input|step|split|utilisation|components ... [EXPERIMENT.yaml] [key.path=value ...]");
  c.add_option("--json", a->json, "adds the results to this file of the same hosts and ranks, which predict reads")
      ->type_name("FILE");
  c.add_option("--seconds", a->seconds, "about how long each kind is measured [10]")
      ->type_name("S")
      ->check(number(0.01, 1e6));
  add_number(c, "--link-gbit", a->link_gbit, "rated bandwidth of the network between nodes, Gbit/s", "G");
  add_number(c, "--wanted", a->wanted,
             "input: samples per second that a node should load [those of the measured steps]", "RATE");
  add_number(c, "--limit-gib", a->limit_gib, "utilisation: memory of a rank [memory.limit_gib, or what is free]", "G",
             most_gib);
  add_count(c, "--largest", a->largest, "utilisation: the largest batch of a rank [the largest that fits]",
            largest_batch);
  add_file(c, "--csv", a->csv, "writes the table of split, utilisation or components", "FILE", ".csv");
  return {&c, all_ranks, false, [a, &c](Session* session) {
            a->kinds = take_kinds(a->words);
            const auto count = [&](std::string_view kind) { return std::ranges::count(a->kinds, kind); };
            if (!a->csv.empty() && count("split") + count("utilisation") + count("components") != 1)
              throw Error("--csv takes one table: that of split, of utilisation or of components",
                          "ringtrain bench --help");
            const bool needs_experiment = std::ranges::any_of(
                a->kinds, [](const std::string& kind) { return kind != "comm" && kind != "utilisation"; });
            a->experiment = experiment_of(c, a->words, needs_experiment ? "an experiment file" : nullptr);
            return bench(*a, *session);
          }};
}

Command declare_predict(CommandLine& program) {
  CLI::App& c = program.add(
      "predict",
      "Predicts throughput and efficiency on other numbers of ranks, from the measurements of bench --json. "
      "results/plot_bench.py draws what --csv writes.");
  const auto a = typed<PredictArguments>();
  a->preflight = {"preflight.json"};
  add_operands(c, a->words, an_experiment);
  c.add_option("--ranks", a->ranks, cat("1..4096: doubling; 1,2,48: these [", a->ranks, "]"))->type_name("RANKS");
  add_list(c, "--preflight", a->preflight, "FILE,...", "measurements that the model is fitted on [preflight.json]");
  add_list(c, "--check", a->check, "FILE,...", "measurements to compare with");
  add_count(c, "--ranks-per-node", a->ranks_per_node, "ranks on each node [as measured]", most_ranks);
  add_count(c, "--cores-per-node", a->cores_per_node, "cores of each node [as measured]", most_ranks);
  add_count(c, "--rows-per-rank", a->rows_per_rank, "weak scaling: samples of each rank in a step [as measured]",
            largest_batch);
  add_number(c, "--latency-us", a->latency_us, "latency of a network that was not measured; needs --link-gbit", "L");
  add_number(c, "--link-gbit", a->link_gbit, "rated bandwidth of a network that was not measured, Gbit/s", "G");
  c.add_option("--csv", a->csv, "writes the table, with the measured steps")->type_name("FILE");
  c.add_option("--json", a->json, "writes the table, the fitted model and the comparisons")->type_name("FILE");
  return {&c, one_process, false, [a, &c](Session*) {
            a->experiment = experiment_of(c, a->words, "an experiment file");
            return predict(*a);
          }};
}

// Reads K/N, such as "3/16", with 0 <= K <= N.
void read_share(const std::string& text, StudyArguments& arguments) {
  const std::vector<std::string> parts = split(text, '/');
  std::int64_t k = -1, n = -1;
  if (parts.size() != 2 || !read_number(parts[0], k) || !read_number(parts[1], n) || n < 1 || k < 0 || k > n)
    throw Error(cat("--index is '", text, "'; expected K/N, a share from 1/N to N/N"), "ringtrain study --help");
  arguments.share = k;
  arguments.shares = n;
}

Command declare_study(CommandLine& program, const std::vector<std::string>& command_line) {
  CLI::App& c = program.add(
      "study",
      "Runs the trials of a study, as many side by side as fit. Starts the ranks of each trial itself, with srun in a "
      "Slurm job and with mpirun elsewhere. Each trial is a run in results/STUDY/TRIAL (configs/studies/README.md). "
      "Signals end it as they end train.");
  const auto a = typed<StudyArguments>();
  add_operands(c, a->words, "STUDY.yaml [key.path=value ...]");
  CLI::Option* resume =
      c.add_flag("--resume", a->resume,
                 "continues trials that this job or another one has begun; finished trials stay as they are");
  c.add_option_function<std::string>(
       "--index", [a](const std::string& text) { read_share(text, *a); },
       "runs share K of N of the trials, as one job of an array")
      ->type_name("K/N");
  add_count(c, "--ranks", a->ranks,
            "number of ranks that work at the same time [one for each task of the Slurm job, or for each GPU or core]",
            most_ranks);
  c.add_option("--launcher", a->launcher,
               "how to start ranks: srun, mpirun or mpiexec and options of it, such as 'srun --mpi=pmix'")
      ->type_name("COMMAND");
  add_list(c, "--preflight", a->preflight, "FILE,...", "measurements that say how long a step takes");
  c.add_flag(
       "--plan", a->plan_only,
       "trains nothing: checks every trial, and shows their number, batch arithmetic and, from preflight files or "
       "trials that have run, the time to expect")
      ->excludes(resume);
  c.add_option("--device", a->device, "with --plan: plans for this GPU, which need not be here (ringtrain plan --help)")
      ->type_name("GPU");
  return {&c, one_process, false, [a, &c, command_line](Session* session) {
            a->command_line = command_line;
            a->threads = own_threads(session);
            a->study = experiment_of(c, a->words, "a study file");
            return a->plan_only ? plan_study(*a) : study(*a);
          }};
}

}  // namespace

std::vector<Command> declare_commands(CommandLine& program, const std::vector<std::string>& command_line) {
  return {declare_train(program, command_line),
          declare_plan(program),
          declare_evaluate(program),
          declare_export(program),
          declare_import(program),
          declare_sample(program),
          declare_bench(program),
          declare_predict(program),
          declare_study(program, command_line)};
}

}  // namespace ringtrain
