#include "backend/cuda/image/program.h"

#include <algorithm>

#include "backend/cuda/image/emission.h"
#include "backend/cuda/image/graph.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

class ImageProgram : public ProgramBase {
 public:
  ImageProgram(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
               std::int64_t group, Precision precision, PassMode mode, int slots)
      : ProgramBase(device, options, graph, micro_batch, precision, mode, slots),
        context_{.device = &device,
                 .parameters = &parameters_,
                 .type = type_,
                 .math = math_,
                 .training = training_,
                 .measures = mode != PassMode::inference,
                 .samples = micro_batch,
                 .group = std::min(group, micro_batch),
                 .span = std::max<std::int64_t>(1, group / micro_batch),
                 .group_ranks = &group_ranks_},
        parts_(join_layers(graph, context_)),
        choices_(choose(*options.fusions)),
        emission_(context_, choices_, *this, options.segment_elements) {
    for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
      schedule_.enter(parts_.blocks[i]);
      parts_.layers[i]->forward(emission_);
    }
    if (training_) add_backward();
    if (parts_.loss != nullptr) logits_ = parts_.loss->logits(emission_);
    const TensorGroup &weights = emission_.weights(), &vectors = emission_.vectors();
    copy_in(weights.storage(), type_ == Type::fp32, weights.places());
    copy_in(vectors.storage(), true, vectors.places());
    finish();
  }

  // The sums over groups are in the program's own layout; each place has [channels].
  std::vector<float> statistics() const override {
    const TensorGroup& sums = emission_.statistics();
    const std::vector<float> own = fetch(sums.storage(), sums.elements());
    std::vector<float> all(static_cast<std::size_t>(parameters_.size() - parameters_.trained()));
    for (const TensorPlace& place : sums.places())
      std::copy_n(own.begin() + place.own_offset, place.inner, all.begin() + place.flat_offset - parameters_.trained());
    return all;
  }

 protected:
  void before_forward(const PassContext& context) override {
    if (context_.span == 1) return;
    group_ranks_ = dynamic_cast<DeviceGroupRanks*>(context.group_ranks);
    if (group_ranks_ == nullptr || group_ranks_->size() != context_.span)
      throw Error(cat("a pass of ", micro_batch_, " images needs the ", context_.span,
                      " ranks of its batch-norm group, on devices"));
  }

 private:
  Choices choose(FusionTable& fusions) const {
    std::vector<LayerSite> sites;
    for (const auto& layer : parts_.layers) layer->list_sites(sites);
    std::vector<FusionSite> questions;
    for (const LayerSite& site : sites)
      if (!site.site.ways.empty()) questions.push_back(site.site);
    const std::vector<std::size_t> ways = fusions.choose(device_, questions);
    Choices choices;
    std::size_t asked = 0;
    for (const LayerSite& site : sites) site.take(site.site.ways.empty() ? 0 : ways[asked++], choices);
    return choices;
  }

  void add_backward() {
    schedule_.begin_backward();
    for (std::size_t i = parts_.layers.size(); i-- > 0;) {
      schedule_.enter(parts_.blocks[i]);
      parts_.layers[i]->backward(emission_);
    }
    schedule_.enter(-1);
    emission_.home().flush();
    const TensorGroup& sums = emission_.statistics();
    if (!sums.places().empty()) copy_home("statistics home", sums.storage(), true, sums.places(), sums.names());
  }

  DeviceGroupRanks* group_ranks_ = nullptr;
  const ImageContext context_;
  const ImageLayers parts_;
  const Choices choices_;
  Emission emission_;
};

}  // namespace

std::unique_ptr<Program> make_image_program(Device& device, const BackendOptions& options, const Graph& graph,
                                            std::int64_t micro_batch, std::int64_t group, Precision precision,
                                            PassMode mode, int slots) {
  if (group < 1 || (micro_batch % group != 0 && group % micro_batch != 0))
    throw Error(cat("a micro-batch of ", micro_batch, " holds neither whole batch-norm groups of ", group,
                    " nor an equal part of one"),
                "let one of batch.micro and batch.worker be a multiple of the other");
  return std::make_unique<ImageProgram>(device, options, graph, micro_batch, group, precision, mode, slots);
}

}  // namespace ringtrain::cuda
