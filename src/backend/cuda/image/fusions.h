// The places in an image network where kernels may be joined, as sites for the table of fusions.
#pragma once

#include <string>

#include "backend/cuda/image/convolution.h"

namespace ringtrain::cuda {

// What the weight gradient of a 16-bit layer is rounded to on its way to the flat vector: cuDNN's kernels made for a
// GPU write 16 bits only, and those that write fp32 are compiled for every GPU alike.
Type choose_weight_gradient_type(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                                 const std::string& name);
// How `layer` takes x in and sends its gradient.
ConvolutionWay choose_convolution_way(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                                      const std::string& name, const ConvolutionPlan& plan, const Value& x,
                                      const Value& y);
// Where the norm behind the convolution gets its sums from.
SumsWay choose_sums_way(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                        const std::string& name, const ConvolutionPlan& plan, const Value& y);

}  // namespace ringtrain::cuda
