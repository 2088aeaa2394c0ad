#include "backend/cuda/program/fusion.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "backend/cuda/program/operation.h"
#include "backend/cuda/program/proof.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

namespace ringtrain::cuda {

namespace {

constexpr int trial_repetitions = 5;
constexpr double building_share = 0.6;  // of the time until the deadline; the rest is for timing

// Adds the device and the version of cuDNN to the key of a question, because the answer depends on both.
std::string on_device(const Device& device, const std::string& question) {
  return cat(device.facts().name, " | cuDNN ", device.facts().cudnn_version, " | ", question);
}

// Returns "" when all operations of the way have a plan, else the reason for the first refusal.
std::string refusal(Device& device, const FusionSite::Way& way) {
  const auto first_refusal = [&](const auto& operations) -> std::string {
    std::string why;
    for (const auto& operation : operations)
      if (device.plan(operation, &why) == nullptr) return cat(way.name, ": no plan for ", operation.key(), ": ", why);
    return "";
  };
  const std::string of_operations = first_refusal(way.operations);
  return of_operations.empty() ? first_refusal(way.recurrent) : of_operations;
}

// Returns an estimate that only decides the order of the sites.
double expected_seconds(const Device& device, const FusionSite::Way& way) {
  const Math math = way.operations.empty() ? Math::half : way.operations.front().math;
  return bound_seconds(way.flops, way.bytes, rates_of(device.facts(), math));
}

bool wants_proof(const FusionSite::Way& way) {
  return std::ranges::any_of(way.operations, [](const DnnOperation& o) { return o.engine != Engine::general; });
}

// Returns the ways in order of bytes; ways with equal bytes keep their order. Ways that want proof come last. Without
// timing, the first one with plans is taken.
std::vector<std::size_t> by_bytes(const FusionSite& site) {
  std::vector<std::size_t> order(site.ways.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return site.ways[i].bytes; });
  std::ranges::stable_partition(order, [&](std::size_t i) { return !wants_proof(site.ways[i]); });
  return order;
}

std::size_t guess(const FusionSite& site) {
  return by_bytes(site).front();
}

// cuDNN may give a chain of reasons of thousands of characters. The first ones say most.
void refuse(FusionChoice& choice, const std::string& why) {
  constexpr std::size_t longest = 400;
  const std::string text = why.size() > longest ? why.substr(0, longest) + " ..." : why;
  choice.refused += cat(choice.refused.empty() ? "" : "; ", in_one_field(text));
}

// Returns the error that `work` throws, or "". Throws the error when it leaves the device unusable.
std::string error_of(Device& device, const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& e) {
    if (!device.why_unusable().empty()) throw;
    return cat("does not run: ", e.what());
  }
}

// Holds the first of several equal sites, and the number of sites that are equal.
struct Question {
  const FusionSite* site;
  std::string key;
  double uses = 1;
  std::size_t known = std::string::npos;  // the way of an earlier choice; npos: none
  bool kept = false;                      // the choice comes from the cache, not from this run
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
// are prepared. Otherwise the plans of all ways are prepared if the ways will be timed, or if the device wants them. If
// not, only those of the guess are. Known choices and guesses come first. They are prepared even after `stop`, because
// the program needs their plans.
void prepare(Device& device, const std::vector<Question>& questions, bool timed, const std::function<bool()>& stop) {
  const bool every_way = timed || device.plans_every_way();
  std::vector<DnnOperation> needed, others;
  const auto add = [&](std::vector<DnnOperation>& operations, const FusionSite::Way& way) {
    operations.insert(operations.end(), way.operations.begin(), way.operations.end());
  };
  for (const Question& question : questions) {
    const FusionSite& site = *question.site;
    const bool known = question.known != std::string::npos;
    const std::size_t first = known ? question.known : guess(site);
    add(needed, site.ways[first]);
    for (std::size_t i = 0; every_way && !known && i < site.ways.size(); ++i)
      if (i != first) add(others, site.ways[i]);
  }
  std::vector<DnnOperation> all = needed;
  all.insert(all.end(), others.begin(), others.end());
  if (!timed) return device.prepare(all, 1, {});
  device.prepare(all, usual_plan_candidates, stop);
  if (stop()) device.prepare(needed, 1, {});
}

}  // namespace

