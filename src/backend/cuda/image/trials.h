// A convolution with the norms around it on scratch memory: the very commands that a program would have for it.
#pragma once

#include <vector>

#include "backend/cuda/image/convolution.h"
#include "backend/cuda/image/emission.h"

namespace ringtrain::cuda {

// From the normalised input, whose sums are there, to the statistics of the result; and from the gradient of the result
// to that of the norm's input. The copy of the weight gradient to the flat vector is left out.
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

// Each command alone; they share memory of their own. Empty where the device has no room for that.
std::vector<TrialPart> trial_of(Device& device, const ImageContext& context, const ConvolutionLayer& layer,
                                const ConvolutionPlan& plan);

}  // namespace ringtrain::cuda
