// Shows where a training step spends its time on a GPU. It times every command of a program alone and repeated, in
// microseconds, and compares it with its bound, which is the longer of bytes / bandwidth and FLOPs / peak. The command
// that loses most comes first.
//   build/bench/cuda_commands [model=resnet|char_lstm] [precision=bf16] [batch=256] [group=batch] [depth=50] [size=224]
//   [width=64] [layers=4] [hidden=512] [positions=50] [symbols=128] [dropout=0] [search_seconds=60] [repeat=20]
//   [device=0] [flops_per_second=0] [bytes_per_second=0]     0: the rates that such a GPU has reached (schedule.h)
// RINGTRAIN_PLAN_CACHE names a folder with plans and timed fusions from earlier runs. RINGTRAIN_SEARCH_DEADLINE is the
// longest time in seconds that the search of plans and fusions may take. RINGTRAIN_TEST_DEVICE=host runs this program
// without a GPU, to test it.
// The CSV goes to standard output. Standard error shows the choices of the table of fusions, the memory, and the gaps
// between graph nodes, which are the time of the step's parts replayed as graphs minus the sum of their commands.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/backend.h"
#include "backend/cuda/device/libraries.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/fusion.h"
#include "backend/cuda/program/schedule.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "models/models.h"
#include "tests/emulation/faulty_device.h"

namespace ringtrain {
namespace {

struct Options {
  std::map<std::string, std::string> given = {
      {"model", "resnet"},      {"precision", "bf16"},    {"batch", "256"}, {"group", "0"},
      {"depth", "50"},          {"size", "224"},          {"layers", "4"},  {"hidden", "512"},
      {"positions", "50"},      {"symbols", "128"},       {"dropout", "0"}, {"repeat", "20"},
      {"device", "0"},          {"search_seconds", "60"}, {"width", "64"},  {"flops_per_second", "0"},
      {"bytes_per_second", "0"}};
  std::int64_t number(const std::string& key) const { return std::stoll(given.at(key)); }
};

std::string plan_folder() {
  const char* folder = std::getenv("RINGTRAIN_PLAN_CACHE");
  return folder != nullptr ? folder : "";
}

double search_deadline() {
  const char* seconds = std::getenv("RINGTRAIN_SEARCH_DEADLINE");
  return seconds != nullptr && *seconds != 0 ? std::stod(seconds) : std::numeric_limits<double>::infinity();
}

// Returns random bytes, because a GPU is faster with equal ones. Each is below `values`: any byte of a picture, or a
// symbol's number.
std::vector<std::uint8_t> random_inputs(std::int64_t bytes, std::int64_t values) {
  std::vector<std::uint8_t> inputs(static_cast<std::size_t>(bytes));
  Random4 random{};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i % 4 == 0) random = philox(1, i, 0);
    inputs[i] = static_cast<std::uint8_t>(random.v[i % 4] % static_cast<std::uint32_t>(values));
  }
  return inputs;
}

Graph make_graph(const Options& o) {
  ModelConfig model;
  model.kind = o.given.at("model");
  model.depth = o.number("depth");
  if (model.kind != "char_lstm") model.width = o.number("width");
  model.layers = o.number("layers");
  model.hidden = o.number("hidden");
  model.dropout = std::stod(o.given.at("dropout"));
  SampleShape sample;
  sample.sequence = o.number("positions");
  sample.vocabulary = o.number("symbols");
  if (model.kind == "char_lstm") return build_model(model, sample);
  sample.image_size = o.number("size");
  sample.classes = 1000;
  sample.mean = {0.485, 0.456, 0.406};
  sample.std = {0.229, 0.224, 0.225};
  return build_model(model, sample);
}

const char* part_name(cuda::Schedule::Part part) {
  using Part = cuda::Schedule::Part;
  return part == Part::forward ? "forward" : part == Part::backward ? "backward" : "weights";
}

// The host device with the host's clock. It tests this program and says nothing about a GPU.
class TimedHost final : public cuda::FaultyDevice {
 public:
  double time(const std::function<void(cuda::Stream)>& work, int repetitions) override {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repetitions; ++i) {
      finish_all();
      const double begin = now_seconds();
      work(compute_stream());
      finish_all();
      least = std::min(least, now_seconds() - begin);
    }
    return least;
  }
};

std::unique_ptr<cuda::Device> make_device(const Options& o) {
  const char* test = std::getenv("RINGTRAIN_TEST_DEVICE");
  if (test != nullptr && std::string(test) == "host") return std::make_unique<TimedHost>();
  return cuda::make_runtime_device(static_cast<int>(o.number("device")), plan_folder());
}

struct Timed {
  const cuda::Command* command;
  cuda::Schedule::Part part;
  double seconds, bound;
  double lost() const { return seconds - bound; }
};

// Times each command alone and repeated. The command that loses most comes first.
std::vector<Timed> time_commands(cuda::Device& device, const cuda::Schedule& schedule, const Options& o) {
  const double flops = std::stod(o.given.at("flops_per_second")), bytes = std::stod(o.given.at("bytes_per_second"));
  cuda::Rates rates = cuda::rates_of(device.facts(), cuda::math_of(precision_of(o.given.at("precision"))));
  if (flops > 0) rates.flops = flops;
  if (bytes > 0) rates.bytes = bytes;
  std::vector<Timed> timed;
  for (const cuda::Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const cuda::Command& command = schedule.commands()[i];
      const double seconds = device.time([&](cuda::Stream stream) { command.issue(device, stream, false); },
                                         static_cast<int>(o.number("repeat")));
      if (seconds < 0) throw Error(cat(device.facts().name, " cannot time"));
      timed.push_back({&command, segment.part, seconds, cuda::bound_seconds(command.flops, command.bytes, rates)});
    }
  std::stable_sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.lost() > b.lost(); });
  return timed;
}

