#include "backend/cuda/program/fusion.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include "backend/cuda/hopper/check.h"
#include "backend/cuda/program/operation.h"
#include "backend/cuda/program/rates.h"
#include "base/error.h"
#include "base/fnv.h"

namespace ringtrain::cuda {

namespace {

constexpr int trial_repetitions = 5;

// Adds the device and the version of cuDNN to the key of a question, because the answer depends on both.
std::string on_device(const Device& device, const std::string& question) {
  return cat(device.facts().name, " | cuDNN ", device.facts().cudnn_version, " | ", question);
}

// Returns "" when all operations of the way have a plan, else the reason for the first refusal.
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

// Returns an estimate that only decides the order of the sites.
double expected_seconds(const Device& device, const FusionSite::Way& way) {
  const Math math = way.operations.empty() ? Math::half : way.operations.front().math;
  const Rates rates = rates_of(device.facts().compute_capability, math);
  return std::max(way.bytes / rates.bytes, way.flops / rates.flops);
}

bool wants_proof(const FusionSite::Way& way) {
  return std::ranges::any_of(way.operations, [](const DnnOperation& o) { return o.engine == Engine::hopper; });
}

// Returns the ways in order of bytes; ways with equal bytes keep their order. Without timing, the first one with plans
// is taken.
std::vector<std::size_t> by_bytes(const FusionSite& site) {
  std::vector<std::size_t> order(site.ways.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return site.ways[a].bytes < site.ways[b].bytes; });
  return order;
}

std::size_t guess(const FusionSite& site) {
  const std::vector<std::size_t> order = by_bytes(site);
  return *std::ranges::find_if(order, [&](std::size_t i) { return !wants_proof(site.ways[i]); });
}

// Holds the first of several equal sites, and the number of sites that are equal.
struct Question {
  const FusionSite* site;
  std::string key;
  double uses = 1;
  std::size_t known = std::string::npos;  // the way of an earlier choice; npos: none
};

std::vector<Question> distinct(const Device& device, std::span<const FusionSite> sites) {
  std::vector<Question> questions;
  std::map<std::string, std::size_t> places;
  for (const FusionSite& site : sites) {
    if (site.ways.empty()) throw Error(cat("the fusion site ", site.name, " has no way to compute it"));
    const std::string key = on_device(device, site.key());
    const auto [place, added] = places.try_emplace(key, questions.size());
    if (added)
      questions.push_back({&site, key});
    else
      ++questions[place->second].uses;
  }
  return questions;
}

std::size_t find_way(const FusionSite& site, const std::string& name) {
  const auto found = std::ranges::find(site.ways, name, &FusionSite::Way::name);
  return found == site.ways.end() ? std::string::npos : static_cast<std::size_t>(found - site.ways.begin());
}

// Prepares the plans that will be asked for. If an earlier choice is known for a site, only the plans of that choice
// are prepared. Otherwise the plans of all ways are prepared if the ways will be timed. If not, only those of the guess
// are.
void prepare(Device& device, const std::vector<Question>& questions, bool timed) {
  std::vector<DnnOperation> operations;
  const auto add = [&](const FusionSite::Way& way) {
    operations.insert(operations.end(), way.operations.begin(), way.operations.end());
  };
  for (const Question& question : questions) {
    const FusionSite& site = *question.site;
    if (question.known != std::string::npos)
      add(site.ways[question.known]);
    else if (!timed)
      add(site.ways[guess(site)]);
    else
      for (const FusionSite::Way& way : site.ways) add(way);
  }
  device.prepare(operations, timed ? usual_plan_candidates : 1);
}

}  // namespace

FusionSite only_way(const std::string& name, const std::vector<DnnOperation>& operations) {
  double bytes = 0, flops = 0;
  for (const DnnOperation& operation : operations) {
    bytes += tensor_bytes(operation);
    flops += operation.flops();
  }
  return {.name = name,
          .ways = {{.name = "plain", .operations = operations, .bytes = bytes, .flops = flops, .trial = {}}}};
}

// The key has the plain operations, which show the shapes, and a hash of all ways. So the key stays short.
std::string FusionSite::key() const {
  std::string all, plain;
  const auto add_to = [](std::string& text, const auto& operations) {
    for (const auto& operation : operations) text += cat(text.empty() ? "" : ", ", operation.key());
  };
  for (const Way& way : ways) {
    all += cat(way.name, " ", static_cast<std::int64_t>(way.bytes), " ");
    add_to(all, way.operations);
    add_to(all, way.recurrent);
  }
  add_to(plain, ways.back().operations);
  add_to(plain, ways.back().recurrent);
  return in_one_field(cat(plain, " | ", ways.size(), " ways ", std::hex, fnv1a(all)));
}

