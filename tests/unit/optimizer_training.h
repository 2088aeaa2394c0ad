// An optimizer with its vectors, on the CPU or on a (host) device. The tests of optimizers share it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/backend.h"
#include "optim/optimizer.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/one_update.h"

namespace ringtrain {

// Runs `body` on both backends. Streams of the device run as late as events allow.
inline void on_cpu_and_device(const std::function<void(Backend&)>& body) {
  {
    SCOPED_TRACE("cpu");
    body(*make_cpu_backend(2));
  }
  SCOPED_TRACE("device");
  cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
  body(*cuda::make_backend(device, {}));
  device.finish_all();
  device.check_guards();
}

struct Training {
  Backend& backend;
  const ParameterTable& table;
  std::unique_ptr<Vector> weights = backend.make_vector(table.size()), gradients = backend.make_vector(table.size());
  Optimizer optimizer;

  Training(Backend& on, const ParameterTable& parameters, const OptimizerConfig& config, UpdateRanks ranks = {},
           const AverageConfig& average = {})
      : backend(on), table(parameters), optimizer(config, parameters, on, std::move(ranks), {}, average) {}
  UpdateResult update(const UpdateStep& step, float loss_scale = 1, float norm_momentum = 0) {
    return one_update(optimizer, *weights, *gradients, step, loss_scale, norm_momentum);
  }
  // `values` holds the elements of all tensors one after another, without padding.
  void set(Vector& to, std::span<const double> values, double factor = 1) {
    for (const Parameter& p : table.all()) {
      std::vector<float> tensor;
      for (std::int64_t i = 0; i < p.count; ++i) tensor.push_back(static_cast<float>(factor * values[i]));
      backend.copy_from_host(tensor, to, p.offset);
      values = values.subspan(static_cast<std::size_t>(p.count));
    }
  }
  std::vector<double> get(const Vector& from) {
    std::vector<double> values;
    for (const Parameter& p : table.all()) {
      std::vector<float> tensor(static_cast<std::size_t>(p.count));
      backend.copy_to_host(from, p.offset, tensor);
      values.insert(values.end(), tensor.begin(), tensor.end());
    }
    return values;
  }
};

inline ParameterKind kind_of(const std::string& name) {
  return name == "weight" ? ParameterKind::weight : name == "norm" ? ParameterKind::norm : ParameterKind::bias;
}

inline OptimizerConfig config_of(const nlohmann::json& c) {
  OptimizerConfig config;
  config.kind = c.at("kind");
  const nlohmann::json& o = c.at("options");
  const auto take = [&o](const char* key, auto& member) { member = o.value(key, member); };
  take("momentum", config.momentum);
  take("schedule_free", config.schedule_free);
  take("weight_decay", config.weight_decay);
  take("no_decay", config.no_decay);
  take("beta1", config.beta1);
  take("beta2", config.beta2);
  take("epsilon", config.epsilon);
  take("trust_coefficient", config.trust_coefficient);
  take("lars_form", config.lars_form);
  take("no_trust", config.no_trust);
  take("trust_undecayed", config.trust_undecayed);
  take("transition_center", config.transition_center);
  take("transition_length", config.transition_length);
  take("transition_rate", config.transition_rate);
  take("clip_norm", config.clip_norm);
  take("clip_value", config.clip_value);
  take("muon_rate", config.muon_rate);
  take("other_kind", config.other_kind);
  take("other_rate", config.other_rate);
  return config;
}

}  // namespace ringtrain
