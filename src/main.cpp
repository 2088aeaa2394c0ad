// The command line: what each command takes, which ranks do its work, and the one place where errors end the job.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <tuple>

#include "backend/cuda/device/planner.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/utf8.h"
#include "cluster/binding.h"
#include "cluster/on_rank_0.h"
#include "cluster/session.h"
#include "cluster/slurm_job.h"
#include "commands/command_line.h"
#include "commands/commands.h"
#include "run/library_versions.h"

namespace ringtrain {
namespace {

constexpr const char* usage = R"(ringtrain: large-batch training over MPI

  ringtrain train EXPERIMENT.yaml [key.path=value ...] [--resume]
      Trains on all ranks that mpirun or srun starts. --resume goes on in the run's folder (run.dir, run.id, or the
      newest run of this name). SIGTERM, SIGUSR1 and Ctrl-C stop with a checkpoint and exit code 85.
  ringtrain plan EXPERIMENT.yaml [--ranks N] [--device GPU] [key.path=value ...]
      Checks everything without training: resolved experiment, batch arithmetic, learning rate, parameters, memory.
      --device a100, h100, h200, b200 or a file that describes one: memory on that GPU, and the bytes that a step moves
      through it; it need not be here. machine.plan_cache=FOLDER: with the kernels that a search there has timed.
  ringtrain sample RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml [--count N] [--temperature T] [--seed S] [--new-only]
                   [--prompt TEXT] [--length N]
      Invents names (those that the data has are marked *), or writes text.
  ringtrain evaluate RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml [--weights FILE.safetensors] [key.path=value ...]
                     [--json FILE] [--logits FILE.safetensors [--samples N]]
      Runs the validation set once, on all ranks: loss and accuracy. --logits keeps what the model saw and said of the
      first N samples, to compare with another program.
  ringtrain export RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml --out FILE.safetensors [--dtype fp32|fp16|bf16]
                   [--best|--newest]
      Writes the weights with PyTorch's names (images: torchvision's). Without --best or --newest: the best if there
      is one.
  ringtrain import FILE.safetensors EXPERIMENT.yaml [key.path=value ...] [--out CHECKPOINT.h5]
      Checks the weights against the experiment's model and makes a run of them, at step 0, to evaluate or to
      train --resume.
  ringtrain bench start|comm|input|step ... [EXPERIMENT.yaml] [key.path=value ...] [--json FILE] [--seconds S] [--link-gbit G]
                  [--wanted RATE]
  ringtrain bench split EXPERIMENT.yaml [key.path=value ...] [--csv FILE.csv]
  ringtrain bench utilisation [EXPERIMENT.yaml] [key.path=value ...] [--limit-gib G] [--largest N] [--csv FILE.csv]
  ringtrain bench components EXPERIMENT.yaml [key.path=value ...] [--csv FILE.csv]
      Measures what the ranks of this job have: all-reduce, reading the data set, a training step (10 s each); also the
      nodes' clocks and versions, and which node is slow. comm needs no experiment. --json adds to a file. input says
      which input a node needs for RATE samples/s (else for its measured steps): JPEGs or a decoded data set, and how
      many loader threads. split: a pipeline with other split sizes (batch.micro) and cuts, the fastest of which it
      names. utilisation: training steps of growing batches, up to the one that does not fit, of a CNN with three
      convolutions where no experiment is given. components: what storage, decoding, augmentation, copies, computing and
      all-reduce cost a training step. results/plot_bench.py draws the last three.
  ringtrain predict EXPERIMENT.yaml [--ranks 1..4096] [--preflight FILE,...] [--check FILE,...] [key.path=value ...]
                    [--ranks-per-node N] [--cores-per-node N] [--rows-per-rank N] [--latency-us L --link-gbit G]
                    [--csv FILE] [--json FILE] [--svg FILE]
      Throughput and efficiency on other numbers of ranks, from what bench --json has written (preflight.json).
      --check: measurements to compare with. --latency-us, --link-gbit: a network that was not measured.
  ringtrain study STUDY.yaml [--resume] [--index K/N] [--preflight FILE,...] [key.path=value ...]
      Runs the trials of a study (configs/studies/README.md) on groups of the ranks that mpirun or srun starts, each as
      a run in results/STUDY/TRIAL. --resume: where trials have begun already, by this job or another; finished ones
      stay. --index: the share of one job of an array. Signals as for train.
  ringtrain study STUDY.yaml --plan [--index K/N] [--preflight FILE,...] [--device GPU] [key.path=value ...]
      Checks every trial and shows their number, batch arithmetic and, from preflight files or trials that have run, the
      time to expect.
  ringtrain --version | --help

train, evaluate, bench and study work on all ranks of a job. The other commands are for one process: in a job of several
ranks, rank 0 does their work.
--verbose, with any command: an error also says where in the code it was thrown (a run's run.json always does).

All keys: configs/README.md
)";

constexpr const char* any_source = "an experiment, a checkpoint or a run's folder";

