// The command line, and the one place where errors end the job.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>

#include "backend/cuda/device/planner.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "cluster/session.h"
#include "commands/commands.h"
#include "run/library_versions.h"

namespace ringtrain {
namespace {

const char* usage =
    "ringtrain: large-batch training over MPI\n"
    "\n"
    "  ringtrain train EXPERIMENT.yaml [key.path=value ...] [--resume]\n"
    "      Trains on all ranks that mpirun or srun starts. --resume goes on in the run's folder (run.dir, run.id, or "
    "the\n"
    "      newest run of this name). SIGTERM, SIGUSR1 and Ctrl-C stop with a checkpoint and exit code 85.\n"
    "  ringtrain plan EXPERIMENT.yaml [--ranks N] [--device GPU] [key.path=value ...]\n"
    "      Checks everything without training: resolved experiment, batch arithmetic, learning rate, parameters, "
    "memory.\n"
    "      --device a100, h100, h200, b200 or a file that describes one: memory on that GPU; it need not be here.\n"
    "  ringtrain sample RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml [--count N] [--temperature T] [--seed S] "
    "[--new-only]\n"
    "                   [--prompt TEXT] [--length N]\n"
    "      Invents names (those that the data has are marked *), or writes text.\n"
    "  ringtrain evaluate RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml [--weights FILE.safetensors] [key.path=value ...]\n"
    "                     [--json FILE] [--logits FILE.safetensors [--samples N]]\n"
    "      Runs the validation set once, on all ranks: loss and accuracy. --logits keeps what the model saw and said "
    "of "
    "the\n"
    "      first N samples, to compare with another program.\n"
    "  ringtrain export RUN_FOLDER|CHECKPOINT.h5|EXPERIMENT.yaml --out FILE.safetensors [--dtype fp32|fp16|bf16]\n"
    "                   [--best|--newest]\n"
    "      Writes the weights with PyTorch's names (images: torchvision's). Without --best or --newest: the best if "
    "there\n"
    "      is one.\n"
    "  ringtrain import FILE.safetensors EXPERIMENT.yaml [key.path=value ...] [--out CHECKPOINT.h5]\n"
    "      Checks the weights against the experiment's model and makes a run of them, at step 0, to evaluate or to\n"
    "      train --resume.\n"
    "  ringtrain bench comm|input|step ... [EXPERIMENT.yaml] [key.path=value ...] [--json FILE] [--seconds S] "
    "[--link-gbit G]\n"
    "      Measures what the ranks of this job have: all-reduce, reading the data set, a training step (10 s each); "
    "also "
    "the\n"
    "      nodes' clocks and versions, and which node is slow. comm needs no experiment. --json adds to a file.\n"
    "  ringtrain predict EXPERIMENT.yaml [--ranks 1..4096] [--preflight FILE,...] [--check FILE,...] [key.path=value "
    "...]\n"
    "                    [--ranks-per-node N] [--cores-per-node N] [--rows-per-rank N] [--latency-us L --link-gbit G]\n"
    "                    [--csv FILE] [--json FILE] [--svg FILE]\n"
    "      Throughput and efficiency on other numbers of ranks, from what bench --json has written (preflight.json).\n"
    "      --check: measurements to compare with. --latency-us, --link-gbit: a network that was not measured.\n"
    "  ringtrain --version | --help\n"
    "\n"
    "All keys: configs/README.md\n";

// Arguments in order of their coming; options take their value from "--name value" or "--name=value".
class Arguments {
 public:
  Arguments(int argc, char** argv) : all_(argv, argv + argc) {}

