#include "bench/scaling_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "base/error.h"

namespace ringtrain {

namespace {

constexpr double width = 460, height = 320, left = 70, top = 50, gap = 110;

// A panel with a logarithmic x axis; y from `low` to `high`.
class Panel {
 public:
  Panel(double x, int max_ranks, double low, double high, bool logarithmic)
      : x_(x), doublings_(std::max(1.0, std::log2(max_ranks))), low_(low), high_(high), logarithmic_(logarithmic) {}

  double x(double ranks) const { return x_ + width * std::log2(ranks) / doublings_; }
  double y(double value) const {
    const double share = logarithmic_ ? std::log(std::max(value, low_) / low_) / std::log(high_ / low_)
                                      : (value - low_) / (high_ - low_);
    return top + height * (1 - std::clamp(share, 0.0, 1.0));
  }
  std::string frame(const std::string& title) const {
    std::string svg = cat("<rect x=\"", x_, "\" y=\"", top, "\" width=\"", width, "\" height=\"", height,
                          "\" fill=\"none\" stroke=\"#888\"/>\n", text(x_, top - 10, "start", title));
    const int every = doublings_ > 12 ? 2 : 1;
    for (int d = 0; d <= static_cast<int>(doublings_); d += every)
      svg += text(x(std::exp2(d)), top + height + 18, "middle", cat(static_cast<long long>(std::exp2(d))));
    return svg + text(x_ + width / 2, top + height + 38, "middle", "ranks");
  }
  std::string tick(double value, const std::string& label) const {
    return cat("<line x1=\"", x_, "\" x2=\"", x_ + width, "\" y1=\"", y(value), "\" y2=\"", y(value),
               "\" stroke=\"#ddd\"/>\n", text(x_ - 6, y(value) + 4, "end", label));
  }
  static std::string text(double x, double y, const char* anchor, const std::string& words) {
    return cat("<text x=\"", x, "\" y=\"", y, "\" text-anchor=\"", anchor, "\">", words, "</text>\n");
  }

 private:
  double x_, doublings_, low_, high_;
  bool logarithmic_;
};

struct Point {
  double ranks, value, low, high;
};

std::string lines(const Panel& panel, const std::vector<Point>& points, const char* color, bool dashed) {
  std::string line, band;
  for (const Point& p : points) {
    line += cat(panel.x(p.ranks), ",", panel.y(p.value), " ");
    band += cat(panel.x(p.ranks), ",", panel.y(p.high), " ");
  }
  for (auto p = points.rbegin(); p != points.rend(); ++p) band += cat(panel.x(p->ranks), ",", panel.y(p->low), " ");
  std::string svg;
  if (!dashed) svg += cat("<polygon points=\"", band, "\" fill=\"", color, "\" opacity=\"0.15\"/>\n");
  return svg + cat("<polyline points=\"", line, "\" fill=\"none\" stroke=\"", color, "\" stroke-width=\"1.6\"",
                   dashed ? " stroke-dasharray=\"6 4\"" : "", "/>\n");
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

std::string power_of_ten(int exponent) {
  constexpr const char* units[] = {"", "k", "M", "G", "T"};
  if (exponent < 0 || exponent >= 15) return cat("1e", exponent);
  return cat(static_cast<int>(std::pow(10, exponent % 3)), units[exponent / 3]);
}

}  // namespace

std::string scaling_svg(const std::string& title, const std::vector<ForecastRow>& rows,
                        const std::vector<MeasuredPoint>& measured) {
  int max_ranks = 2;
  double least = 1e300, most = 0;
  for (const ForecastRow& r : rows) {
    max_ranks = std::max(max_ranks, r.ranks);
    least = std::min(least, r.samples_per_second());
    most = std::max(most, r.samples_per_second());
  }
  for (const MeasuredPoint& m : measured) {
    max_ranks = std::max(max_ranks, m.ranks);
    least = std::min(least, m.samples_per_second);
    most = std::max(most, m.samples_per_second);
  }
  const int low = static_cast<int>(std::floor(std::log10(least))), high = static_cast<int>(std::ceil(std::log10(most)));
  const Panel rate(left, max_ranks, std::pow(10, low), std::pow(10, std::max(high, low + 1)), true);
  const Panel efficiency(left + width + gap, max_ranks, 0, 1.1, false);

  const double whole_width = left + 2 * width + gap + 20, whole_height = top + height + 110;
  std::string svg = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", whole_width, " ", whole_height,
                        "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
                        "fill=\"white\"/>\n",
                        Panel::text(left, 20, "start", escaped(title)));
  for (int e = low; e <= std::max(high, low + 1); ++e) svg += rate.tick(std::pow(10, e), power_of_ten(e));
  for (int tenth = 0; tenth <= 10; tenth += 2) svg += efficiency.tick(tenth / 10.0, cat(10 * tenth, " %"));
  svg += rate.frame("samples per second") + efficiency.frame("efficiency: samples/s by those of as many single ranks");

  double legend = left;
  for (const Scaling scaling : {Scaling::strong, Scaling::weak})
    for (const Topology topology : {Topology::flat, Topology::hierarchical}) {
      std::vector<Point> rates, shares;
      for (const ForecastRow& r : rows) {
        if (r.scaling != scaling || r.topology != topology) continue;
        const double faster = r.step.total() / r.range.low, slower = r.step.total() / r.range.high;
        const auto n = static_cast<double>(r.ranks);
        rates.push_back({n, r.samples_per_second(), r.samples_per_second() * slower, r.samples_per_second() * faster});
        shares.push_back({n, r.efficiency, r.efficiency * slower, r.efficiency * faster});
      }
      if (rates.empty()) continue;
      const char* color = scaling == Scaling::strong ? "#c0392b" : "#2471a3";
      const bool dashed = topology == Topology::hierarchical;
      svg += lines(rate, rates, color, dashed) + lines(efficiency, shares, color, dashed);
      svg += cat("<line x1=\"", legend, "\" x2=\"", legend + 30, "\" y1=\"", top + height + 66, "\" y2=\"",
                 top + height + 66, "\" stroke=\"", color, "\"", dashed ? " stroke-dasharray=\"6 4\"" : "", "/>\n");
      svg += Panel::text(legend + 36, top + height + 70, "start",
                         cat(scaling == Scaling::strong ? "the experiment's batch" : "the batch grows with the ranks",
                             ", ", topology_name(topology)));
      legend += 250;
    }
  for (const MeasuredPoint& m : measured)
    svg += cat("<circle cx=\"", rate.x(m.ranks), "\" cy=\"", rate.y(m.samples_per_second),
               "\" r=\"4\" fill=\"black\"/>\n");
  if (!measured.empty()) svg += Panel::text(left, top + height + 92, "start", "dots: measured; pale: the range");
  return svg + "</svg>\n";
}

}  // namespace ringtrain
