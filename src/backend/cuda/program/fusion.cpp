#include "backend/cuda/program/fusion.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace ringtrain::cuda {

namespace {

constexpr int trial_repetitions = 5;

// Equal sites on different devices, or with another cuDNN, are different questions.
std::string table_key(const Device& device, const FusionSite& site) {
  return cat(device.facts().name, " | cuDNN ", device.facts().cudnn_version, " | ", site.key());
}

// Empty: all operations find a plan.
std::string refusal(Device& device, const FusionSite::Way& way) {
  for (const DnnOperation& operation : way.operations) {
    std::string why;
    if (device.plan(operation, &why) == nullptr) return cat(way.name, ": no plan for ", operation.key(), ": ", why);
  }
  for (const RnnOperation& operation : way.recurrent) {
    std::string why;
    if (device.plan(operation, &why) == nullptr) return cat(way.name, ": no plan for ", operation.key(), ": ", why);
  }
  return "";
}

std::string in_one_field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::map<std::string, FusionChoice> choices_of(const std::string& text) {
  std::map<std::string, FusionChoice> by_key;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::istringstream fields(line);
    std::string key, seconds;
    FusionChoice choice;
    char* end = nullptr;
    const bool complete = std::getline(fields, key, '\t') && std::getline(fields, choice.way, '\t') &&
                          std::getline(fields, seconds, '\t') && std::getline(fields, choice.site, '\t');
    if (complete) choice.seconds = std::strtod(seconds.c_str(), &end);
    if (!complete || key.empty() || choice.way.empty() || end == seconds.c_str() || *end != '\0')
      throw Error(cat("line ", number, " of the table of fusions is not understood: '", line.substr(0, 80), "'"),
                  "Remove the file; the choices are made again.");
    std::getline(fields, choice.refused);
    by_key[key] = choice;
  }
  return by_key;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

std::string FusionSite::key() const {
  std::string text;
  for (const Way& way : ways) {
    text += cat(text.empty() ? "" : "; ", way.name, " {");
    std::string separator;
    const auto add = [&](const auto& operations) {
      for (const auto& operation : operations) text += cat(std::exchange(separator, ", "), operation.key());
    };
    add(way.operations);
    add(way.recurrent);
    text += cat("} ", static_cast<std::int64_t>(way.bytes));
  }
  return in_one_field(text);
}

std::size_t FusionTable::choose(Device& device, const FusionSite& site) {
  if (site.ways.empty()) throw Error(cat("the fusion site ", site.name, " has no way to compute it"));
  const Stopwatch watch;
  const std::string key = table_key(device, site);
  FusionChoice choice;
  choice.site = site.name;

  // A known choice is taken where it still finds its plans; then the others are not even planned.
  if (const auto kept = kept_.find(key); kept != kept_.end()) by_key_.insert(*kept);
  if (const auto known = by_key_.find(key); known != by_key_.end())
    for (std::size_t i = 0; i < site.ways.size(); ++i)
      if (site.ways[i].name == known->second.way && refusal(device, site.ways[i]).empty()) {
        choice.way = known->second.way;
        choice.seconds = known->second.seconds;
        choice.refused = known->second.refused;
        choices_.push_back(choice);
        return i;
      }

  // By bytes, first come first. Where nothing will be timed, the first with plans is the one.
  std::vector<std::size_t> order(site.ways.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return site.ways[a].bytes < site.ways[b].bytes; });
  const bool timed = spent_ < limit_ && device.time([](Stream) {}, 1) >= 0;
  std::vector<std::size_t> possible;
  for (const std::size_t i : order) {
    const std::string why = refusal(device, site.ways[i]);
    if (why.empty())
      possible.push_back(i);
    else
      choice.refused += cat(choice.refused.empty() ? "" : "; ", in_one_field(why));
    if (!timed && !possible.empty()) break;
  }
  if (possible.empty())
    throw Error(cat(site.name, " cannot be computed on ", device.facts().name, ": ", choice.refused),
                "Another precision may do: precision: fp32.");

  // The guess is judged by time only beside another: alone it needs none.
  std::size_t best = possible.front();
  for (const std::size_t i : possible) {
    if (!timed || possible.size() < 2 || !site.ways[i].trial || spent_ + watch.seconds() >= limit_) continue;
    const double seconds = device.time([&](Stream stream) { site.ways[i].trial(device, stream); }, trial_repetitions);
    if (choice.seconds == 0 || seconds < choice.seconds) {
      best = i;
      choice.seconds = seconds;
    }
  }
  spent_ += watch.seconds();

  choice.way = site.ways[best].name;
  by_key_[key] = choice;
  choices_.push_back(choice);
  return best;
}

// A line each: key, way, seconds, site, refused; tabs between.
std::string FusionTable::text() const {
  std::ostringstream out;
  out.precision(9);
  for (const auto& [key, choice] : by_key_)
    out << key << '\t' << choice.way << '\t' << choice.seconds << '\t' << choice.site << '\t' << choice.refused << '\n';
  return out.str();
}

void FusionTable::load(const std::string& text) {
  for (auto& [key, choice] : choices_of(text)) by_key_[key] = std::move(choice);
}

void FusionTable::load_kept(const std::string& text) {
  for (auto& [key, choice] : choices_of(text)) kept_[key] = std::move(choice);
}

}  // namespace ringtrain::cuda
