// Compares two parts of a model on one device with the whole model. The parts have several micro-batches in flight, in
// an order of passes that a pipeline can have (kInFlight). The results must be equal up to rounding, replayed or not.
#include <gtest/gtest.h>

#include <numeric>

#include "cuda_models.h"
#include "cuda_training.h"
#include "nn/graph.h"

namespace ringtrain::cuda {
namespace {

constexpr std::int64_t kPasses = 4;

struct Result {
  LossSums sums;
  std::vector<float> gradients;  // in the order of the whole model's parameters
  std::vector<float> state;
};

// One model, or its parts, on a device.
class Parts {
 public:
  Parts(const Task& task, std::vector<int> cuts, std::vector<int> slots, bool graphs)
      : task_(task), device_({.order = {RunOrder::Kind::latest, 0}}) {
    backend_ = make_backend(device_, {.graphs = graphs});
    cuts.insert(cuts.begin(), 0);
    cuts.push_back(static_cast<int>(task.graph.nodes().size()));
    for (std::size_t p = 0; p + 1 < cuts.size(); ++p) {
      Part& part = parts_.emplace_back();
      part.graph = cuts.size() == 2 ? task.graph : task.graph.part(cuts[p], cuts[p + 1]);
      part.table = part.graph.parameters();
      part.slots = slots[p];
      part.program =
          backend_->compile(part.graph, task.micro_batch, task.precision, PassMode::training, task.group, slots[p]);
      part.program->allocate();
      part.weights = backend_->make_vector(part.table.size());
      part.gradients = backend_->make_vector(part.table.size());
      for (const Parameter& parameter : part.table.all())
        backend_->copy_from_host(std::span(task.weights)
                                     .subspan(static_cast<std::size_t>(task.table.find(parameter.name).offset),
                                              static_cast<std::size_t>(parameter.count)),
                                 *part.weights, parameter.offset);
      part.program->set_weights(*part.weights);
      part.state.resize(static_cast<std::size_t>(task.state.empty() ? 0 : task.rows * part.graph.state_size()), 0.25f);
    }
    for (std::size_t p = 0; p + 1 < parts_.size(); ++p) {
      const PartBytes before = parts_[p].program->part_bytes(), after = parts_[p + 1].program->part_bytes();
      EXPECT_GT(before.activations_out, 0);
      EXPECT_EQ(before.activations_out, after.activations_in);
      EXPECT_EQ(before.gradients_in, after.gradients_out);
      for (std::int64_t i = 0; i < kPasses; ++i) {
        crossing_.emplace_back(device_, before.activations_out, "activations");
        crossing_.emplace_back(device_, before.gradients_in, "gradients");
      }
    }
  }

  void forward(std::size_t p, std::int64_t i) {
    Part& part = parts_[p];
    part.program->select(static_cast<int>(i % part.slots));
    part.program->connect(traffic(p, i));
    const auto at = [&](const auto& all, std::int64_t per_row) { return all.data() + i * task_.micro_batch * per_row; };
    part.program->stage(
        {p == 0 ? at(task_.inputs, task_.graph.input_bytes()) : nullptr, at(task_.targets, task_.graph.sequence())});
    part.program->forward(
        {.gradient_scale = 1 / static_cast<float>(task_.counted()),
         .statistic_scale = 0.25f,
         .dropout_key = 5,
         .step = step_,
         .first_row = i * task_.micro_batch,
         .state = part.state.empty() ? nullptr : part.state.data() + i * task_.micro_batch * part.graph.state_size()});
  }
  void backward(std::size_t p, std::int64_t i) {
    Part& part = parts_[p];
    part.program->select(static_cast<int>(i % part.slots));
    part.program->connect(traffic(p, i));
    part.program->backward(*part.gradients, i > 0, {});
  }
  Result end_step() {
    Result result;
    result.gradients.resize(static_cast<std::size_t>(task_.table.size()));
    for (Part& part : parts_) {
      result.sums += part.program->take_sums();
      for (const Parameter& parameter : part.table.all())
        backend_->copy_to_host(*part.gradients, parameter.offset,
                               std::span(result.gradients)
                                   .subspan(static_cast<std::size_t>(task_.table.find(parameter.name).offset),
                                            static_cast<std::size_t>(parameter.count)));
    }
    const std::int64_t row = task_.graph.state_size();
    if (!task_.state.empty())
      for (std::int64_t r = 0; r < task_.rows; ++r)
        for (const Part& part : parts_) {
          const auto begin = part.state.begin() + r * part.graph.state_size();
          result.state.insert(result.state.end(), begin, begin + part.graph.state_size());
        }
    EXPECT_EQ(std::ssize(result.state), task_.state.empty() ? 0 : task_.rows * row);
    ++step_;
    return result;
  }
  std::int64_t planned_bytes() const {
    std::int64_t bytes = 0;
    for (const Part& part : parts_)
      for (const MemoryItem& item : part.program->memory()) bytes += item.bytes;
    return bytes;
  }

