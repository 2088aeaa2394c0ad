#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "bench/split.h"

namespace ringtrain {
namespace {

constexpr double width = 560, height = 340, left = 80, top = 50;
constexpr std::array colours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf"};

std::string text_at(double x, double y, const char* anchor, const std::string& words) {
  return cat("<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\" font-size=\"13\">", words, "</text>\n");
}

std::string label(const SplitTrial& trial) {
  std::string cuts;
  for (const std::string& cut : trial.cuts) cuts += (cuts.empty() ? "" : ", ") + cut;
  return "cut at " + cuts;
}

}  // namespace

std::string split_svg(const std::string& title, const std::vector<SplitTrial>& trials) {
  double low = 1e300, high = 0, fast = 0;
  for (const SplitTrial& t : trials) {
    low = std::min(low, static_cast<double>(t.micro_batch));
    high = std::max(high, static_cast<double>(t.micro_batch));
    fast = std::max(fast, t.samples_per_second);
  }
  const double doublings = std::max(1.0, std::log2(high / low));
  const auto x = [&](std::int64_t size) {
    return left + width * std::log2(static_cast<double>(size) / low) / doublings;
  };
  const auto y = [&](double rate) { return top + height * (1 - rate / (1.1 * fast)); };
  std::string svg =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", left + width + 260, "\" height=\"", top + height + 60,
          "\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" ", "fill=\"white\"/>\n<rect x=\"", left,
          "\" y=\"", top, "\" width=\"", width, "\" height=\"", height, "\" fill=\"none\" stroke=\"#888\"/>\n");
  svg += text_at(left, top - 15, "start", title);
  svg += text_at(left + width / 2, top + height + 42, "middle", "split size (samples of a micro-batch)");
  for (int i = 0; i <= 4; ++i) {
    const double rate = 1.1 * fast * i / 4;
    svg += text_at(left - 6, y(rate) + 4, "end", cat(static_cast<long long>(rate)));
  }
  svg += text_at(left - 6, top - 15, "end", "samples/s");
  std::size_t line = 0;
  for (std::size_t i = 0; i < trials.size(); ++line) {
    const char* colour = colours[line % colours.size()];
    std::string points, marks;
    const std::string name = label(trials[i]);
    for (; i < trials.size() && label(trials[i]) == name; ++i) {
      const SplitTrial& t = trials[i];
      points += cat(x(t.micro_batch), ",", y(t.samples_per_second), " ");
      marks += cat("<circle cx=\"", x(t.micro_batch), "\" cy=\"", y(t.samples_per_second), "\" r=\"3\" fill=\"", colour,
                   "\"/>\n");
      if (line == 0) svg += text_at(x(t.micro_batch), top + height + 18, "middle", cat(t.micro_batch));
    }
    svg += cat("<polyline points=\"", points, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"/>\n", marks,
               "<text x=\"", left + width + 12, "\" y=\"", top + 14 + 18 * static_cast<double>(line),
               "\" font-size=\"13\" fill=\"", colour, "\">", name, "</text>\n");
  }
  return svg + "</svg>\n";
}

}  // namespace ringtrain