void print_commands(const std::vector<Timed>& commands) {
  std::printf("part,name,microseconds,bound_microseconds,lost_microseconds,share_of_bound,flops,bytes\n");
  for (const Timed& t : commands)
    std::printf("%s,\"%s\",%.2f,%.2f,%.2f,%.3f,%.0f,%.0f\n", part_name(t.part), t.command->name.c_str(),
                1e6 * t.seconds, 1e6 * t.bound, 1e6 * t.lost(), t.seconds > 0 ? t.bound / t.seconds : 0,
                t.command->flops, t.command->bytes);
}

// Returns the seconds of all segments of a part. Each is replayed as one graph, as in training, if its commands can be
// captured.
double time_graphs(cuda::Device& device, const cuda::Schedule& schedule, cuda::Schedule::Part part, int repeat) {
  double seconds = 0;
  for (const cuda::Schedule::Segment& segment : schedule.segments()) {
    if (segment.part != part) continue;
    const auto issue = [&](cuda::Stream stream) {
      for (std::size_t i = segment.begin; i < segment.end; ++i) schedule.commands()[i].issue(device, stream, false);
    };
    if (!segment.replayed) {
      seconds += device.time(issue, repeat);
      continue;
    }
    device.begin_capture(device.compute_stream());
    issue(device.compute_stream());
    const cuda::CapturedGraph graph = device.end_capture(device.compute_stream());
    seconds += device.time([&](cuda::Stream stream) { device.launch(graph, stream); }, repeat);
  }
  return seconds;
}

// Compares a part's graphs with the sum of its commands timed alone. A positive difference is lost between nodes. The
// difference can be negative, because a node finds the output of the node before it in the cache.
void print_gaps(cuda::Device& device, const cuda::Schedule& schedule, const std::vector<Timed>& commands, int repeat) {
  using Part = cuda::Schedule::Part;
  std::fprintf(stderr, "part: commands, sum alone, bound, as graphs, gaps between nodes (us)\n");
  double all_gaps = 0;
  for (const Part part : {Part::forward, Part::backward, Part::weights}) {
    std::size_t count = 0;
    double sum = 0, bound = 0;
    for (const Timed& t : commands) {
      if (t.part != part) continue;
      ++count;
      sum += t.seconds;
      bound += t.bound;
    }
    if (count == 0) continue;
    const double graphs = time_graphs(device, schedule, part, repeat), gaps = graphs - sum;
    all_gaps += gaps;
    std::fprintf(stderr, "%s: %zu, %.1f, %.1f, %.1f, %.1f (%.2f a node)\n", part_name(part), count, 1e6 * sum,
                 1e6 * bound, 1e6 * graphs, 1e6 * gaps, 1e6 * gaps / static_cast<double>(count));
  }
  std::fprintf(stderr, "sum of gaps between graph nodes: %.1f us\n", 1e6 * all_gaps);
}

void run(const Options& o) {
  const auto device = make_device(o);
  cuda::FusionTable fusions(std::stod(o.given.at("search_seconds")), search_deadline());
  cuda::load_kept_fusions(plan_folder(), fusions);
  cuda::keep_fusions(plan_folder(), fusions);
  cuda::BackendOptions options;
  options.graphs = false;
  options.fusions = &fusions;
  const auto backend = cuda::make_backend(*device, options);

  const Graph graph = make_graph(o);
  const std::int64_t batch = o.number("batch");
  const auto program =
      backend->compile(graph, batch, precision_of(o.given.at("precision")), PassMode::training, o.number("group"));
  program->allocate();
  const ParameterTable table = graph.parameters();
  const auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
  std::vector<float> initial(static_cast<std::size_t>(table.size()));
  initialize(table, 1, initial);
  backend->copy_from_host(initial, *weights, 0);
  program->set_weights(*weights);

  const std::int64_t values = o.given.at("model") == "char_lstm" ? o.number("symbols") : 256;
  const std::vector<std::uint8_t> inputs = random_inputs(batch * graph.input_bytes(), values);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(batch * graph.sequence()), 1);
  program->stage({inputs.data(), targets.data()});
  program->forward({.gradient_scale = 1.0f / static_cast<float>(targets.size())});
  program->backward(*gradients, false, {});
  program->take_sums();

  for (const cuda::FusionChoice& choice : fusions.choices())
    std::fprintf(stderr, "%s: %s (%.1f us)%s%s\n", choice.site.c_str(), choice.way.c_str(), 1e6 * choice.seconds,
                 choice.refused.empty() ? "" : "; refused: ", choice.refused.c_str());
  for (const MemoryItem& item : program->memory())
    std::fprintf(stderr, "%s: %.1f MiB\n", item.what.c_str(), static_cast<double>(item.bytes) / (1 << 20));
  const cuda::Schedule& schedule = dynamic_cast<const cuda::ProgramBase&>(*program).schedule();
  const std::vector<Timed> timed = time_commands(*device, schedule, o);
  print_commands(timed);
  print_gaps(*device, schedule, timed, static_cast<int>(o.number("repeat")));
}

}  // namespace
}  // namespace ringtrain

int main(int argc, char** argv) {
  ringtrain::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t at = word.find('=');
    if (at == std::string::npos || !options.given.contains(word.substr(0, at))) {
      std::fprintf(stderr, "cuda_commands: '%s' is none of its options; its first lines list them\n", word.c_str());
      return 1;
    }
    options.given[word.substr(0, at)] = word.substr(at + 1);
  }
  try {
    ringtrain::run(options);
  } catch (const ringtrain::Error& error) {
    std::fprintf(stderr, "error: %s\n%s\n", error.what(), error.hint().c_str());
    return 1;
  }
}