 private:
  struct Part {
    Graph graph;
    ParameterTable table;
    int slots = 1;
    std::unique_ptr<Program> program;
    std::unique_ptr<Vector> weights, gradients;
    std::vector<float> state;
  };
  PartTraffic traffic(std::size_t p, std::int64_t i) {
    const auto at = [&](std::size_t cut, std::size_t which) {
      return crossing_[2 * (cut * kPasses + static_cast<std::size_t>(i)) + which].data<std::byte>();
    };
    PartTraffic t;
    if (p > 0) {
      t.activations_in = at(p - 1, 0);
      t.gradients_out = at(p - 1, 1);
    }
    if (p + 1 < parts_.size()) {
      t.activations_out = at(p, 0);
      t.gradients_in = at(p, 1);
    }
    return t;
  }

  const Task& task_;
  HostDevice device_;
  std::unique_ptr<Backend> backend_;
  std::vector<DeviceMemory> crossing_;
  std::vector<Part> parts_;
  std::int64_t step_ = 0;
};

struct PassEvent {
  std::size_t part;
  char pass;
  std::int64_t i;
};
// Stage 0 keeps three micro-batches, and stage 1 keeps two.
const std::vector<PassEvent> kInFlight = {{0, 'f', 0}, {0, 'f', 1}, {0, 'f', 2}, {1, 'f', 0}, {1, 'f', 1}, {1, 'b', 0},
                                          {0, 'b', 0}, {0, 'f', 3}, {1, 'b', 1}, {0, 'b', 1}, {1, 'f', 2}, {1, 'f', 3},
                                          {1, 'b', 2}, {0, 'b', 2}, {1, 'b', 3}, {0, 'b', 3}};

void expect_near(const Task& task, const std::vector<float>& found, const std::vector<float>& expected,
                 double tolerance) {
  for (const Parameter& p : task.table.all()) {
    double largest = 1e-12, difference = 0;
    for (std::int64_t k = p.offset; k < p.offset + p.count; ++k) {
      const auto at = static_cast<std::size_t>(k);
      largest = std::max(largest, std::abs(static_cast<double>(expected[at])));
      difference = std::max(difference, std::abs(static_cast<double>(found[at]) - static_cast<double>(expected[at])));
    }
    EXPECT_LE(difference, tolerance * largest) << p.name;
  }
}

void expect_whole_model(const Task& task, double tolerance = 1e-6) {
  const std::vector<ModelLayer> layers = layers_of(task.graph);
  for (std::size_t cut = 1; cut < layers.size(); cut += task.graph.has_images() ? 4 : 1)
    for (const bool graphs : {false, true}) {
      if (!graphs && cut > 1) continue;
      SCOPED_TRACE(cat("a cut before ", layers[cut].name, graphs ? ", graphs" : ""));
      Parts whole(task, {}, {1}, graphs), parts(task, {layers[cut].first}, {3, 2}, graphs);
      for (int step = 0; step < 4; ++step) {  // plain, then captured, then replayed
        for (std::int64_t i = 0; i < kPasses; ++i) {
          whole.forward(0, i);
          whole.backward(0, i);
        }
        for (const PassEvent& event : kInFlight)
          event.pass == 'f' ? parts.forward(event.part, event.i) : parts.backward(event.part, event.i);
        const Result expected = whole.end_step(), found = parts.end_step();
        ASSERT_NEAR(found.sums.loss, expected.sums.loss, tolerance * expected.sums.loss) << step;
        EXPECT_EQ(found.sums.targets, expected.sums.targets);
        expect_near(task, found.gradients, expected.gradients, tolerance);
        ASSERT_EQ(found.state.size(), expected.state.size());
        for (std::size_t k = 0; k < found.state.size(); ++k)
          ASSERT_NEAR(found.state[k], expected.state[k], tolerance) << k;
        if (testing::Test::HasFailure()) return;
      }
    }
}

Graph model(const std::string& kind, int size) {
  ModelConfig config;
  config.kind = kind;
  config.depth = 18;
  config.width = 8;
  config.stem = "small";
  config.dropout = 0.5;
  return build_model(config, {0, 0, size, 5, {0.5, 0.5, 0.5}, {0.2, 0.2, 0.2}}, {});
}

TEST(CudaPartPrograms, LstmWithDropoutAndCarriedState) {
  ModelConfig config;
  config.kind = "char_lstm";
  config.hidden = 8;
  config.layers = 3;
  config.dropout = 0.3;
  expect_whole_model(text_task(config, 5, 11, 8, 2, true, 3));
  config.dropout = 0;
  Task task = text_task(config, 5, 11, 8, 2);
  expect_whole_model(task);
  task.precision = Precision::bf16;
  expect_whole_model(task, 2e-2);
}
TEST(CudaPartPrograms, ResNetWithBatchNormByWorker) {
  Task task = image_task(model("resnet", 8), 16, 4, 2);
  expect_whole_model(task, 1e-5);
  task.precision = Precision::bf16;
  expect_whole_model(task, 2e-2);
}
TEST(CudaPartPrograms, GroupNorm) {
  const Graph resnet = small_resnet(8, 8, "small", 8, 0, 5, "3x3", with_norms("group", 4));
  expect_whole_model(image_task(resnet, 8, 2, 0), 1e-5);
  expect_whole_model(image_task(described_mlp(0.3, with_norms("group", 2)), 8, 2, 0), 1e-5);
}
TEST(CudaPartPrograms, Cnn) {
  expect_whole_model(image_task(model("cnn", 8), 8, 2, 2), 1e-5);
}

// Only tensors that wait for a backward pass exist once per slot.
TEST(CudaPartPrograms, SlotsTakeTheMemoryOfWhatWaits) {
  const Task task = image_task(model("resnet", 8), 16, 4, 2);
  const int cut = layers_of(task.graph)[4].first;
  const std::int64_t one = Parts(task, {cut}, {1, 1}, false).planned_bytes(),
                     two = Parts(task, {cut}, {2, 1}, false).planned_bytes(),
                     three = Parts(task, {cut}, {3, 1}, false).planned_bytes();
  EXPECT_GT(two, one);
  EXPECT_GT(three - two, 0);
  EXPECT_LT(three, 3 * one);
}

TEST(CudaPartPrograms, ASlotThatThereIsNotIsAnError) {
  const Task task = image_task(model("cnn", 8), 8, 2, 2);
  HostDevice device;
  const auto backend = make_backend(device, {});
  const auto program = backend->compile(task.graph, 2, Precision::fp32, PassMode::training, 2, 2);
  EXPECT_NO_THROW(program->select(1));
  EXPECT_THROW(program->select(2), Error);
}

}  // namespace
}  // namespace ringtrain::cuda
