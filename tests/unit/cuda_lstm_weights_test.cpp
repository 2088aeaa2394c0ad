// Tests where the tensors of LSTM layers lie in the flat vector and in the weight space of a recurrent plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backend/cuda/lstm/program.h"
#include "base/error.h"
#include "models/models.h"

namespace ringtrain::cuda {
namespace {

// Uses cuDNN's order, which is layer by layer, the matrices of all gates first and then the biases.
class PlainPlan : public RnnPlan {
 public:
  explicit PlainPlan(const RnnOperation& operation) : operation_(operation) {
    std::int64_t offset = 0;
    for (std::int64_t layer = 0; layer < operation.layers; ++layer)
      for (const bool bias : {false, true})
        for (const bool recurrent : {false, true})
          for (int gate = 0; gate < 4; ++gate) {
            const std::int64_t width = recurrent || layer > 0 ? operation.hidden : operation.input;
            const std::int64_t count = operation.hidden * (bias ? 1 : width);
            weights_.push_back({layer, recurrent, bias, gate, offset, count});
            offset += count;
          }
  }
  const RnnOperation& operation() const override { return operation_; }
  std::int64_t weight_bytes() const override { return 0; }
  std::int64_t workspace_bytes() const override { return 0; }
  std::int64_t reserve_bytes() const override { return 0; }
  const std::vector<RnnWeight>& weights() const override { return weights_; }

  RnnOperation operation_;
  std::vector<RnnWeight> weights_;
};

struct Stack {
  Graph graph = char_lstm({"char_lstm", 12, 3, 0}, {4, 11});
  ParameterTable table = graph.parameters();
  LstmModel model = lstm_model(graph);
  PlainPlan plan{{.layers = 3, .input = 16, .hidden = 12, .length = 4, .batch = 2}};
};

TEST(LstmWeights, EveryElementOfTheLayersHasOnePlaceOnBothSides) {
  const Stack s;
  std::set<std::int64_t> flat, own;
  std::int64_t elements = 0;
  for (const TensorPlace& place : lstm_places(s.plan, s.model.layers, s.table)) {
    EXPECT_EQ(place.taps, 1);
    for (std::int64_t row = 0; row < place.outer; ++row)
      for (std::int64_t column = 0; column < place.inner; ++column) {
        flat.insert(place.flat_offset + row * place.inner + column);
        own.insert(place.own_offset + row * place.padded + column);
        ++elements;
      }
  }
  std::int64_t expected = 0;
  for (const Parameter& p : s.table.all())
    if (p.name.starts_with("lstm.")) {
      expected += p.count;
      for (std::int64_t i = 0; i < p.count; ++i) EXPECT_TRUE(flat.contains(p.offset + i)) << p.name << "[" << i << "]";
    }
  EXPECT_EQ(elements, expected);
  EXPECT_EQ(std::ssize(flat), expected);
  EXPECT_EQ(std::ssize(own), expected);
  EXPECT_GE(*own.begin(), 0);
}

TEST(LstmWeights, GatesAreTorchsRowsAndTheSymbolsArePadded) {
  const Stack s;
  const std::vector<TensorPlace> places = lstm_places(s.plan, s.model.layers, s.table);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const RnnWeight& weight = s.plan.weights()[i];
    if (weight.bias || weight.layer > 0) continue;
    const Parameter& p = s.table.find(weight.recurrent ? "lstm.weight_hh_l0" : "lstm.weight_ih_l0");
    const int width = weight.recurrent ? 12 : 11;
    EXPECT_EQ(places[i].flat_offset, p.offset + weight.gate * 12 * width);
    EXPECT_EQ(places[i].inner, width);
    EXPECT_EQ(places[i].padded, weight.recurrent ? 12 : 16);
  }
}

TEST(LstmWeights, AWeightSpaceThatIsNotTheLayersIsRefused) {
  const auto refused = [](auto change) {
    Stack s;
    change(s.plan.weights_);
    EXPECT_THROW(lstm_places(s.plan, s.model.layers, s.table), Error);
  };
  refused([](std::vector<RnnWeight>& w) { w.pop_back(); });
  refused([](std::vector<RnnWeight>& w) { w[1].gate = 0; });
  refused([](std::vector<RnnWeight>& w) { w[0].count += 1; });
  refused([](std::vector<RnnWeight>& w) { w[0].layer = 7; });
}

}  // namespace
}  // namespace ringtrain::cuda
