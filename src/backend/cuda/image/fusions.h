// Lists the ways to compute a convolution of an image network. A way is a plan for the three products: the convolution,
// the data gradient and the weight gradient. It says how the input is read, how the gradient is passed on, which kernel
// makes the sums for the norm after the convolution, and the library and the type of the weight gradient.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/image/convolution.h"

namespace ringtrain::cuda {

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
