// Which fusion each layer takes: a table, not code paths by hand. Filled from what a device can plan and, on a real
// device, from a timing run; kept with the run and in a cache so that a resumed run takes the same kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// A piece of what a way runs, on scratch memory that it holds.
struct TrialPart {
  std::string what;  // parts of equal `what` take equal time and are timed once; empty: of its own
  std::function<void(Device&, Stream)> run;
};

// One place in the network where kernels may be joined.
struct FusionSite {
  std::string name;  // "layer1.0.conv1"
  // Ways to compute it, best guess first. One with operations of Engine::hopper is taken only where it was timed on the
  // device and computed there what cuDNN computes (hopper/check.h): nobody has seen those kernels run before. The last
  // one always exists: plain plans and own kernels.
  struct Way {
    std::string name;                          // "statistics in the epilogue"
    std::vector<DnnOperation> operations;      // that must find a plan
    std::vector<RnnOperation> recurrent = {};  // likewise
    double bytes = 0;                          // of memory traffic: decides where nothing is timed
    double flops = 0;
    // Takes scratch memory; its time is the sum over the parts. Empty, or without parts: cannot be timed.
    std::function<std::vector<TrialPart>(Device&)> trial;
  };
  std::vector<Way> ways;
  std::string key() const;  // of the shapes: equal sites share one choice
};

// Operations that stand at no choice: their plans are timed as those of the others are.
FusionSite only_way(const std::string& name, const std::vector<DnnOperation>& operations);

struct FusionChoice {
  std::string site, way;
  double seconds = 0;                  // 0: not timed
  std::string refused;                 // ways before it that found no plan, and why
  std::string key = {};                // of the line in text()
  std::vector<std::string> ways = {};  // all of the site; not in text()
};

class FusionTable {
 public:
  // `seconds_limit`: of device time for timing plans and ways. Making plans does not count. Sites that are not reached
  // keep their guess.
  explicit FusionTable(double seconds_limit = 60) : limit_(seconds_limit) {}
  // Indices of the ways to take. What is not known yet is timed in order of the time that it is expected to take in a
  // step, equal sites together: there the most can be won.
  std::vector<std::size_t> choose(Device& device, std::span<const FusionSite> sites);
  std::size_t choose(Device& device, const FusionSite& site) { return choose(device, {&site, 1}).front(); }
  // Of sites with more than one way, in the order in which they were asked.
  const std::vector<FusionChoice>& choices() const { return choices_; }
  double seconds_spent() const { return spent_; }  // of device time

  // One text for broadcast, cache and run record; load() throws Error naming the line it does not understand.
  std::string text() const;
  void load(const std::string& text);
  // The same of earlier runs' searches: taken for sites that load() has not named. text() then holds those in use.
  void load_kept(const std::string& text);

 private:
  FusionChoice make_choice(Device& device, const FusionSite& site, bool timed);
  void tune(Device& device, const FusionSite& site, const std::vector<std::size_t>& ways);
  double time(Device& device, const FusionSite::Way& way);
  const std::string& disproof(Device& device,
                              const FusionSite::Way& way);  // "": its operations compute what they should
  bool spent() const { return spent_ >= limit_; }

  double limit_;
  double spent_ = 0;
  std::vector<FusionChoice> choices_;
  std::map<std::string, FusionChoice> by_key_;    // device, cuDNN and site key
  std::map<std::string, FusionChoice> kept_;      // likewise
  std::map<std::string, double> part_seconds_;    // by device, cuDNN and TrialPart::what
  std::map<std::string, std::string> disproofs_;  // by device, cuDNN and operation
};

}  // namespace ringtrain::cuda
