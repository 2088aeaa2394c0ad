// The models whose cuDNN plans are recorded for described GPUs. In src/backend/cuda/device/recorded, plans.csv holds
// cuDNN's answers (the lines of a PlanCache), and fusions.csv holds the choice of each layer. build/bench/cuda_plans
// writes both.
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/backend.h"
#include "backend/cuda/device/described.h"
#include "base/error.h"
#include "tests/unit/images.h"

namespace ringtrain::cuda {

struct PlannedModel {
  std::string name;
  Graph graph;
  std::int64_t micro_batch = 32;  // samples of a pass, which batch norm normalises together
  bool half_only = false;         // planned in bf16 and fp16 only
};

// The ResNets and AlexNet have the sizes of their papers. Every model has the 32 samples that Goyal et al. normalise
// together. ResNet-50 is listed again with the 256 samples that a GPU takes at once, in bf16 and fp16.
inline std::vector<PlannedModel> planned_models() {
  const auto resnet_of = [](std::int64_t depth) { return small_resnet(depth, 64, "imagenet", 224, 0, 1000); };
  SampleShape text;
  text.sequence = 64;
  text.vocabulary = 96;
  std::vector<PlannedModel> models;
  for (const std::int64_t depth : {50, 18, 34}) models.push_back({cat("resnet-", depth), resnet_of(depth)});
  models.push_back({"alexnet", alexnet({}, image_shape(224, 1000), {})});
  models.push_back({"cnn", cnn({}, image_shape(32, 10), {})});
  models.push_back({"char_lstm", char_lstm({}, text)});
  models.push_back({"resnet-50 x 256", resnet_of(50), 256, true});
  return models;
}

struct NamedPrecision {
  const char* name;
  Precision precision;
};
inline constexpr NamedPrecision planned_precisions[] = {
    {"bf16", Precision::bf16}, {"fp16", Precision::fp16}, {"tf32", Precision::tf32}, {"fp32", Precision::fp32}};

// All pairs of a model and a precision that are planned.
inline std::vector<std::pair<PlannedModel, NamedPrecision>> planned_passes() {
  std::vector<std::pair<PlannedModel, NamedPrecision>> passes;
  for (const NamedPrecision& precision : planned_precisions)
    for (const PlannedModel& model : planned_models())
      if (!model.half_only || precision.precision == Precision::bf16 || precision.precision == Precision::fp16)
        passes.emplace_back(model, precision);
  return passes;
}

// Compiles a model for training. Returns a line for each site where kernels could be fused:
// model,precision,site,way,ways refused. Throws Error if a layer finds no plan.
inline std::vector<std::string> fusion_lines(Device& device, const PlannedModel& model, const NamedPrecision& p) {
  FusionTable fusions;
  const std::unique_ptr<Backend> backend = make_backend(device, {.fusions = &fusions});
  backend->compile(model.graph, model.micro_batch, p.precision, PassMode::training);
  std::vector<std::string> lines;
  for (const FusionChoice& c : fusions.choices()) {
    std::string site = c.site, way = c.way;
    for (std::string* text : {&site, &way})
      for (char& letter : *text)
        if (letter == ',') letter = ';';
    lines.push_back(cat(model.name, ",", p.name, ",", site, ",", way, ",", c.refused.empty() ? "no" : "yes"));
  }
  return lines;
}
inline constexpr const char* fusion_header = "gpus,model,precision,site,way,ways before it refused";
inline constexpr const char* plans_header = "gpus,graph,operation,answer,workspace_bytes,engine or reason";

inline std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace ringtrain::cuda