FusionSite only_way(const std::string& name, const std::vector<DnnOperation>& operations) {
  double bytes = 0, flops = 0;
  for (const DnnOperation& operation : operations) {
    bytes += tensor_bytes(operation);
    flops += operation.flops();
  }
  return {.name = name, .ways = {{.name = "plain", .operations = operations, .bytes = bytes, .flops = flops}}};
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
    if (const auto kept = kept_.find(question.key); kept != kept_.end()) question.kept = by_key_.insert(*kept).second;
    if (const auto known = by_key_.find(question.key); known != by_key_.end())
      question.known = find_way(*question.site, known->second.way);
  }
  const auto expected = [&](const Question& question) {
    return question.uses * expected_seconds(device, question.site->ways.back());
  };
  std::ranges::stable_sort(questions, std::greater<>(), expected);
  const double begin = clock_(), building_end = begin + building_share * left_;
  deadline_ = begin + left_;
  const bool timed = !spent() && device.time([](Stream) {}, 1) >= 0;
  prepare(device, questions, timed, [&] { return clock_() >= building_end; });

  // A known choice is taken when its plans still exist. The other ways of the site are then not even planned.
  const auto is_known = [&](const Question& question) {
    return question.known != std::string::npos && !was_lost(question.key, question.site->ways[question.known].name) &&
           refusal(device, question.site->ways[question.known]).empty();
  };
  for (const Question& question : questions) {
    if (is_known(question)) {
      // The earlier run may have timed fewer plans for the chosen way than this one wants to.
      FusionChoice known = by_key_.at(question.key);
      if (timed && question.kept) tune(device, *question.site, {question.known}, known);
      continue;
    }
    FusionChoice& choice = by_key_[question.key] = make_choice(device, *question.site, timed);
    if (choice.seconds > 0 && keep_) keep_(*this);
  }
  left_ -= clock_() - begin;

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
  FusionChoice choice{.site = site.name};
  timed = timed && !spent();
  const std::string key = on_device(device, site.key());
  std::vector<std::size_t> possible;
  for (const std::size_t i : by_bytes(site)) {
    if (was_lost(key, site.ways[i].name)) {
      refuse(choice, cat(site.ways[i].name, ": the device was lost: ", lost_.at(key).at(site.ways[i].name)));
      continue;
    }
    if (wants_proof(site.ways[i]) && (!timed || possible.empty())) break;
    if (!possible.empty() && (!timed || spent())) break;
    std::string why;
    const auto ask = [&] { why = refusal(device, site.ways[i]); };
    if (!timed) {
      ask();
    } else if (const std::string error = error_of(device, ask); !error.empty()) {
      why = cat(site.ways[i].name, ": ", error);
    }
    if (why.empty())
      possible.push_back(i);
    else
      refuse(choice, why);
  }
  if (timed) tune(device, site, possible, choice);
  // The guess is timed only when there is another way to compare it with.
  if (timed && possible.size() > 1) possible = {fastest(device, site, possible, choice)};
  if (possible.empty() || possible.front() >= site.ways.size())
    throw Error(cat(site.name, " cannot be computed on ", device.facts().name, ": ", choice.refused),
                "Another precision may do: precision: fp32.");
  choice.way = site.ways[possible.front()].name;
  return choice;
}

// Returns npos when no way runs. When a limit ends the timing early, the choice has no seconds, so that it is not kept
// for later runs.
std::size_t FusionTable::fastest(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways,
                                 FusionChoice& choice) {
  std::size_t best = std::string::npos, untimed = std::string::npos;
  bool complete = true;
  for (const std::size_t i : ways) {
    const FusionSite::Way& way = site.ways[i];
    double seconds = -1;
    std::string wrong;
    if (!spent()) {
      try {
        const std::string error = error_of(device, [&] {
          wrong = disproof(device, way);
          if (wrong.empty()) seconds = time(device, way);
        });
        if (!error.empty()) wrong = error;
      } catch (const std::exception& e) {
        never_again(device, site, i, e.what());
      }
    }
    if (!wrong.empty()) {
      refuse(choice, cat(way.name, ": ", wrong));
    } else if (seconds < 0) {
      complete = complete && !spent();
      if (untimed == std::string::npos && !wants_proof(way)) untimed = i;
    } else if (best == std::string::npos || seconds < choice.seconds) {
      best = i;
      choice.seconds = seconds;
    }
  }
  if (!complete) choice.seconds = 0;
  return best == std::string::npos ? untimed : best;
}