  // Removes the option and returns its value; `fallback` when it is absent.
  std::string option(const std::string& name, const std::string& fallback) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].rfind(name + "=", 0) == 0) return take(i, 1, all_[i].substr(name.size() + 1));
      if (all_[i] != name) continue;
      if (i + 1 == all_.size()) throw Error(cat(name, " needs a value"), "ringtrain --help");
      return take(i, 2, all_[i + 1]);
    }
    return fallback;
  }
  bool flag(const std::string& name) {
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i] == name) return take(i, 1, true);
    return false;
  }
  double number(const std::string& name, double fallback, double least) {
    const std::string text = option(name, "");
    if (text.empty()) return fallback;
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !(value >= least) || value > 9e15)
      throw Error(cat(name, " is '", text, "'; expected a number of at least ", least), "ringtrain --help");
    return value;
  }
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t least) {
    const double value = number(name, static_cast<double>(fallback), static_cast<double>(least));
    if (value != static_cast<double>(static_cast<std::int64_t>(value)))
      throw Error(cat(name, " is ", value, "; expected a whole number"), "ringtrain --help");
    return static_cast<std::int64_t>(value);
  }
  // The values of a list: "a,b".
  std::vector<std::string> list(const std::string& name, const std::string& fallback) {
    std::vector<std::string> values;
    std::istringstream text(option(name, fallback));
    for (std::string value; std::getline(text, value, ',');) values.push_back(value);
    return values;
  }
  // The words at the beginning that are among these.
  std::vector<std::string> words(std::initializer_list<const char*> known) {
    std::vector<std::string> found;
    while (!all_.empty() && std::find(known.begin(), known.end(), all_[0]) != known.end())
      found.push_back(take(0, 1, std::string(all_[0])));
    return found;
  }
  // The first argument that no option took.
  std::string file(const std::string& command, const std::string& what) {
    if (all_.empty() || all_[0].rfind("--", 0) == 0)
      throw Error(cat("ringtrain ", command, " needs ", what), "ringtrain --help");
    return take(0, 1, std::string(all_[0]));
  }
  // What no option took: one path, then overrides.
  ExperimentArguments experiment(const std::string& command, bool needed = true) const {
    ExperimentArguments e;
    for (const std::string& a : all_) {
      if (a.rfind("--", 0) == 0) throw Error(cat("ringtrain ", command, ": unknown option ", a), "ringtrain --help");
      const bool is_override = a.find('=') != std::string::npos;
      if (!is_override && e.path.empty())
        e.path = a;
      else if (is_override)
        e.overrides.push_back(a);
      else
        throw Error(cat("ringtrain ", command, ": '", a, "' is a second file; expected key.path=value"),
                    "ringtrain --help");
    }
    if (e.path.empty() && (needed || !e.overrides.empty()))
      throw Error(cat("ringtrain ", command, " needs an experiment file"), "ringtrain --help");
    return e;
  }

 private:
  template <class T>
  T take(std::size_t at, std::size_t count, T value) {
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(at), all_.begin() + static_cast<std::ptrdiff_t>(at + count));
    return value;
  }
  std::vector<std::string> all_;
};

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "--help";
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(usage, argc > 1 ? stdout : stderr);
    return argc > 1 ? 0 : 2;
  }
  if (command == "--version") {
    std::fputs(version_text().c_str(), stdout);
    return 0;
  }
  if (command == cuda::planner_command) return cuda::run_planner();  // for `plan --device`, not for users
  Arguments arguments(argc - 2, argv + 2);
  if (arguments.flag("--help")) {
    std::fputs(usage, stdout);
    return 0;
  }
  if (command == "train" || command == "plan") {
    if (command == "train") catch_signals();
    Session session(&argc, &argv);
    set_log_rank(session.rank(), session.host());
    const bool resume = command == "train" && arguments.flag("--resume");
    const std::int64_t ranks = command == "plan" ? arguments.integer("--ranks", session.size(), 1) : 0;
    const std::string device = command == "plan" ? arguments.option("--device", "") : "";
    const ExperimentArguments e = arguments.experiment(command);
    if (command == "train") return session.finish(train({e, resume, {argv, argv + argc}}, session));
    return session.rank() == 0 ? plan({e, ranks, device}, session) : 0;
  }
  if (command == "sample") {
    SampleArguments s;
    s.count = arguments.integer("--count", s.count, 1);
    s.temperature = arguments.number("--temperature", s.temperature, 0);
    s.seed = static_cast<std::uint64_t>(arguments.integer("--seed", 1, 0));
    s.new_only = arguments.flag("--new-only");
    s.prompt = arguments.option("--prompt", "");
    s.length = arguments.integer("--length", s.length, 1);
    s.source = arguments.experiment(command).path;
    return sample(s);
  }
  if (command == "evaluate") {
    Session session(&argc, &argv);
    set_log_rank(session.rank(), session.host());
    EvaluateArguments e;
    e.weights = arguments.option("--weights", "");
    e.json = arguments.option("--json", "");
    e.logits = arguments.option("--logits", "");
    e.samples = arguments.integer("--samples", e.samples, 1);
    e.experiment = arguments.experiment(command);
    return evaluate(e, session);
  }
  if (command == "export") {
    ExportArguments e;
    e.out = arguments.option("--out", "");
    e.dtype = arguments.option("--dtype", e.dtype);
    if (arguments.flag("--best")) e.which = WhichCheckpoint::best;
    if (arguments.flag("--newest")) e.which = WhichCheckpoint::newest;
    e.experiment = arguments.experiment(command);
    return export_weights(e);
  }
  if (command == "import") {
    ImportArguments i;
    i.out = arguments.option("--out", "");
    i.weights = arguments.file(command, "a .safetensors file and an experiment");
    i.experiment = arguments.experiment(command);
    return import_weights(i);
  }
  if (command == "bench") {
    Session session(&argc, &argv);
    set_log_rank(session.rank(), session.host());
    BenchArguments b;
    b.kinds = arguments.words({"comm", "input", "step"});
    if (b.kinds.empty()) throw Error("ringtrain bench needs one or more of comm, input and step", "ringtrain --help");
    b.json = arguments.option("--json", "");
    b.seconds = arguments.number("--seconds", b.seconds, 0.01);
    b.link_gbit = arguments.number("--link-gbit", 0, 0);
    b.experiment = arguments.experiment(command, b.kinds != std::vector<std::string>{"comm"});
    return bench(b, session);
  }
  if (command == "predict") {
    PredictArguments p;
    p.ranks = arguments.option("--ranks", p.ranks);
    p.preflight = arguments.list("--preflight", "preflight.json");
    p.check = arguments.list("--check", "");
    p.ranks_per_node = arguments.integer("--ranks-per-node", 0, 1);
    p.cores_per_node = arguments.integer("--cores-per-node", 0, 1);
    p.rows_per_rank = arguments.integer("--rows-per-rank", 0, 1);
    p.latency_us = arguments.number("--latency-us", 0, 0);
    p.link_gbit = arguments.number("--link-gbit", 0, 0);
    p.csv = arguments.option("--csv", "");
    p.json = arguments.option("--json", "");
    p.svg = arguments.option("--svg", "");
    p.experiment = arguments.experiment(command);
    return predict(p);
  }
  throw Error(
      cat("unknown command '", command, "'; expected train, plan, evaluate, export, import, sample, bench or predict"),
      "ringtrain --help");
}

