// What a convolution of an image network can take: each way is a plan for its three products, for how its input comes
// in and its gradient goes out, and for who makes the sums that the norm behind it wants.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/image/convolution.h"

namespace ringtrain::cuda {

struct NamedPlan {
  std::string name;
  ConvolutionPlan plan;
};
// All plans that the graph allows, whether or not the device has kernels for them; the last one is always there.
std::vector<NamedPlan> possible_plans(const ImageContext& context, const ConvolutionLayer& layer);

// These as a site for the table of fusions.
LayerSite site_of(const ImageContext& context, const ConvolutionLayer& layer);

}  // namespace ringtrain::cuda