void FusionTable::never_again(Device& device, const FusionSite& site, std::size_t way, const std::string& what) {
  const std::string name = site.ways[way].name;
  lost_[on_device(device, site.key())][name] = in_one_field(what);
  if (keep_) keep_(*this);
  throw Error(cat(site.name, ", ", name, ": ", what),
              "Start again. Where choices are kept (machine.plan_cache), this way is not tried again.");
}
bool FusionTable::was_lost(const std::string& key, const std::string& way) const {
  const auto found = lost_.find(key);
  return found != lost_.end() && found->second.contains(way);
}

void FusionTable::tune(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways,
                       FusionChoice& choice) {
  for (const std::size_t i : ways)
    for (const DnnOperation& operation : site.ways[i].operations) {
      if (spent()) return;
      const auto tune_plans = [&] { spent_ += device.tune(operation, usual_plan_candidates); };
      try {
        const std::string error = error_of(device, tune_plans);
        if (!error.empty())
          refuse(choice, cat(site.ways[i].name, ": timing of the plans for ", operation.key(), " ", error));
      } catch (const std::exception& e) {
        never_again(device, site, i, e.what());
      }
    }
}

const std::string& FusionTable::disproof(Device& device, const FusionSite::Way& way) {
  static const std::string none;
  for (const DnnOperation& operation : way.operations) {
    if (operation.engine == Engine::general) continue;
    const std::string key = on_device(device, operation.key());
    auto place = disproofs_.find(key);
    if (place == disproofs_.end()) place = disproofs_.emplace(key, difference_from_plain(device, operation)).first;
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

// Each choice is a line: key, way, seconds, site and refused, with tabs between them. A way that lost the device is
// such a line with -1 seconds.
std::string FusionTable::text() const {
  std::ostringstream out;
  out.precision(9);
  for (const auto& [key, choice] : by_key_)
    out << key << '\t' << choice.way << '\t' << choice.seconds << '\t' << choice.site << '\t' << choice.refused << '\n';
  for (const auto& [key, ways] : lost_)
    for (const auto& [way, what] : ways) out << key << '\t' << way << "\t-1\tlost\t" << what << '\n';
  return out.str();
}

void FusionTable::read(const std::string& text, std::map<std::string, FusionChoice>& choices) {
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
    if (choice.seconds < 0)
      lost_[key][choice.way] = choice.refused;
    else
      choices[key] = choice;
  }
}

void FusionTable::load(const std::string& text) {
  read(text, by_key_);
}

void FusionTable::load_kept(const std::string& text) {
  read(text, kept_);
}

namespace {

std::string file_of(const std::string& folder) {
  return folder + "/fusions";
}

// Adds the timed lines of a table's text to `lines`, by key, and the lines of ways that lost the device, by key and
// way. A line has key, way, seconds and more, with tabs between them (FusionTable::text).
void add_lasting_lines(const std::string& text, std::map<std::string, std::string>& lines) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t way = line.find('\t'), seconds = line.find('\t', way + 1);
    if (way == std::string::npos || seconds == std::string::npos) continue;
    const double value = std::strtod(line.c_str() + seconds + 1, nullptr);
    if (value != 0) lines[line.substr(0, value > 0 ? way : seconds)] = line;
  }
}

// Returns false when the file cannot be written.
bool add_to_file(const std::string& folder, const FusionTable& table) {
  const std::string before = file_text(file_of(folder));
  std::map<std::string, std::string> lines;
  add_lasting_lines(before, lines);
  add_lasting_lines(table.text(), lines);
  std::string text;
  for (const auto& [key, line] : lines) text += line + '\n';
  return text == before || replace_cache_file(file_of(folder), text);
}

}  // namespace

void load_kept_fusions(const std::string& folder, FusionTable& table) {
  if (folder.empty()) return;
  try {
    table.load_kept(file_text(file_of(folder)));
  } catch (const Error& e) {
    log_warning(file_of(folder), ": ", e.what(), "; fusions are searched again");
  }
}

void keep_fusions(const std::string& folder, FusionTable& table) {
  if (folder.empty()) return;
  auto keep = [folder, warned = false](const FusionTable& found) mutable {
    if (warned || add_to_file(folder, found)) return;
    warned = true;
    log_warning(file_of(folder), " cannot be written: later runs search for fusions anew");
  };
  keep(table);
  table.after_each_site(keep);
}

}  // namespace ringtrain::cuda