// An error that all ranks see (a bad file) is printed once: the others give rank 0 time to end the job, which reaches
// them as SIGTERM.
[[noreturn]] void report(const std::string& what, const std::string& hint) {
  const std::string who = rank_label();
  if (!who.empty() && who.rfind("rank 0 ", 0) != 0) {
    for (int tenth = 0; tenth < 20 && requested_signal() == 0; ++tenth) usleep(100'000);
    if (requested_signal() != 0) abort_job(1);
  }
  const std::string text = cat("ringtrain: error", who.empty() ? "" : " (" + who + ")", ": ", what, "\n",
                               hint.empty() ? "" : "  " + hint + "\n");
  std::fflush(stdout);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  if (job_size() <= 1) {
    std::fflush(nullptr);
    _exit(1);  // nobody else to end: MPI_Abort's banner would bury the message
  }
  abort_job(1);
}

}  // namespace
}  // namespace ringtrain

int main(int argc, char** argv) {
  try {
    const int code = ringtrain::run(argc, argv);
    std::cout.flush();
    if (std::fflush(stdout) != 0 || !std::cout) throw ringtrain::Error("cannot write to standard output");
    return code;
  } catch (const ringtrain::Error& e) {
    ringtrain::report(e.what(), e.hint());
  } catch (const std::exception& e) {
    ringtrain::report(e.what(), "");
  }
}