// The commands. `session` is null where no MPI is needed: a command for one process, in a job of one process.

int run_train(CommandLine& line, Session* session) {
  TrainArguments t;
  t.resume = line.flag("--resume");
  t.command_line = line.whole();
  t.experiment = line.experiment();
  return train(t, *session);
}

int run_plan(CommandLine& line, Session* session) {
  PlanArguments p;
  p.ranks = line.integer("--ranks", session ? session->size() : 1, 1);
  p.threads = session ? session->available_threads() : static_cast<int>(own_cpus().size());
  p.device = line.option("--device", "");
  p.experiment = line.experiment();
  return plan(p);
}

int run_sample(CommandLine& line, Session*) {
  SampleArguments s;
  s.count = line.integer("--count", s.count, 1);
  s.temperature = line.number("--temperature", s.temperature, 0);
  s.seed = static_cast<std::uint64_t>(line.integer("--seed", 1, 0));
  s.new_only = line.flag("--new-only");
  s.prompt = line.option("--prompt", "");
  s.length = line.integer("--length", s.length, 1);
  s.source = line.experiment(any_source);
  return sample(s);
}

int run_evaluate(CommandLine& line, Session* session) {
  EvaluateArguments e;
  e.weights = line.option("--weights", "");
  e.json = line.option("--json", "");
  e.logits = line.output("--logits", ".safetensors");
  e.samples = line.integer("--samples", e.samples, 1);
  e.experiment = line.experiment(any_source);
  return evaluate(e, *session);
}

int run_export(CommandLine& line, Session*) {
  ExportArguments e;
  e.out = line.option("--out", "");
  e.dtype = line.option("--dtype", e.dtype);
  if (line.flag("--best")) e.which = WhichCheckpoint::best;
  if (line.flag("--newest")) e.which = WhichCheckpoint::newest;
  e.experiment = line.experiment(any_source);
  if (e.out.empty()) throw Error("ringtrain export needs --out FILE.safetensors", "ringtrain --help");
  return export_weights(e);
}

int run_import(CommandLine& line, Session*) {
  ImportArguments i;
  i.out = line.output("--out", ".h5");
  i.weights = line.file("a .safetensors file and an experiment");
  i.experiment = line.experiment();
  return import_weights(i);
}

int run_bench(CommandLine& line, Session* session) {
  BenchArguments b;
  b.kinds = line.words({"start", "comm", "input", "step", "split", "utilisation", "components"});
  if (b.kinds.empty())
    throw Error("ringtrain bench needs one or more of start, comm, input, step, split, utilisation and components",
                "ringtrain --help");
  b.json = line.option("--json", "");
  b.seconds = line.number("--seconds", b.seconds, 0.01);
  b.link_gbit = line.number("--link-gbit", 0, 0);
  b.wanted = line.number("--wanted", 0, 0);
  b.limit_gib = line.number("--limit-gib", 0, 0);
  b.largest = line.integer("--largest", 0, 1);
  b.csv = line.output("--csv", ".csv");
  const auto count = [&](std::string_view kind) { return std::ranges::count(b.kinds, kind); };
  if (!b.csv.empty() && count("split") + count("utilisation") + count("components") != 1)
    throw Error("--csv takes one table: that of split, of utilisation or of components", "ringtrain --help");
  const bool needs_experiment =
      std::ranges::any_of(b.kinds, [](const std::string& kind) { return kind != "comm" && kind != "utilisation"; });
  b.experiment = needs_experiment ? line.experiment() : line.experiment_if_any();
  return bench(b, *session);
}

int run_predict(CommandLine& line, Session*) {
  PredictArguments p;
  p.ranks = line.option("--ranks", p.ranks);
  p.preflight = line.list("--preflight", "preflight.json");
  p.check = line.list("--check", "");
  p.ranks_per_node = line.integer("--ranks-per-node", 0, 1);
  p.cores_per_node = line.integer("--cores-per-node", 0, 1);
  p.rows_per_rank = line.integer("--rows-per-rank", 0, 1);
  p.latency_us = line.number("--latency-us", 0, 0);
  p.link_gbit = line.number("--link-gbit", 0, 0);
  p.csv = line.option("--csv", "");
  p.json = line.option("--json", "");
  p.svg = line.option("--svg", "");
  p.experiment = line.experiment();
  return predict(p);
}

int run_study(CommandLine& line, Session* session) {
  StudyArguments s;
  s.plan_only = line.flag("--plan");
  s.resume = line.flag("--resume");
  s.command_line = line.whole();
  std::tie(s.share, s.shares) = line.share("--index");
  s.preflight = line.list("--preflight", "");
  s.threads = session ? session->available_threads() : static_cast<int>(own_cpus().size());
  s.device = line.option("--device", "");
  s.study = line.experiment("a study file");
  if (s.plan_only && s.resume) throw Error("ringtrain study: --plan or --resume, not both", "ringtrain --help");
  return s.plan_only ? plan_study(s) : study(s, *session);
}

enum class Work { of_all_ranks, of_one };

