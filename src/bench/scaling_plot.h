// The predictions as an image, written as SVG: any browser shows it, and a login node needs nothing to make it.
#pragma once

#include <string>
#include <vector>

#include "bench/forecast.h"

namespace ringtrain {

struct MeasuredPoint {
  int ranks = 1;
  double samples_per_second = 0;
};

// Throughput and efficiency against ranks: a line for each scaling and topology, the range of the flat ring pale behind
// it, measured points on top.
std::string scaling_svg(const std::string& title, const std::vector<ForecastRow>& rows,
                        const std::vector<MeasuredPoint>& measured);

}  // namespace ringtrain
