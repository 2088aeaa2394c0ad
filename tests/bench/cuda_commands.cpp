// Where a training step goes on a GPU: microseconds of every command of a program, alone and repeated.
//   build/bench/cuda_commands [model=resnet|char_lstm] [precision=bf16] [batch=256] [group=batch] [depth=50] [size=224]
//   [layers=4] [hidden=512] [positions=50] [symbols=128] [dropout=0] [search_seconds=60] [repeat=20]
// RINGTRAIN_PLAN_CACHE: a folder of plans that are made already.
// CSV on standard output; what it took of the table of fusions, and the memory, on standard error.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/backend.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "models/models.h"

namespace ringtrain {
namespace {

struct Options {
  std::map<std::string, std::string> given = {
      {"model", "resnet"}, {"precision", "bf16"}, {"batch", "256"},  {"group", "0"},          {"depth", "50"},
      {"size", "224"},     {"layers", "4"},       {"hidden", "512"}, {"positions", "50"},     {"symbols", "128"},
      {"dropout", "0"},    {"repeat", "20"},      {"device", "0"},   {"search_seconds", "60"}};
  std::int64_t number(const std::string& key) const { return std::stoll(given.at(key)); }
};

Graph make_graph(const Options& o) {
  ModelConfig model;
  model.kind = o.given.at("model");
  model.depth = o.number("depth");
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

void print(cuda::Device& device, const cuda::Schedule& schedule, int repeat) {
  std::printf("part,name,microseconds,flops,bytes\n");
  for (const cuda::Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const cuda::Command& command = schedule.commands()[i];
      const double seconds = device.time([&](cuda::Stream stream) { command.issue(device, stream, false); }, repeat);
      if (seconds < 0) throw Error(cat(device.facts().name, " cannot time"));
      std::printf("%s,\"%s\",%.2f,%.0f,%.0f\n", part_name(segment.part), command.name.c_str(), 1e6 * seconds,
                  command.flops, command.bytes);
    }
}

void run(const Options& o) {
  const char* plans = std::getenv("RINGTRAIN_PLAN_CACHE");
  const auto device = cuda::make_runtime_device(static_cast<int>(o.number("device")), plans != nullptr ? plans : "");
  cuda::FusionTable fusions(std::stod(o.given.at("search_seconds")));
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

  const std::vector<std::uint8_t> inputs(static_cast<std::size_t>(batch * graph.input_bytes()), 1);
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
  print(*device, dynamic_cast<const cuda::ProgramBase&>(*program).schedule(), static_cast<int>(o.number("repeat")));
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
