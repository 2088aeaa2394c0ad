// Shows where a training step of ResNet-50 spends its time: milliseconds and GFLOP/s of every operation, forward and
// backward. It also shows the sum of the bare oneDNN primitives (convolutions and batch norms with fused ReLU) of the
// same shapes.
//   build/bench/resnet_layers [batch=16] [precision=fp32|bf16] [threads=2] [size=224] [depth=50] [group=batch]
//   [detail=1] [repeat=3] [bare=1]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "backend/cpu/backend.h"
#include "backend/cpu/convolution.h"
#include "backend/cpu/onednn.h"
#include "base/error.h"
#include "base/random.h"
#include "models/models.h"

namespace ringtrain {
namespace {

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double best_of(int times, const std::function<void()>& work) {
  work();
  double best = 1e30;
  for (int i = 0; i < times; ++i) best = std::min(best, seconds(work));
  return best;
}

struct Options {
  std::map<std::string, std::string> given = {{"batch", "16"}, {"precision", "fp32"}, {"threads", "2"},
                                              {"size", "224"}, {"depth", "50"},       {"group", "0"},
                                              {"detail", "1"}, {"bare", "1"},         {"repeat", "3"}};
  std::int64_t number(const std::string& key) const { return std::stoll(given.at(key)); }
};

// Holds one primitive, its own memory and the arguments that its description needs.
class BarePrimitive {
 public:
  template <class Description>
  BarePrimitive(const Description& description, const dnnl::primitive& primitive) : primitive_(primitive) {
    using dnnl::query;
    const auto take = [&](int argument, const dnnl::memory::desc& d) {
      if (d.get_size() == 0) return;
      dnnl::memory m(d, cpu::onednn_engine());
      std::fill_n(static_cast<char*>(m.get_data_handle()), d.get_size(), char{0});
      arguments_.insert({argument, m});
    };
    take(DNNL_ARG_SRC, description.query_md(query::src_md, 0));
    take(DNNL_ARG_DST, description.query_md(query::dst_md, 0));
    take(DNNL_ARG_DIFF_SRC, description.query_md(query::diff_src_md, 0));
    take(DNNL_ARG_DIFF_DST, description.query_md(query::diff_dst_md, 0));
    take(DNNL_ARG_WEIGHTS, description.query_md(query::weights_md, 0));
    take(DNNL_ARG_DIFF_WEIGHTS, description.query_md(query::diff_weights_md, 0));
    take(DNNL_ARG_WORKSPACE, description.query_md(query::workspace_md, 0));
    take(DNNL_ARG_SCRATCHPAD, description.query_md(query::scratchpad_md, 0));
  }
  void add(int argument, dnnl::memory memory) { arguments_[argument] = std::move(memory); }
  dnnl::memory argument(int which) const { return arguments_.at(which); }
  double milliseconds(int repeat) {
    return 1e3 * best_of(repeat, [&] { primitive_.execute(cpu::onednn_stream(), arguments_); });
  }

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

struct BareSum {
  double convolutions = 0, norms = 0;
};

using dnnl::memory;

double bare_convolution(const Convolution& c, const FeatureShape& in, const FeatureShape& out, std::int64_t batch,
                        memory::data_type type, bool data, int repeat) {
  const auto any = memory::format_tag::any;
  const memory::desc x(memory::dims{batch, c.input, in.height, in.width}, type, any);
  const memory::desc y(memory::dims{batch, c.output, out.height, out.width}, type, any);
  const memory::dims kernel{c.output, c.input, c.kernel, c.kernel};
  const memory::desc w(kernel, type, any), dw(kernel, memory::data_type::f32, any);
  const memory::dims strides{c.stride, c.stride}, padding{c.padding, c.padding};
  const auto direct = dnnl::algorithm::convolution_direct;
  const auto training = dnnl::prop_kind::forward_training;
  dnnl::primitive_attr user;
  user.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  auto& engine = cpu::onednn_engine();
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::convolution_forward::primitive_desc f(engine, training, direct, x, w, y, strides, padding, padding, user);
  const dnnl::convolution_backward_weights::primitive_desc bw(engine, direct, x, dw, y, strides, padding, padding, f,
                                                              user);
#else
  const dnnl::convolution_forward::primitive_desc f({training, direct, x, w, y, strides, padding, padding}, user,
                                                    engine);
  const dnnl::convolution_backward_weights::primitive_desc bw({direct, x, dw, y, strides, padding, padding}, user,
                                                              engine, f);
#endif
  double ms = BarePrimitive(f, dnnl::convolution_forward(f)).milliseconds(repeat) +
              BarePrimitive(bw, dnnl::convolution_backward_weights(bw)).milliseconds(repeat);
  if (!data) return ms;
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::convolution_backward_data::primitive_desc bd(engine, direct, x, w, y, strides, padding, padding, f, user);
#else
  const dnnl::convolution_backward_data::primitive_desc bd({direct, x, w, y, strides, padding, padding}, user, engine,
                                                           f);
#endif
  return ms + BarePrimitive(bd, dnnl::convolution_backward_data(bd)).milliseconds(repeat);
}

double bare_norm(const FeatureShape& shape, std::int64_t batch, memory::data_type type, bool relu, int repeat) {
  const memory::desc x(memory::dims{batch, shape.channels, shape.height, shape.width}, type,
                       memory::format_tag::nChw16c);
  auto flags = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
  if (relu) flags |= dnnl::normalization_flags::fuse_norm_relu;
  auto& engine = cpu::onednn_engine();
  dnnl::primitive_attr user;
  user.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::batch_normalization_forward::primitive_desc f(engine, dnnl::prop_kind::forward_training, x, x, 1e-5f,
                                                            flags, user);
  const dnnl::batch_normalization_backward::primitive_desc b(engine, dnnl::prop_kind::backward, x, x, x, 1e-5f, flags,
                                                             f, user);
#else
  const dnnl::batch_normalization_forward::primitive_desc f({dnnl::prop_kind::forward_training, x, 1e-5f, flags}, user,
                                                            engine);
  const dnnl::batch_normalization_backward::primitive_desc b({dnnl::prop_kind::backward, x, x, 1e-5f, flags}, user,
                                                             engine, f);
#endif
  BarePrimitive forward(f, dnnl::batch_normalization_forward(f)), backward(b, dnnl::batch_normalization_backward(b));
  const memory::desc channels(memory::dims{shape.channels}, memory::data_type::f32, memory::format_tag::x);
  const auto values = [&] {
    memory m(channels, engine);
    std::fill_n(static_cast<float*>(m.get_data_handle()), shape.channels, 1.0f);
    return m;
  };
  const memory mean = values(), variance = values(), scale = values();
  for (BarePrimitive* p : {&forward, &backward}) {
    p->add(DNNL_ARG_MEAN, mean);
    p->add(DNNL_ARG_VARIANCE, variance);
    p->add(DNNL_ARG_SCALE, scale);
    p->add(DNNL_ARG_SHIFT, values());
    p->add(DNNL_ARG_DIFF_SCALE, values());
    p->add(DNNL_ARG_DIFF_SHIFT, values());
  }
  if (relu) backward.add(DNNL_ARG_WORKSPACE, forward.argument(DNNL_ARG_WORKSPACE));
  return forward.milliseconds(repeat) + backward.milliseconds(repeat);
}

BareSum bare_primitives(const Graph& graph, std::int64_t batch, bool bf16, int threads, int repeat) {
  const cpu::TeamSize team(threads);
  const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  BareSum sum;
  std::map<std::string, double> known;  // by shape
  const auto once = [&](const std::string& key, const std::function<double()>& measure) {
    if (!known.contains(key)) known[key] = measure();
    return known[key];
  };
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (const auto* c = std::get_if<Convolution>(&node.operation)) {
      const Node& from = graph.nodes()[static_cast<std::size_t>(node.inputs[0])];
      const bool data = !std::holds_alternative<ImageInput>(from.operation);
      sum.convolutions += once(cat("conv ", c->input, c->output, c->kernel, c->stride, " ", from.output.height), [&] {
        return bare_convolution(*c, from.output, node.output, batch, type, data, repeat);
      });
    } else if (std::holds_alternative<Norm>(node.operation)) {
      const bool relu = i + 1 < graph.nodes().size() && std::holds_alternative<Relu>(graph.nodes()[i + 1].operation);
      sum.norms += once(cat("norm ", node.output.channels, " ", node.output.height, " ", relu),
                        [&] { return bare_norm(node.output, batch, type, relu, repeat); });
    }
  }
  return sum;
}

void run(const Options& options) {
  const std::int64_t batch = options.number("batch"), size = options.number("size");
  const std::int64_t group = options.number("group") == 0 ? batch : options.number("group");
  const bool bf16 = options.given.at("precision") == "bf16";
  const int threads = static_cast<int>(options.number("threads")), repeat = static_cast<int>(options.number("repeat"));
  ModelConfig model;
  model.kind = "resnet";
  model.depth = options.number("depth");
  SampleShape sample;
  sample.image_size = size;
  sample.classes = 1000;
  sample.mean = {0.485, 0.456, 0.406};
  sample.std = {0.229, 0.224, 0.225};
  const Graph graph = build_model(model, sample);
  const ParameterTable table = graph.parameters();
  auto backend = make_cpu_backend(threads);
  std::printf("%s; ResNet-%d, %d px, batch %d in groups of %d, %s\n", backend->describe().c_str(),
              static_cast<int>(model.depth), static_cast<int>(size), static_cast<int>(batch), static_cast<int>(group),
              bf16 ? "bf16" : "fp32");

  std::vector<float> initial(static_cast<std::size_t>(table.size()));
  initialize(table, 1, initial);
  auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
  backend->copy_from_host(initial, *weights, 0);
  std::vector<std::unique_ptr<Vector>> state;
  state.push_back(backend->make_vector(table.size()));
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(batch * graph.input_bytes()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(random_uniform(1, i) * 256);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(batch), 3);

  cpu::CpuProgram program(graph,
                          {.micro_batch = batch,
                           .group = group,
                           .precision = bf16 ? Precision::bf16 : Precision::fp32,
                           .threads = threads,
                           .isa = cpu::best_isa()},
                          std::make_shared<std::int64_t>(0));
  std::int64_t bytes = 0;
  for (const MemoryItem& item : program.memory()) {
    std::printf("%-60s %10.1f MB\n", item.what.c_str(), static_cast<double>(item.bytes) / 1e6);
    bytes += item.bytes;
  }
  program.allocate();
  PassInput input;
  input.inputs = pixels.data();
  input.targets = targets.data();
  PassContext context;
  context.gradient_scale = 1.0f / static_cast<float>(batch);
  context.statistic_scale = static_cast<float>(group) / static_cast<float>(batch);
  const UpdateRange trained{0, table.trained(), 0};
  const ElementRange elements{0, table.trained()};
  const std::unique_ptr<RangeNorms> gradient_norms = backend->make_range_norms({&elements, 1});
  double set = 1e30, forward = 1e30, backward = 1e30, update = 1e30, whole = 1e30;
  std::vector<cpu::StepCost> costs;
  for (int i = 0; i <= repeat; ++i) {
    program.reset_costs();
    const double a = seconds([&] { program.set_weights(*weights); });
    const double b = seconds([&] { program.run(input, context); });
    const double c = seconds([&] { program.backward(*gradients, false, {}); });
    const double d = seconds([&] {
      backend->queue_update({.rule = {},
                             .ranges = {&trained, 1},
                             .gradient_norms = gradient_norms.get(),
                             .trained = table.trained(),
                             .adascale = {}},
                            *weights, *gradients, state);
      backend->finish_update();
    });
    if (i == 0) continue;  // the first run touches the memory
    set = std::min(set, a);
    forward = std::min(forward, b);
    backward = std::min(backward, c);
    update = std::min(update, d);
    whole = std::min(whole, a + b + c + d);
    const std::vector<cpu::StepCost> now = program.costs();
    if (costs.empty()) costs = now;
    for (std::size_t k = 0; k < now.size(); ++k) costs[k].seconds = std::min(costs[k].seconds, now[k].seconds);
  }
  std::map<std::string, double> kinds;
  if (options.number("detail") != 0)
    std::printf("\n%-44s %-8s %6s %9s %9s\n", "operation", "pass", "slice", "ms", "GFLOP/s");
  for (const cpu::StepCost& c : costs) {
    if (options.number("detail") != 0)
      std::printf("%-44s %-8s %6d %9.2f %9.1f\n", c.name.c_str(), c.backward ? "backward" : "forward",
                  static_cast<int>(c.slice), c.seconds * 1e3, c.flops / c.seconds / 1e9);
    const std::size_t space = c.name.rfind(' ');
    const std::string last = space == std::string::npos ? "" : c.name.substr(space + 1);
    kinds[cat(c.backward ? "backward: " : "forward: ",
              c.flops > 0 ? (c.backward ? "convolutions and dense, " + last : "convolutions and dense") : last)] +=
        c.seconds;
  }
  std::printf("\n");
  for (const auto& [kind, cost] : kinds) std::printf("%-60s %9.2f ms\n", kind.c_str(), cost * 1e3);
  std::printf("set_weights %.2f ms, forward %.2f ms, backward %.2f ms, update %.2f ms\n", set * 1e3, forward * 1e3,
              backward * 1e3, update * 1e3);
  const double images = static_cast<double>(batch);
  double least = set + update;
  for (const cpu::StepCost& c : costs) least += c.seconds;
  std::printf("step %.2f ms = %.2f images/s; sum of each operation's best time %.2f ms = %.2f images/s\n", whole * 1e3,
              images / whole, least * 1e3, images / least);
  if (options.number("bare") == 0) return;
  const BareSum bare = bare_primitives(graph, batch, bf16, threads, repeat);
  const double all = (bare.convolutions + bare.norms) / 1e3;
  std::printf(
      "bare oneDNN primitives: convolutions %.2f ms, batch norms %.2f ms; %.2f images/s; step at %.3f of them\n",
      bare.convolutions, bare.norms, images / all, all / whole);
}

}  // namespace
}  // namespace ringtrain

int main(int argc, char** argv) {
  ringtrain::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equal = word.find('=');
    if (equal == std::string::npos || !options.given.contains(word.substr(0, equal))) {
      std::fprintf(stderr, "unknown setting %s\n", argv[i]);
      return 2;
    }
    options.given[word.substr(0, equal)] = word.substr(equal + 1);
  }
  try {
    ringtrain::run(options);
  } catch (const ringtrain::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