std::vector<std::size_t> FusionTable::choose(Device& device, std::span<const FusionSite> sites) {
  std::vector<Question> questions = distinct(device, sites);
  for (Question& question : questions) {
    if (const auto kept = kept_.find(question.key); kept != kept_.end()) by_key_.insert(*kept);
    if (const auto known = by_key_.find(question.key); known != by_key_.end())
      question.known = find_way(*question.site, known->second.way);
  }
  const bool timed = !spent() && device.time([](Stream) {}, 1) >= 0;
  prepare(device, questions, timed);

  // A known choice is taken when its plans still exist. The other ways of the site are then not even planned.
  const auto is_known = [&](const Question& question) {
    return question.known != std::string::npos && refusal(device, question.site->ways[question.known]).empty();
  };
  std::vector<Question> open;
  std::ranges::remove_copy_if(questions, std::back_inserter(open), is_known);
  const auto expected = [&](const Question& question) {
    return question.uses * expected_seconds(device, question.site->ways.back());
  };
  std::ranges::stable_sort(open, std::greater<>(), expected);
  for (const Question& question : open) by_key_[question.key] = make_choice(device, *question.site, timed);

  std::vector<std::size_t> ways;
  for (const FusionSite& site : sites) {
    const std::string key = on_device(device, site.key());
    FusionChoice choice = by_key_.at(key);
    ways.push_back(find_way(site, choice.way));
    if (site.ways.size() == 1) continue;
    choice.site = site.name;
    choice.key = key;
    for (const FusionSite::Way& way : site.ways) choice.ways.push_back(way.name);
    choices_.push_back(std::move(choice));
  }
  return ways;
}

FusionChoice FusionTable::make_choice(Device& device, const FusionSite& site, bool timed) {
  FusionChoice choice{.site = site.name, .way = {}, .refused = {}};
  timed = timed && !spent();
  std::vector<std::size_t> possible;
  for (const std::size_t i : by_bytes(site)) {
    if (wants_proof(site.ways[i]) && !timed) continue;
    const std::string why = refusal(device, site.ways[i]);
    if (why.empty())
      possible.push_back(i);
    else
      choice.refused += cat(choice.refused.empty() ? "" : "; ", in_one_field(why));
    if (!timed && !possible.empty()) break;
  }
  if (std::ranges::all_of(possible, [&](std::size_t i) { return wants_proof(site.ways[i]); }))
    throw Error(cat(site.name, " cannot be computed on ", device.facts().name, ": ", choice.refused),
                "Another precision may do: precision: fp32.");

  std::size_t best = *std::ranges::find_if(possible, [&](std::size_t i) { return !wants_proof(site.ways[i]); });
  if (timed) tune(device, site, possible);
  // The guess is timed only when there is another way to compare it with.
  if (timed && possible.size() > 1)
    for (const std::size_t i : possible) {
      const double seconds = time(device, site.ways[i]);
      if (seconds < 0 || (choice.seconds > 0 && seconds >= choice.seconds)) continue;
      if (const std::string& wrong = disproof(device, site.ways[i]); !wrong.empty()) {
        choice.refused += cat(choice.refused.empty() ? "" : "; ", site.ways[i].name, ": ", in_one_field(wrong));
        continue;
      }
      best = i;
      choice.seconds = seconds;
    }
  choice.way = site.ways[best].name;
  return choice;
}

void FusionTable::tune(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways) {
  for (const std::size_t i : ways)
    for (const DnnOperation& operation : site.ways[i].operations)
      if (!spent()) spent_ += device.tune(operation, usual_plan_candidates);
}

const std::string& FusionTable::disproof(Device& device, const FusionSite::Way& way) {
  static const std::string none;
  for (const DnnOperation& operation : way.operations) {
    if (operation.engine != Engine::hopper) continue;
    const auto [place, added] = disproofs_.try_emplace(on_device(device, operation.key()));
    if (added) place->second = hopper::difference_from_plain(device, operation);
    if (!place->second.empty()) return place->second;
  }
  return none;
}

// Returns -1 when the way cannot be timed or the time is used up.
double FusionTable::time(Device& device, const FusionSite::Way& way) {
  if (!way.trial || spent()) return -1;
  const std::vector<TrialPart> parts = way.trial(device);
  if (parts.empty()) return -1;
  double sum = 0;
  for (const TrialPart& part : parts) {
    const std::string what = part.what.empty() ? "" : on_device(device, part.what);
    if (const auto known = part_seconds_.find(what); !what.empty() && known != part_seconds_.end()) {
      sum += known->second;
      continue;
    }
    if (spent()) return -1;
    const double seconds = device.time([&](Stream stream) { part.run(device, stream); }, trial_repetitions);
    spent_ += (trial_repetitions + 1) * seconds;  // device.time() runs the work once before it begins to time
    if (!what.empty()) part_seconds_[what] = seconds;
    sum += seconds;
  }
  return sum;
}

// Each choice is a line: key, way, seconds, site and refused, with tabs between them.
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
