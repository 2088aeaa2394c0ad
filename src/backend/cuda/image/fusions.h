// Lists the ways to compute a convolution of an image network. A way is a plan for the three products: the convolution,
// the data gradient and the weight gradient. It says how the input is read, how the gradient is passed on, which kernel
// makes the sums for the norm after the convolution, and the library and the type of the weight gradient.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/image/convolution.h"
#include "backend/cuda/image/emission.h"

namespace ringtrain::cuda {

// SiteCommands holds the commands of one convolution and the norms around it, on scratch memory, in order to count or
// time them. They are the same commands that a program would have. In the forward pass, the commands begin with the
// norm that makes the convolution's input, whose sums exist already. They end with the statistics of the convolution's
// result. In the backward pass, they begin with the gradient of the result and end with the gradient of the norm's
// input. The copy of the weight gradient to the flat vector is left out.
class SiteCommands {
 public:
  SiteCommands(const ImageContext& context, const ConvolutionLayer& layer, const ConvolutionPlan& plan,
               Emission::Plans plans);
  Schedule& schedule() { return schedule_; }
  double bytes() const;
  double flops() const;

 private:
  Storage scratch(const std::string& what, std::int64_t bytes) { return schedule_.lasting(what, bytes); }
  void give_normalised_input(const ImageContext& context, const NormLayer& norm);

  Choices choices_;
  Schedule schedule_;
  Emission emission_;
};

// Returns each command as a part to be timed. The parts share scratch memory of their own, with random numbers. The
// result is empty when the device has no room for it.
std::vector<TrialPart> trial_of(Device& device, const ImageContext& context, const ConvolutionLayer& layer,
                                const ConvolutionPlan& plan);

struct NamedPlan {
  std::string name;
  ConvolutionPlan plan;
};
// Returns all plans that the graph allows, whether or not the device has kernels for them. The last plan uses plain
// operations only.
std::vector<NamedPlan> possible_plans(const ImageContext& context, const ConvolutionLayer& layer);

// Returns the same plans as a site for the table of fusions.
LayerSite site_of(const ImageContext& context, const ConvolutionLayer& layer);

}  // namespace ringtrain::cuda