struct Command {
  const char* name;
  Work work;
  int (*run)(CommandLine&, Session*);
};

constexpr Command commands[] = {
    {"train", Work::of_all_ranks, run_train},       {"plan", Work::of_one, run_plan},
    {"evaluate", Work::of_all_ranks, run_evaluate}, {"export", Work::of_one, run_export},
    {"import", Work::of_one, run_import},           {"sample", Work::of_one, run_sample},
    {"bench", Work::of_all_ranks, run_bench},       {"predict", Work::of_one, run_predict},
    {"study", Work::of_all_ranks, run_study},       {"study --plan", Work::of_one, run_study}};

const Command& find_command(const std::string& name) {
  std::string known;
  for (const Command& command : commands) {
    if (name == command.name) return command;
    if (std::string_view(command.name).find(' ') == std::string_view::npos)
      known += cat(known.empty() ? "" : ", ", command.name);
  }
  throw Error(cat("unknown command '", name, "'; expected one of ", known), "ringtrain --help");
}

bool verbose = false;  // errors say where in the code they were thrown

void check_standard_output() {
  std::cout.flush();
  if (std::fflush(stdout) != 0 || !std::cout) throw Error("cannot write to standard output");
}

int run(int argc, char** argv) {
  CommandLine line(argc, argv);
  const std::string& name = line.command();
  if (name == cuda::planner_command) return cuda::run_planner();  // for `plan --device`, not for users
  if (name == "--version") {
    std::fputs(version_text().c_str(), stdout);
    return 0;
  }
  const bool asks_for_help = name == "--help" || name == "-h" || name == "help" || line.flag("--help");
  if (asks_for_help || name.empty()) {
    std::fputs(usage, asks_for_help ? stdout : stderr);
    return asks_for_help ? 0 : 2;
  }
  verbose = line.flag("--verbose");

  const Command& command = find_command(name == "study" && line.has("--plan") ? "study --plan" : name);
  const bool trains = command.run == run_train || (command.run == run_study && command.work == Work::of_all_ranks);
  if (trains) catch_signals();  // before MPI starts
  if (command.work == Work::of_one && launched_tasks() == 1) return command.run(line, nullptr);
  Session session(&argc, &argv);
  set_log_rank(session.rank(), session.host());
  const auto work = [&] {
    const int code = command.run(line, &session);
    check_standard_output();
    return code;
  };
  return session.finish(command.work == Work::of_one ? on_rank_0(work) : work());
}

// Says so with no more memory: what the operating system refuses once it may refuse again.
[[noreturn]] void report_no_memory() {
  const char* who = rank_label_text();
  char text[600];
  const int length =
      std::snprintf(text, sizeof text,
                    "ringtrain: error%s%s%s: out of memory: the operating system gave no more (std::bad_alloc)\n"
                    "  ringtrain plan shows what a rank needs: a smaller batch.micro, memory.recompute, fewer loader "
                    "threads or fewer ranks on a node need less; so does what else runs here\n",
                    *who != '\0' ? " (" : "", who, *who != '\0' ? ")" : "");
  if (::write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) _exit(1);
  if (job_size() <= 1) _exit(1);
  abort_job(1);
}

// An error that all ranks see (a bad file) is printed once: the others give rank 0 time to end the job, which reaches
// them as SIGTERM.
[[noreturn]] void report(const std::exception& error) {
  const std::string who = rank_label();
  if (!who.empty() && who.rfind("rank 0 ", 0) != 0) {
    for (int tenth = 0; tenth < 20 && requested_signal() == 0; ++tenth) usleep(100'000);
    if (requested_signal() != 0) abort_job(1);
  }
  std::string text = cat("ringtrain: error", who.empty() ? "" : " (" + who + ")", ": ", error.what(), "\n");
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own != nullptr && !own->hint().empty()) text += cat("  ", own->hint(), "\n");
  if (verbose)
    text += own != nullptr ? cat("  thrown at ", thrown_at(error), "\n") : "  thrown by a library of this program\n";
  std::fflush(stdout);
  std::fputs(printable(text).c_str(), stderr);
  std::fflush(stderr);
  if (job_size() <= 1) {
    std::fflush(nullptr);
    _exit(1);  // nobody else to end: MPI_Abort's banner would bury the message
  }
  abort_job(1);
}

// An exception that no thread has caught, e.g. out of memory in a parallel region.
[[noreturn]] void report_uncaught() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    report_no_memory();
  } catch (const std::exception& error) {
    report(error);
  } catch (...) {
  }
  std::abort();
}

}  // namespace
}  // namespace ringtrain

int main(int argc, char** argv) {
  std::set_terminate(ringtrain::report_uncaught);
  try {
    const int code = ringtrain::run(argc, argv);
    ringtrain::check_standard_output();
    return code;
  } catch (const std::bad_alloc&) {
    ringtrain::report_no_memory();
  } catch (const std::exception& error) {
    try {
      ringtrain::report(error);
    } catch (const std::bad_alloc&) {
      ringtrain::report_no_memory();
    }
  }
}
